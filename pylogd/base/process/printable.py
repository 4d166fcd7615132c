"""Make text from others safe to print: names, ids, values and error texts can contain what a terminal would obey.

Strategy: characters that control a terminal, end a line, or reverse the direction of writing are replaced by escapes as
in Python's string literals. Text without them is returned unchanged, so that one function serves every output.
"""

from __future__ import annotations

import re

#: C0 and C1 control characters, line and paragraph separators, controls of the writing direction, lone surrogates
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\N{ARABIC LETTER MARK}\N{LEFT-TO-RIGHT MARK}\N{RIGHT-TO-LEFT MARK}\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff]"
)


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` with unsafe characters escaped, such as `\\x1b` for ESC. `keep`: unsafe characters to leave."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def printable_json(text: str) -> str:
    """Return JSON with unsafe characters escaped as JSON's `\\uXXXX`, which does not change its value."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
