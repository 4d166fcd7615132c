"""Print results, in the format that the user chose, and messages.

Strategy: a command has its result as records, which are mappings of field names to values, or as one document. All
formats show the same fields under the same names. `--output` chooses the format, and nothing else does: a pipe gets
what a terminal gets, but without colours, and in tables without line breaks inside of cells.

Rules: results go to standard output, messages to standard error. Subcommands print with these functions, which escape
what a terminal would obey, and not with `click.echo`.
"""

# ruff: noqa: PLC0415 - rich, yaml and json are imported only where they are needed, so that other commands start fast
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import click

from pylogd.base.process.printable import printable, printable_json
from pylogd.cli.commands import Function

#: For each field, the function that makes the text of its values for tables.
Shown = Mapping[str, Callable[[Any], str]]

FORMATS: Final = ("table", "json", "yaml", "tsv")
_FORMAT: Final = "pylogd.output"  # the context's key for the format
_NONE: Final = "-"
_NO_FOLD: Final = 1_000_000  # characters of a line of YAML


def output_option(function: Function) -> Function:
    """Add the options `--output` and `--json` to a command."""
    as_json = click.option(
        "--json", "as_json", is_flag=True, expose_value=False, callback=_keep_json, help="Short for --output json."
    )(function)
    return click.option(
        "--output",
        type=click.Choice(FORMATS),
        envvar="PYLOGD_OUTPUT",
        is_eager=True,  # --json replaces what the environment says
        expose_value=False,
        callback=_keep_format,
        help="Format of the result; tsv is a line for each record, with tabs and without a heading. Also from "
        "PYLOGD_OUTPUT  [default: table]",
    )(as_json)


def _keep_format(ctx: click.Context, _parameter: click.Parameter, name: str | None) -> None:
    if name is not None:
        ctx.meta[_FORMAT] = name


def _keep_json(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[_FORMAT] = "json"


def default_format(ctx: click.Context, name: str) -> None:
    """Set the format for commands without `--output`."""
    ctx.meta.setdefault(_FORMAT, name)


def output_format() -> str:
    """Return the chosen format, one of `FORMATS`."""
    ctx = click.get_current_context(silent=True)
    return "table" if ctx is None else ctx.meta.get(_FORMAT, "table")


def print_line(text: str, *, err: bool = False, bold: bool = False, colour: str | None = None) -> None:
    """Print one line. All text for people is printed here: control characters of terminals are escaped.

    err: print on standard error, not on standard output.
    bold, colour: the style of the line on a terminal.
    """
    safe = printable(text)
    click.echo(click.style(safe, bold=bold or None, fg=colour) if bold or colour else safe, err=err)


def print_script(text: str) -> None:
    """Print a program of pylogd's own for a shell. Nothing in it is escaped."""
    click.echo(text)


def print_json(value: Any) -> None:
    """Print a JSON value on standard output, indented."""
    import json

    click.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_yaml(value: Any) -> None:
    """Print a value as a YAML document on standard output."""
    import yaml

    plain = _plain(value)
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=_NO_FOLD)
    if printable(text, keep="\n") != text:  # then every character that is not ASCII is escaped, which keeps the value
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, width=_NO_FOLD)
    click.echo(text, nl=False)


def _plain(value: Any) -> Any:
    """Return a value in which the types of JSON replace their subclasses."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value


def print_document(value: Any) -> bool:
    """Print a value as JSON or YAML, if that is the format. Return whether it was printed."""
    form = output_format()
    if form == "json":
        print_json(value)
    elif form == "yaml":
        print_yaml(value)
    return form in ("json", "yaml")


def print_records(
    columns: Sequence[str], records: Iterable[Mapping[str, Any]], shown: Shown | None = None, *, lines: bool = False
) -> None:
    """Print records in the chosen format.

    columns: the fields that tables show; `>` before a name aligns the column to the right. JSON and YAML show all
    fields.
    shown: the functions that make the text of fields in tables.
    lines: whether JSON has a line for each record, in place of a list.
    """
    form = output_format()
    if form == "json" and lines:
        import json

        for record in records:
            click.echo(printable_json(json.dumps(dict(record), ensure_ascii=False)))
    elif form in ("json", "yaml"):
        print_document([dict(record) for record in records])
    else:
        names = [column.lstrip(">") for column in columns]
        texts: Shown = {} if shown is None or form == "tsv" else shown
        print_table(columns, ([_cell(record.get(name), texts.get(name)) for name in names] for record in records))


def _cell(value: Any, show: Callable[[Any], str] | None) -> str:
    if value is None or value == "":
        return _NONE
    if show is not None:
        return show(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or _NONE
    return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table with a heading. In the format tsv, print lines with tabs, and no heading.

    `>` before a column's name aligns the column to the right. Cells are escaped, so that they can't add columns or
    lines. On a terminal, long cells are continued on further lines, so that the table fits.
    """
    texts = [[printable(str(cell)) for cell in row] for row in rows]
    if output_format() == "tsv":
        for row in texts:
            click.echo("\t".join(row))
        return
    from pylogd.cli.tables import layout

    heading, *lines = layout(columns, texts, _terminal_width() if sys.stdout.isatty() else None)
    print_line(heading, bold=True)
    for line in lines:
        click.echo(line)


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def note(text: str) -> None:
    """Print a message to the user on standard error."""
    print_line(text, err=True)


def one_line(error: Exception) -> str:
    """Return the text of an error as one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


yes_option = click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")


def confirm(question: str, yes: bool) -> None:
    """Ask the user on a terminal, unless `yes`. Any answer but yes ends the command with exit status 1."""
    if not yes and sys.stdin.isatty() and not click.confirm(printable(question), err=True):
        raise click.exceptions.Exit(1)


def fail_on(errors: Sequence[str]) -> None:
    """Print errors, if there are any, and end the command. The last one is the command's error."""
    for error in errors[:-1]:
        note(f"Error: {error}")
    if errors:
        raise click.ClickException(errors[-1])


def secret(question: str) -> str:
    """Ask for a password twice, hidden, on a terminal. Without a terminal, read one line of standard input."""
    if sys.stdin.isatty():
        answer: str = click.prompt(printable(question), hide_input=True, confirmation_prompt=True, err=True)
        return answer
    return sys.stdin.readline().rstrip("\r\n")
