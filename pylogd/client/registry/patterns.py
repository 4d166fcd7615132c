"""Read the regular expressions of JSON Schema, which have ECMA-262's syntax, and translate them for engines in Python.

Strategy: a pattern is parsed by the grammar of ECMA-262 and written in the syntax of an engine, so that each construct
means the same as in JavaScript: `$` is the end and not before a last newline, `\\d` has ten digits, `[^]` is any
character. Constructs that the grammar lacks are refused, even if an engine has them: `(?P<name>...)`, `\\A`, `a++`.

Rules: a pattern is read with the flag `u`, as JSON Schema 2020-12 recommends. Two leniencies are common in schemas, and
valid without the flag: characters other than letters and digits may be escaped, and `{`, `}` and `]` may stand for
themselves.
Must not know: schemas.
Source: ECMA-262 (2025), "Patterns" and annex B.1.2; JSON Schema 2020-12, "Regular Expressions".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from pylogd.base.errors import PylogdError
from pylogd.client.registry.pattern_engines import (
    ANY,
    CLASSES,
    LINE_ENDS,
    Charset,
    EcmaEngine,
    Engine,
    PythonEngine,
    Untranslatable,
    boundary,
)
from pylogd.client.registry.pattern_names import BINARY, CATEGORIES, SCRIPTS

_END: Final = 0x10FFFF
_CONTROLS: Final[Mapping[str, int]] = {"f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_COUNT: Final = re.compile(r"\{(\d+)(?:(,)(\d*))?\}", re.ASCII)
_NAME: Final = re.compile(r"<([^\W\d][\w$\u200c\u200d]*|\$[\w$\u200c\u200d]*)>")
_MODIFIERS: Final = re.compile(r"\?([ims]*)(?:-([ims]*))?:")
_MOST_DEPTH: Final = 80


class InvalidPattern(PylogdError, ValueError):
    """A regular expression that is not valid in ECMA-262."""


@lru_cache(maxsize=1024)
def plain(pattern: str) -> str:
    """Return a pattern in the part of ECMA-262's syntax that all of its engines support. Raises InvalidPattern."""
    return _Parser(pattern, EcmaEngine()).translated()


@lru_cache(maxsize=1024)
def for_python(pattern: str) -> str:
    """Return a pattern of ECMA-262 in the syntax of Python's `re`. Raises InvalidPattern and Untranslatable."""
    found = _Parser(pattern, PythonEngine()).translated()
    try:
        re.compile(found)
    except re.error as error:
        raise Untranslatable(f"Python's regular expressions can't match {pattern!r}: {error}") from None
    return found


#: Keywords of JSON Schema: those with schemas by name, those with values of messages, and all others with schemas.
_NAMED: Final = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"}
)
_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
_SCHEMAS: Final = frozenset(
    {
        "additionalProperties", "unevaluatedProperties", "propertyNames", "items", "prefixItems", "additionalItems",
        "unevaluatedItems", "contains", "not", "if", "then", "else", "allOf", "anyOf", "oneOf", "extends",
        "contentSchema",
    }
)  # fmt: skip


def patterns_of(schema: Any) -> Iterator[str]:
    """Yield the patterns of a JSON Schema, except at places that the drafts don't know."""
    for part in schema if isinstance(schema, list) else [schema]:
        if not isinstance(part, dict):
            continue
        for keyword, value in part.items():
            if keyword == "pattern" and isinstance(value, str):
                yield value
            elif keyword in _NAMED and isinstance(value, dict):
                yield from value if keyword == "patternProperties" else ()
                for each in value.values():
                    yield from patterns_of(each)
            elif keyword in _SCHEMAS:
                yield from patterns_of(value)


def in_schema(schema: Any, translate: Callable[[str], str]) -> Any:
    """Return a JSON Schema with its patterns translated, also at unknown places, to which references may lead.

    Patterns that are not valid are not changed. Raises other errors of `translate`.
    """

    def changed(pattern: Any) -> Any:
        try:
            return translate(pattern) if isinstance(pattern, str) else in_schema(pattern, translate)
        except InvalidPattern:
            return pattern

    if isinstance(schema, list):
        return [in_schema(each, translate) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for keyword, value in schema.items():
        if keyword == "pattern":
            found[keyword] = changed(value)
        elif keyword in _NAMED and isinstance(value, dict):
            rename = changed if keyword == "patternProperties" else str
            found[keyword] = {rename(name): in_schema(each, translate) for name, each in value.items()}
        else:
            found[keyword] = value if keyword in _VALUES else in_schema(value, translate)
    return found


@dataclass
class _Parser:
    """Parses a pattern and writes it.

    modes: those of the modifiers "i", "m" and "s" that apply at the present place.
    """

    text: str
    engine: Engine
    at: int = 0
    depth: int = 0
    modes: frozenset[str] = frozenset()
    closed: set[int] = field(default_factory=set)
    opened: int = 0
    names: dict[str, list[int]] = field(default_factory=dict)
    count: int = 0

    def translated(self) -> str:
        self.count, self.names = _groups(self.text)
        found = self.disjunction()
        if self.at < len(self.text):
            raise self.wrong("a parenthesis is closed that was not opened")
        return found

    def wrong(self, why: str) -> InvalidPattern:
        return InvalidPattern(f"{self.text!r} is not a regular expression of ECMA-262: {why} (at {self.at})")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, expected: str) -> bool:
        """Pass a text if it comes next. Return whether it did."""
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def disjunction(self) -> str:
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise self.wrong("it is nested too deeply")
        parts = [self.alternative()]
        while self.take("|"):
            parts.append(self.alternative())
        self.depth -= 1
        return "|".join(parts)

    def alternative(self) -> str:
        found = []
        while self.at < len(self.text) and self.peek() not in "|)":
            found.append(self.term())
        return "".join(found)

    def term(self) -> str:
        char = self.peek()
        if char in "*+?" or _COUNT.match(self.text, self.at):
            raise self.wrong("there is nothing to repeat")
        assertion = self.assertion()
        if assertion is not None:
            return assertion
        return self.quantified(self.atom())

    def assertion(self) -> str | None:
        if self.take("^"):
            return f"(?:^|(?<={self.engine.charset(LINE_ENDS)}))" if "m" in self.modes else "^"
        if self.take("$"):
            return f"(?={self.engine.charset(LINE_ENDS)}|{self.engine.end})" if "m" in self.modes else self.engine.end
        for escape, inverted in (("\\b", False), ("\\B", True)):
            if self.take(escape):
                return boundary(self.engine, inverted=inverted)
        for look in ("(?=", "(?!", "(?<=", "(?<!"):
            if self.take(look):
                return f"{look}{self.inside()})"
        return None

    def inside(self) -> str:
        """Return the content of a group, and pass its end."""
        found = self.disjunction()
        if not self.take(")"):
            raise self.wrong("a parenthesis is not closed")
        return found

    def quantified(self, atom: str) -> str:
        found = _COUNT.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
            least, comma, most = found.groups()
            if most and int(most) < int(least):
                raise self.wrong("a count has its bounds in the wrong order")
            count = found.group() if not comma or most else f"{{{least},}}"
        elif self.peek() and self.peek() in "*+?":
            count = self.peek()
            self.at += 1
        else:
            return atom
        lazy = "?" if self.take("?") else ""
        if self.peek() and self.peek() in "*+?":
            raise self.wrong("a quantifier is repeated")
        return f"{atom}{count}{lazy}"

    def atom(self) -> str:
        char = self.peek()
        if char == ".":
            self.at += 1
            return self.engine.charset(ANY if "s" in self.modes else LINE_ENDS.others())
        if char == "(":
            return self.group()
        if char == "[":
            return self.engine.charset(self.brackets())
        if char == "\\":
            return self.escape()
        if char == "{" and self.text.startswith("{,", self.at):
            raise self.wrong("a count needs a lower bound")
        self.at += 1
        return self.engine.charset(Charset.one(ord(char)))

    def group(self) -> str:
        self.at += 1
        if self.take("?:"):
            return f"(?:{self.inside()})"
        modifiers = _MODIFIERS.match(self.text, self.at)
        if modifiers is not None:
            return self.modified(modifiers)
        if self.take("?<"):
            self.at = self.text.index(">", self.at) + 1  # `_groups` has checked the name
        elif self.peek() == "?":
            raise self.wrong("a group can't begin like this")
        self.opened += 1
        number = self.opened
        found = self.inside()
        self.closed.add(number)
        return f"({found})"

    def modified(self, modifiers: re.Match[str]) -> str:
        add, remove = modifiers.group(1), modifiers.group(2) or ""
        if len(set(add + remove)) < len(add + remove) or not add + remove:
            raise self.wrong("the modifiers of a group contradict each other")
        self.at = modifiers.end()
        before, self.modes = self.modes, (self.modes | set(add)) - set(remove)
        changed = "i" in self.modes, "i" in before
        start = "?i:" if changed == (True, False) else "?-i:" if changed == (False, True) else "?:"
        found = f"({start}{self.inside()})"
        self.modes = before
        return found

    def escape(self) -> str:
        following = self.text[self.at + 1 : self.at + 2]
        if following and following in "123456789":
            digits = re.compile(r"\d+", re.ASCII).match(self.text, self.at + 1)
            assert digits is not None
            if int(digits.group()) > self.count:
                raise self.wrong(f"there is no group {digits.group()}")
            self.at = digits.end()
            return self.reference([int(digits.group())])
        if following == "k" and self.names:
            name = _NAME.match(self.text, self.at + 2)
            if name is None or name[1] not in self.names:
                raise self.wrong("it refers to a group that it does not have")
            self.at = name.end()
            return self.reference(self.names[name[1]])
        return self.engine.charset(self.character_escape(in_class=False))

    def reference(self, groups: list[int]) -> str:
        """Return a reference to that group of these which took part. A group that is not closed yet is empty."""
        return "".join(self.engine.reference(each) for each in groups if each in self.closed) or "(?:)"

    def character_escape(self, *, in_class: bool) -> Charset:
        """Pass an escape of characters. Return the characters."""
        self.at += 1
        char = self.peek()
        self.at += 1
        if char in _CONTROLS:
            return Charset.one(_CONTROLS[char])
        if char.lower() in CLASSES:
            found = CLASSES[char.lower()]
            return found if char.islower() else found.others()
        if char in ("p", "P"):
            return self.property(char)
        if char == "b" and in_class:
            return Charset.one(8)
        return Charset.one(self.code(char))

    def code(self, char: str) -> int:
        """Return the character of an escape for one character.

        char: the character after the backslash, which was passed.
        """
        if char == "0" and not self.peek().isdecimal():
            return 0
        if char == "c" and self.peek().isascii() and self.peek().isalpha():
            self.at += 1
            return ord(self.text[self.at - 1]) % 32
        if char == "x":
            return self.hexadecimal(r"[0-9A-Fa-f]{2}")
        if char == "u":
            if self.take("{"):
                found = self.hexadecimal(r"[0-9A-Fa-f]+(?=\})")
                self.at += 1
                if found > _END:
                    raise self.wrong("there is no such character")
                return found
            return self.unit()
        if char and not (char.isascii() and char.isalnum()):
            return ord(char)
        raise self.wrong(f"there is no escape \\{char}" if char else "a backslash is the last character")

    def unit(self) -> int:
        """Return the character of one unit of UTF-16, or of two that form a pair."""
        high = self.hexadecimal(r"[0-9A-Fa-f]{4}")
        low = re.compile(r"\\u(D[C-Fc-f][0-9A-Fa-f]{2})", re.IGNORECASE).match(self.text, self.at)
        if 0xD800 <= high < 0xDC00 and low is not None:
            self.at = low.end()
            return 0x10000 + ((high - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        return high

    def hexadecimal(self, form: str) -> int:
        found = re.compile(form).match(self.text, self.at)
        if found is None:
            raise self.wrong("hexadecimal digits are missing")
        self.at = found.end()
        return int(found.group(), 16)

    def property(self, escape: str) -> Charset:
        """Pass the name of a property of characters. Return the characters that have it; with the escape "P", all
        others.
        """
        found = re.compile(r"\{(?:(\w+)=)?(\w+)\}", re.ASCII).match(self.text, self.at)
        if found is None:
            raise self.wrong("the name of a property is missing: \\p{...}")
        self.at = found.end()
        name, value = found.groups()
        categories = CATEGORIES.get(value, ()) if name in (None, "General_Category", "gc") else ()
        is_script = name in ("Script", "sc", "Script_Extensions", "scx") and value in SCRIPTS
        is_binary = name is None and value in BINARY
        if not (categories or is_script or is_binary):
            raise self.wrong(f"there is no property {found.group()}")
        chars = self.engine.property(categories, value if is_binary else "", f"\\{escape}{found.group()}")
        return chars if chars.named or escape == "p" else chars.others()

    def brackets(self) -> Charset:
        """Pass a class in brackets. Return its characters."""
        self.at += 1
        inverted = self.take("^")
        found: list[Charset] = []
        while not self.take("]"):
            if self.at >= len(self.text):
                raise self.wrong("a bracket is not closed")
            first = self.class_atom()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = self.class_atom()
                bounds = [each.ranges[0][0] for each in (first, last) if _is_one(each)]
                if len(bounds) < 2:
                    raise self.wrong("a range has a class as its bound")
                if bounds[1] < bounds[0]:
                    raise self.wrong("a range has its bounds in the wrong order")
                found.append(Charset(((bounds[0], bounds[1]),)))
            else:
                found.append(first)
        return Charset.union(found, inverted=inverted)

    def class_atom(self) -> Charset:
        char = self.peek()
        if char == "\\":
            return self.character_escape(in_class=True)
        self.at += 1
        return Charset.one(ord(char))


def _groups(text: str) -> tuple[int, dict[str, list[int]]]:
    """Return the number of groups in a pattern, and the numbers of groups with names."""
    names: dict[str, list[int]] = {}
    count, at, in_class = 0, 0, False
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "[":
            in_class = True
        elif char == "]":
            in_class = False
        elif char == "(" and not in_class:
            is_named = text.startswith("?<", at + 1) and text[at + 3 : at + 4] not in ("=", "!")
            if is_named:
                found = _NAME.match(text, at + 2)
                if found is None:
                    raise InvalidPattern(
                        f"{text!r} is not a regular expression of ECMA-262: the name of a group is wrong"
                    )
                names.setdefault(found[1], []).append(count + 1)
            count += is_named or not text.startswith("?", at + 1)
        at += 1
    for name, numbers in names.items():
        if len(numbers) > 1 and "|" not in text:
            raise InvalidPattern(f"{text!r} is not a regular expression of ECMA-262: two groups are called {name}")
    return count, names


def _is_one(chars: Charset) -> bool:
    return not chars.named and len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]
