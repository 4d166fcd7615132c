"""Print for people and for programs.

Rules: on a terminal, output is a table; in a pipe, a line for each row with tabs between the columns and no heading.
Subcommands print with these functions, which escape what a terminal would obey, and not with `click.echo`.
"""

# ruff: noqa: PLC0415 - rich and json are imported only where they are needed, so that other commands start fast
from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from pylogd.process.printable import printable, printable_json


def print_line(text: str, *, err: bool = False, bold: bool = False, colour: str | None = None) -> None:
    """Print one line. All text for people goes through here: what a terminal would obey is escaped.

    err: on standard error. bold, colour: how to show it on a terminal.
    """
    safe = printable(text)
    click.echo(click.style(safe, bold=bold or None, fg=colour) if bold or colour else safe, err=err)


def print_json(value: Any, *, indented: bool = False) -> None:
    """Print a JSON value on standard output; indented on a terminal, or always with `indented`."""
    import json

    text = json.dumps(value, indent=2 if indented or sys.stdout.isatty() else None, ensure_ascii=False)
    click.echo(printable_json(text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, for_people: bool = False) -> None:
    """Print rows as a table on a terminal, or always with `for_people`; as lines with tabs in a pipe.

    `>` before a column's name aligns the column to the right. Cells are escaped, so that none adds a column or a line.
    """
    if not for_people and not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(printable(str(cell)) for cell in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:  # as Text, since rich takes [...] in a str for markup
        table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else printable(str(cell))) for cell in row))
    Console().print(table)


def note(text: str) -> None:
    """Print a message to the user on standard error."""
    print_line(text, err=True)


def confirmed(question: str) -> bool:
    """Ask the user on a terminal. Return whether the answer is yes, or True if there is nobody to ask."""
    return not sys.stdin.isatty() or click.confirm(printable(question), err=True)


def secret(question: str) -> str:
    """Ask for a password, twice on a terminal, where it is not shown. Else read it from standard input, one line."""
    if sys.stdin.isatty():
        answer: str = click.prompt(printable(question), hide_input=True, confirmation_prompt=True, err=True)
        return answer
    return sys.stdin.readline().rstrip("\r\n")
