"""Kafka's way to write credentials, the property `sasl.jaas.config`: one login module with options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";

Only the options are used here: the mechanism is known from elsewhere.
Must not know: what the options mean.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<mark>[=;])|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<word>[^\s=;"']+))""",
    re.DOTALL,
)


class LoginModule(NamedTuple):
    """A login module: the last part of its class name, such as `ScramLoginModule`, and its options."""

    name: str
    options: dict[str, str]


def parse_jaas(text: str) -> LoginModule:
    """Return the login module in `text`. Raises ValueError, which does not repeat the text, since it has passwords."""
    marks: list[str] = []
    values: list[str] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError("a quotation mark is missing")
        at = match.end()
        kind = match.lastgroup or ""
        marks.append(match[kind] if kind == "mark" else "")
        values.append(match[kind] if kind in ("mark", "word") else re.sub(r"\\(.)", r"\1", match[kind]))
    if len(values) < 3 or marks[-1] != ";" or any(marks[:2]) or values[1].lower() not in _FLAGS:
        raise ValueError('write LoginModule required option="value" ... ;')
    options = values[2:-1]
    if len(options) % 3 or marks[2:-1] != ["", "=", ""] * (len(options) // 3):
        raise ValueError('options are written name="value", and there is one login module')
    names = options[::3]
    if len(set(names)) < len(names):
        raise ValueError("an option is given twice")
    return LoginModule(values[0].rpartition(".")[2], dict(zip(names, options[2::3], strict=True)))
