"""Print the page of the site that is the reference of `pylogd.client`, from docstrings."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable
from typing import Any

from pylogd import client

_HEAD = """\
# Client API

The names of `pylogd.client`. `pylogd.client.aio` and `pylogd.client.deferred` have the same ones, with coroutines and
Deferreds where the methods below wait. [client.md](client.md) is the guide, and has the tables of options.
"""
#: Sections, and which names belong to each, in the order of the page. What no section has is among "Values".
_SECTIONS = {
    "Clients": ("Producer", "Consumer", "Admin", "AuditedProducer", "Cluster", "MessageStream"),
    "Options": ("ClientOptions", "ProducerOptions", "ConsumerOptions", "SecurityOptions", "AuditOptions"),
}
#: A line of a docstring that explains parameters or fields.
_PARAMETER = re.compile(r"^([a-z]\w*\*?(?:, [a-z]\w*\*?)*): ")
_FEWEST_PARAMETERS = 2  # of a list


def text_of(thing: Any) -> str:
    """Return a docstring as Markdown. Lines `name: meaning` become a list; other indented lines become code."""
    text = "\n\n".join(map(_listed, inspect.cleandoc(inspect.getdoc(thing) or "").split("\n\n")))
    return re.sub(r"^( {4}.*(?:\n {4}.*)*)", lambda found: f"\n{found[0]}\n", text, flags=re.MULTILINE)


def _listed(paragraph: str) -> str:
    """Return a paragraph as a list if at least two of its lines begin with names of parameters and a colon."""
    lines = paragraph.split("\n")
    if sum(bool(_PARAMETER.match(line)) for line in lines) < _FEWEST_PARAMETERS:
        return paragraph
    items = [_PARAMETER.sub(_as_item, line) if _PARAMETER.match(line) else f"  {line.strip()}" for line in lines]
    first = next(number for number, line in enumerate(lines) if _PARAMETER.match(line))
    return "\n".join([*lines[:first], *([""] if first else []), *items[first:]])


def _as_item(found: re.Match[str]) -> str:
    return f"* {', '.join(f'`{name}`' for name in found[1].split(', '))}: "


def signature_of(name: str, function: Callable[..., Any]) -> str:
    """Return `name(parameters)`, without annotations, which the docstring explains where they matter."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return f"{name}(...)"
    words, keyword_only = [], False
    for parameter in parameters:
        if parameter.name == "self" or parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            words.append("*")
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        keyword_only = keyword_only or star == "*"
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        words.append(f"{star}{parameter.name}{default}")
    return f"{name}({', '.join(words)})"


def _default(value: Any) -> str:
    return "..." if " at 0x" in repr(value) or len(repr(value)) > 40 else repr(value)


def methods(kind: type) -> list[tuple[str, Any]]:
    """Return the public methods and properties of a class that have docstrings of their own, in their order."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("pylogd"):
            for name, value in vars(base).items():
                if not name.startswith("_") and name not in found and getattr(value, "__doc__", None):
                    found[name] = value
    return [(name, value) for name, value in found.items() if callable(value) or isinstance(value, property)]


def entry(name: str, thing: Any) -> list[str]:
    """Return the lines about one name."""
    if not inspect.isclass(thing):
        words = text_of(thing) if callable(thing) else f"`{thing!r}`"
        return [f"### {name}", "", f"`{signature_of(name, thing)}`" if callable(thing) else "", "", words, ""]
    lines = [f"### {name}", ""]
    if issubclass(thing, enum.Enum):
        return [*lines, text_of(thing), "", ", ".join(f"`{member.name}`" for member in thing), ""]
    if not issubclass(thing, BaseException):
        lines += [f"`{signature_of(name, thing)}`", ""]
    lines += [text_of(thing), ""]
    if issubclass(thing, BaseException | tuple):
        return lines
    for method, value in methods(thing):
        shown = f"`{method}`" if isinstance(value, property) else f"`{signature_of(method, _function(value))}`"
        summary = text_of(value).split("\n")
        lines += [f"* {shown}: {summary[0]}", *(f"  {line}".rstrip() for line in summary[1:])]
    return [*lines, ""]


def _function(value: Any) -> Any:
    return value.__func__ if isinstance(value, classmethod | staticmethod) else value


def page() -> str:
    """Return the whole page."""
    names = list(client.__all__)
    errors = [name for name in names if _is_error(getattr(client, name))]
    sections = {title: [name for name in wanted if name in names] for title, wanted in _SECTIONS.items()}
    placed = {name for section in sections.values() for name in section} | set(errors)
    sections["Values"] = sorted((name for name in names if name not in placed), key=str.lower)
    sections["Errors"] = sorted(errors)
    lines = [_HEAD]
    for title, section in sections.items():
        lines += [f"## {title}", ""]
        for name in section:
            lines += entry(name, getattr(client, name))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException)


if __name__ == "__main__":
    print(page(), end="")
