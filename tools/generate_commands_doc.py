"""Print the page of the site that explains every command, from the commands themselves."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Final

import click

from pylogd.cli.main import pylogd

_HEAD: Final = """\
# Each command

What `pylogd COMMAND --help` says. [Commands](commands.md) has what all commands have in common.
"""
#: Options that docs/commands.md explains, and what a command's entry says of them.
_COMMON: Final = {
    "--bootstrap-server": "connection",
    "--profile": "connection",
    "--command-config": "connection",
    "--timeout": "connection",
    "--broker-timeout": "connection",
    "--output": "output",
    "--json": "output",
}
_WIDTH: Final = 120


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD.rstrip()]
    for name, command in commands(pylogd, "pylogd"):
        parts.append(_entry(name, command))
    return "\n\n".join(parts) + "\n"


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands below a group by their full names, groups before what is in them."""
    ctx = click.Context(group, info_name=name)
    for each in group.list_commands(ctx):
        command = group.get_command(ctx, each)
        assert command is not None
        yield f"{name} {each}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {each}")


def _entry(name: str, command: click.Command) -> str:
    """Return the section about a command."""
    level = "##" if name.count(" ") == 1 else "###"
    # Versions of click differ in the brackets of COMMAND, and in the case of choices.
    pieces = command.collect_usage_pieces(click.Context(command, info_name=name))
    usage = " ".join([name, *pieces]).replace("[COMMAND]", "COMMAND")
    lines = [f"{level} {name}", *_prose(command.help or ""), "", "```text", usage, "```"]
    options = [one for one in command.params if isinstance(one, click.Option) and not _COMMON.get(_name(one))]
    own = [_row(one) for one in options if not one.hidden]
    shared = dict.fromkeys(_COMMON[_name(one)] for one in command.params if _COMMON.get(_name(one)))
    if own:
        lines += ["", "| option | what it is |", "| --- | --- |", *own]
    if shared:
        which = " and ".join(f"[{kind} options](commands.md#{kind}-options)" for kind in reversed(shared))
        lines += ["", f"Also the {which}."]
    return "\n".join(lines)


def _name(parameter: click.Parameter) -> str:
    """Return the name by which an option is known in `_COMMON`; a command's own --timeout is not the common one."""
    if not isinstance(parameter, click.Option) or (
        "--timeout" in parameter.opts and parameter.name != "broker_timeout"
    ) or ("--profile" in parameter.opts and parameter.expose_value):  # fmt: skip
        return ""
    return max(parameter.opts, key=len)


def _prose(text: str) -> Iterator[str]:
    """Yield the lines of a help text: paragraphs are filled, examples are code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        yield ""
        if lines and lines[0] == "\b":
            yield from ["```text", *lines[1:], "```"]
        else:
            yield from textwrap.wrap(_code(" ".join(lines)), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _code(text: str) -> str:
    """Mark options in prose as code, unless they are within such a mark."""
    pieces = text.split("`")
    outside = [re.sub(r"(?<![\w`-])(--[a-z][\w-]*)", r"`\1`", piece) for piece in pieces[::2]]
    outside = [re.sub(r"<(\w+)>", r"&lt;\1&gt;", piece) for piece in outside]
    pieces[::2] = outside
    return "`".join(pieces)


def _row(option: click.Option) -> str:
    """Return an option as a row of a table."""
    found = option.get_help_record(click.Context(click.Command("none")))
    assert found is not None
    names, text = found
    if isinstance(option.type, click.Choice):
        for choice in map(str, option.type.choices):
            names = re.sub(rf"(?<=[\[|]){re.escape(choice)}(?=[\]|])", choice, names, flags=re.IGNORECASE)
    escaped = " ".join(text.split()).replace("|", "\\|")
    return f"| `{names.replace('|', chr(92) + '|')}` | {_code(escaped)} |"


if __name__ == "__main__":
    print(page(), end="")
