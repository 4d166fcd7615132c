"""`pylogd config`: show, change and compare the settings of topics, brokers and groups that are in use."""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import click

from pylogd.base.errors import PylogdError
from pylogd.cli.client_file import hide
from pylogd.cli.commands import Commands, Function
from pylogd.cli.common import assignments, bootstrap_option, connect
from pylogd.cli.names import group_names, topic_names
from pylogd.cli.output import confirm, note, output_option, print_records, yes_option
from pylogd.client import Admin
from pylogd.client.core.model import ConfigEntry
from pylogd.client.properties import parse_properties

Kind = Literal["topic", "broker", "group"]
#: The name of the entity whose settings apply to all brokers.
ALL_BROKERS: Final = "all"
_DEFAULT: Final = "default"


@click.group("config", cls=Commands)
def config() -> None:
    """Show, change and compare the settings of topics, brokers and groups.

    These are the settings in use, as the brokers tell them; `pylogd settings` explains them. KIND is topic, broker (by
    its id, or "all" for what is set for all brokers at run time) or group (of the newer protocol).

    \b
    pylogd config get topic events
    pylogd config get broker 1 log.retention.ms num.partitions
    pylogd config set topic events retention.ms=86400000
    pylogd config edit topic events              in your editor
    pylogd config diff topic events              what is not as by default
    pylogd config diff broker 1 2                what differs
    """


def _complete_name(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    kind = ctx.params.get("kind")
    if kind == "broker":
        return []
    return (group_names if kind == "group" else topic_names)(ctx, parameter, incomplete)


def _entity(function: Function) -> Function:
    """Add the arguments KIND and NAME."""
    function = click.argument("name", metavar="NAME", shell_complete=_complete_name)(function)
    return click.argument("kind", metavar="KIND", type=click.Choice(["topic", "broker", "group"]))(function)


def _settings(admin: Admin, kind: Kind, name: str, keys: Sequence[str] | None = None) -> dict[str, ConfigEntry]:
    """Return the settings of an entity by name. Raises ClickException if it does not have one of `keys`."""
    asked = "" if kind == "broker" and name == ALL_BROKERS else name
    if kind == "broker" and asked and not asked.isdecimal():
        raise click.BadParameter(f'{name!r} is neither the id of a broker nor "{ALL_BROKERS}"', param_hint="NAME")
    found = {entry.name: entry for entry in admin.describe_configs(kind, asked)}
    for key in keys or ():
        if key not in found:
            near = difflib.get_close_matches(key, found, 1)
            raise click.ClickException(
                f"{kind} {name} has no setting {key}" + (f"; did you mean {near[0]}?" if near else "")
            )
    return {key: found[key] for key in keys} if keys else found


def _record(entry: ConfigEntry) -> dict[str, Any]:
    value = None if entry.value is None else hide(entry.name, entry.value) if entry.sensitive else entry.value
    return {
        "name": entry.name, "value": value, "source": entry.source, "read_only": entry.read_only,
        "sensitive": entry.sensitive,
    }  # fmt: skip


@config.command("get")
@_entity
@click.argument("keys", nargs=-1, metavar="[SETTING]...")
@output_option
@bootstrap_option
def get(kind: Kind, name: str, keys: Sequence[str], bootstrap: str) -> None:
    """Show settings of a topic, broker or group: all, or the named ones.

    Prints for each: name, value, source (where the value is from). Values of secrets are not told by brokers.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = _settings(admin, kind, name, keys)
    print_records(["name", "value", "source"], [_record(entry) for entry in found.values()])


@config.command("set")
@_entity
@click.argument("changes", nargs=-1, metavar="[SETTING=VALUE]...", callback=assignments)
@click.option("-d", "--delete", "deleted", multiple=True, metavar="SETTING",
              help="Go back to the default. Repeatable.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only check whether the brokers accept it.")
@bootstrap_option
def set_(kind: Kind, name: str, changes: dict[str, str], deleted: Sequence[str], dry_run: bool, bootstrap: str) -> None:
    """Change settings of a topic, broker or group. Those that are not named stay.

    \b
    pylogd config set topic events retention.ms=86400000 cleanup.policy=delete
    pylogd config set topic events --delete retention.ms
    pylogd config set broker all log.cleaner.threads=2
    """
    if not (changes or deleted):
        raise click.UsageError("nothing to change: give SETTING=VALUE or --delete SETTING")
    with connect(bootstrap) as connected, Admin(connected) as admin:
        _alter(admin, kind, name, {**changes, **dict.fromkeys(deleted)}, dry_run)


def _alter(admin: Admin, kind: Kind, name: str, changes: Mapping[str, str | None], dry_run: bool) -> None:
    asked = "" if kind == "broker" and name == ALL_BROKERS else name
    admin.alter_configs(kind, asked, changes, validate_only=dry_run)
    note(f"{kind} {name}: {', '.join(changes)} {'could be changed' if dry_run else 'changed'}")


@config.command("edit")
@_entity
@yes_option
@bootstrap_option
def edit(kind: Kind, name: str, yes: bool, bootstrap: str) -> None:
    """Change settings of a topic, broker or group in an editor: that of VISUAL or EDITOR.

    Lines are `name=value`; those that are not as by default come first. A line that is removed, or made a comment, goes
    back to the default. On a terminal the changes are shown, and asked about.
    """
    if not (sys.stdin.isatty() or os.environ.get("VISUAL") or os.environ.get("EDITOR")):
        raise click.UsageError("there is no terminal for an editor: set EDITOR, or use `pylogd config set`")
    with connect(bootstrap) as connected, Admin(connected) as admin:
        before = _settings(admin, kind, name)
        text = click.edit(_as_text(kind, name, before), extension=".properties")
        if text is None:
            note("Nothing was changed.")
            return
        with _kept_on_error(text):
            changes = _changes(before, text)
            for key, value in changes.items():
                note(f"{key}: {before[key].value if key in before else None} -> {_DEFAULT if value is None else value}")
            if not changes:
                note("Nothing was changed.")
                return
            confirm(f"Change these {len(changes)} settings of {kind} {name}?", yes)
            _alter(admin, kind, name, changes, False)


@contextmanager
def _kept_on_error(text: str) -> Iterator[None]:
    """Save an edited text in a file if the `with` block fails, so that the user can continue with it."""
    try:
        yield
    except (click.ClickException, PylogdError, KeyboardInterrupt):
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="pylogd-config-", suffix=".properties", delete=False
        ) as file:
            file.write(text)
        note(f"Nothing was changed. What you edited is in {file.name}")
        raise


def _is_set(entry: ConfigEntry, kind: Kind) -> bool:
    """Return whether the setting was set for this entity itself, at run time."""
    return "run time" in entry.source if kind == "broker" else entry.source == kind


def _as_text(kind: Kind, name: str, found: Mapping[str, ConfigEntry]) -> str:
    """Return the text to edit, in which settings that have their defaults are comments."""
    lines = [f"# Settings of {kind} {name}. Remove a line to go back to the default."]
    lines += [f"{entry.name}={_escaped(entry.value)}" for entry in found.values() if _is_set(entry, kind)]
    lines += ["", "# By default, or from the brokers' files:"]
    rest = (entry for entry in found.values() if not (_is_set(entry, kind) or entry.read_only or entry.sensitive))
    return "\n".join([*lines, *(f"#{entry.name}={_escaped(entry.value)}" for entry in rest), ""])


def _escaped(value: str | None) -> str:
    """Return a value with the escapes of properties files."""
    return (value or "").replace("\\", "\\\\").replace("\n", "\\n")


def _changes(before: Mapping[str, ConfigEntry], text: str) -> dict[str, str | None]:
    """Return the changes in an edited text; None as a value restores a default. Raises ClickException."""
    try:
        after = parse_properties(text)
    except ValueError as error:
        raise click.ClickException(f"can't read the edited text: {error}") from None
    changes: dict[str, str | None] = {}
    for key, value in after.items():
        if key not in before or (before[key].value or "") != value:
            changes[key] = value
    for key, entry in before.items():
        if key not in after and entry.source in ("topic", "group", "broker, at run time"):
            changes[key] = None
    return changes


@config.command("diff")
@_entity
@click.argument("other", required=False, metavar="[OTHER]", shell_complete=_complete_name)
@output_option
@bootstrap_option
@click.pass_context
def diff(ctx: click.Context, kind: Kind, name: str, other: str | None, bootstrap: str) -> None:
    """Show which settings of NAME are not as by default; or, with OTHER of the same kind, which differ.

    Prints for each: name, value, source; with OTHER name, value, other_value. Exit status 1 if there are any with
    OTHER, 0 otherwise.

    \b
    pylogd config diff topic events
    pylogd config diff topic events events-copy
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = _settings(admin, kind, name)
        others = {} if other is None else _settings(admin, kind, other)
    if other is None:
        rows = [_record(entry) for entry in found.values() if entry.source != _DEFAULT]
        print_records(["name", "value", "source"], rows)
        return
    differing = [
        {"name": key, "value": _value(found.get(key)), "other_value": _value(others.get(key))}
        for key in sorted(found.keys() | others.keys())
        if _value(found.get(key)) != _value(others.get(key))
    ]
    if not differing and sys.stderr.isatty():
        note(f"{name} and {other} have the same settings")
    print_records(["name", "value", "other_value"], differing)
    ctx.exit(1 if differing else 0)


def _value(entry: ConfigEntry | None) -> str | None:
    return None if entry is None else entry.value
