"""The messages that pylogd's source can write, to check those that documents show.

A string of the source is a template: `{name}`, `%s` and the holes of f-strings stand for any text. A line of a document
is a message of pylogd if a template matches all of it, or, for templates that are parts of a message, the largest part.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pylogd

_HOLE = re.compile(r"\{[^{}]*\}|%[-+ #0]*[\d.]*[sdrfx]")
#: Templates with fewer letters than this match too much.
_LEAST_LETTERS = 7


@cache
def templates() -> dict[str, tuple[str, re.Pattern[str]]]:
    """Return each text of the source with letters enough, its longest part, and a pattern of what it can become."""
    root = Path(pylogd.__file__).parent
    found: dict[str, tuple[str, re.Pattern[str]]] = {}
    for path in sorted(root.rglob("*.py")):
        for text in _texts(ast.parse(path.read_text("utf-8"))):
            parts = _HOLE.split(text)
            if sum(map(len, (re.sub(r"[^A-Za-z]", "", part) for part in parts))) >= _LEAST_LETTERS:
                pattern = "(.+?)".join(map(re.escape, parts))
                whole = re.compile(pattern.removesuffix("(.+?)") + "(.+)" * (parts[-1] == ""), re.DOTALL)
                found[text] = max(parts, key=len), whole
    return found


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value).replace("{", "").replace("}", "") if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )


def letters_explained(line: str) -> float:
    """Return the share of a line's characters, 0 to 1, that the best templates explain.

    Values that messages carry count as explained, if what is around them is.
    """
    line = line.strip()
    covered = [False] * len(line)
    for part, pattern in templates().values():
        for match in pattern.finditer(line) if part in line else ():
            for index in range(*match.span()):
                covered[index] = True
    return sum(covered) / len(line) if line else 1.0
