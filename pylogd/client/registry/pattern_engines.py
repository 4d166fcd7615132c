"""Write sets of characters, assertions and references in the syntax of engines for regular expressions.

There are two kinds of engines: Python's `re`, and engines for ECMA-262 itself, such as that of jsonschema-rs. For
Python, properties of characters become ranges of characters, if `unicodedata` has them. Must not know: the grammar of
patterns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from pylogd.base.errors import PylogdError

Range = tuple[int, int]
_END: Final = 0x10FFFF


class Untranslatable(PylogdError):
    """A valid pattern for which an engine has no syntax."""


@dataclass(frozen=True, slots=True)
class Charset:
    """A set of characters.

    named: properties of characters that an engine knows by name, such as `\\p{Script=Greek}`.
    inverted: whether the set has all other characters.
    """

    ranges: tuple[Range, ...] = ()
    named: tuple[str, ...] = ()
    inverted: bool = False

    @classmethod
    def one(cls, code: int) -> Charset:
        """Return the set of one character."""
        return cls(((code, code),))

    @classmethod
    def union(cls, sets: Iterable[Charset], *, inverted: bool = False) -> Charset:
        """Return the characters of several sets, which must not be inverted."""
        parts = list(sets)
        found = cls(
            tuple(each for part in parts for each in part.ranges), tuple(n for part in parts for n in part.named)
        )
        return found.others() if inverted else found

    def others(self) -> Charset:
        """Return all other characters."""
        if self.named:
            return Charset(self.ranges, self.named, not self.inverted)
        found, following = [], 0
        for first, last in sorted(self.ranges):
            if first > following:
                found.append((following, first - 1))
            following = max(following, last + 1)
        return Charset((*found, (following, _END)) if following <= _END else tuple(found))


class Engine(Protocol):
    """The syntax of an engine."""

    end: str

    def charset(self, chars: Charset) -> str:
        """Return the expression for one character of a set."""

    def property(self, categories: Sequence[str], binary: str, text: str) -> Charset:
        """Return the characters with a property: of general categories, a binary property, or neither.

        text: the property as it was written.

        Raises Untranslatable.
        """

    def reference(self, group: int) -> str:
        """Return an expression that matches the text of a group; the empty text if the group took no part."""


class PythonEngine:
    """Python's `re`."""

    end = r"\Z"

    def charset(self, chars: Charset) -> str:
        if not chars.ranges:
            return "(?!)"
        return _bracketed(chars, lambda code: f"\\U{code:08x}")

    def property(self, categories: Sequence[str], binary: str, text: str) -> Charset:
        if categories:
            return Charset(_ranges_of(tuple(categories)))
        if binary not in _BINARY_RANGES:
            raise Untranslatable(f"Python's regular expressions have no property {text}")
        return _BINARY_RANGES[binary]

    def reference(self, group: int) -> str:
        return f"(?:(?({group})\\{group}))"


class EcmaEngine:
    """Engines for ECMA-262 itself, whose strings have no surrogates."""

    end = "$"

    def charset(self, chars: Charset) -> str:
        ranges = [
            part
            for first, last in chars.ranges
            for part in ((first, min(last, 0xD7FF)), (max(first, 0xE000), last))
            if part[0] <= part[1]
        ]
        if not ranges and not chars.named:
            return r"[^\s\S]"
        return _bracketed(Charset(tuple(ranges), chars.named, chars.inverted), lambda code: f"\\u{{{code:x}}}")

    def property(self, categories: Sequence[str], binary: str, text: str) -> Charset:
        return Charset(named=(text,))

    def reference(self, group: int) -> str:
        return f"(?:\\{group})"


def boundary(engine: Engine, *, inverted: bool) -> str:
    """Return the assertion that an ASCII word begins or ends here, or its negation."""
    word, pairs = engine.charset(_WORD), (("<=", "="), ("<!", "!")) if inverted else (("<=", "!"), ("<!", "="))
    return "(?:" + "|".join(f"(?{before}{word})(?{after}{word})" for before, after in pairs) + ")"


def _bracketed(chars: Charset, astral: Callable[[int], str]) -> str:
    """Return a set in brackets; without brackets if it has one character.

    astral: writes characters beyond 16 bits.
    """

    def written(code: int) -> str:
        if chr(code).isascii() and chr(code).isalnum():
            return chr(code)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code <= 0xFFFF else astral(code)

    if len(chars.ranges) == 1 and not chars.named and chars.ranges[0][0] == chars.ranges[0][1]:
        return written(chars.ranges[0][0])
    parts = [written(first) if first == last else f"{written(first)}-{written(last)}" for first, last in chars.ranges]
    return f"[{'^' if chars.inverted else ''}{''.join((*parts, *chars.named))}]"


@lru_cache(maxsize=64)
def _ranges_of(categories: tuple[str, ...]) -> tuple[Range, ...]:
    """Return the characters of general categories."""
    found: list[Range] = []
    for code in range(_END + 1):
        if unicodedata.category(chr(code)) in categories:
            if found and found[-1][1] == code - 1:
                found[-1] = found[-1][0], code
            else:
                found.append((code, code))
    return tuple(found)


_DIGITS: Final = Charset(((0x30, 0x39),))
_WORD: Final = Charset(((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)))
_SPACE: Final = Charset(
    (
        (9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
        (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
    )
)  # fmt: skip
LINE_ENDS: Final = Charset(((10, 10), (13, 13), (0x2028, 0x2029)))
ANY: Final = Charset(((0, _END),))
CLASSES: Final[Mapping[str, Charset]] = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_HEXADECIMAL: Final = Charset(((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)))
#: Binary properties that Python's engine can have.
_BINARY_RANGES: Final[Mapping[str, Charset]] = {
    "Any": ANY, "ASCII": Charset(((0, 0x7F),)), "AHex": _HEXADECIMAL, "ASCII_Hex_Digit": _HEXADECIMAL,
}  # fmt: skip
