"""`pylogd schemas delete`, `schemas config` and `schemas mode`: what a registry keeps, and what it accepts."""

# ruff: noqa: PLC0415 - the client is imported only where it is needed, so that other commands start fast
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from pylogd.cli.commands import Commands
from pylogd.cli.output import confirmed, note, output_option, print_records
from pylogd.cli.schema_options import registry_api, registry_options

_LEVELS: Final = ["NONE", *(f"{way}{more}" for way in ("BACKWARD", "FORWARD", "FULL") for more in ("", "_TRANSITIVE"))]
_MODES: Final = ["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD"]
#: The codes of the registry's API for a subject that has no settings, or no mode, of its own.
_NOTHING_OWN: Final = frozenset({40408, 40409})
_UNKNOWN_SUBJECT: Final = 40401
_COLUMNS: Final = {"config": ("subject", "compatibilityLevel", "normalize", "inherited"),
                   "mode": ("subject", "mode", "inherited")}  # fmt: skip


@click.command()
@registry_options
@click.option("--permanent", is_flag=True, help="Delete for good what was deleted before without this option.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@output_option
@click.argument("subject")
@click.argument("version", required=False, metavar="[VERSION|latest]")
def delete(
    url: str | None, config: Path | None, permanent: bool, yes: bool, subject: str, version: str | None
) -> None:  # fmt: skip
    """Delete a version of SUBJECT, or all of them. On a terminal, asks for confirmation.

    A deleted version can't be found by its number any more, and new schemas are not compared with it. Messages that
    were written with it can still be read, since its id stays. A second deletion with --permanent removes the id too:
    messages with that id become unreadable.

    Prints for each version: subject, version.

    \b
    pylogd schemas delete flights-value 3
    pylogd schemas delete flights-value 3 --permanent
    """
    from pylogd.client.registry.api_client import path_of

    api = registry_api(url, config)
    what = f"all versions of {subject}" if version is None else f"version {version} of {subject}"
    if not yes and not confirmed(f"Delete {what}{' for good' if permanent else ''}?"):
        raise click.exceptions.Exit(1)
    parts = ["subjects", subject, *([] if version is None else ["versions", version])]
    answer = api.send("DELETE", path_of(*parts), query={"permanent": "true" if permanent else "false"})
    versions = answer if isinstance(answer, list) else [answer]
    print_records(("subject", ">version"), [{"subject": subject, "version": number} for number in versions])


@click.group(cls=Commands)
def config() -> None:
    """Show and change which new schemas a registry accepts for a subject.

    A subject without settings of its own has those of the registry, which are shown and changed without a SUBJECT.

    \b
    pylogd schemas config get flights-value
    pylogd schemas config set flights-value --compatibility FULL
    pylogd schemas config reset flights-value
    """


@click.group(cls=Commands)
def mode() -> None:
    """Show and change whether a registry accepts changes to a subject.

    A subject without a mode of its own has that of the registry, which is shown and changed without a SUBJECT.

    \b
    pylogd schemas mode get
    pylogd schemas mode set flights-value READONLY
    pylogd schemas mode reset flights-value
    """


@config.command("get")
@registry_options
@output_option
@click.argument("subject", required=False)
def get_config(url: str | None, config: Path | None, subject: str | None) -> None:
    """Show the compatibility level of SUBJECT, or of the registry.

    Prints: subject, compatibilityLevel, normalize (write equivalent schemas alike), inherited (from the registry).
    """
    _show("config", url, config, subject)


@config.command("set")
@registry_options
@click.option("--compatibility", type=click.Choice(_LEVELS, case_sensitive=False), metavar="LEVEL",
              help=f"Which earlier versions a new one must be compatible with: {', '.join(_LEVELS)}.")  # fmt: skip
@click.option("--normalize/--no-normalize", default=None, help="Write equivalent schemas alike.")
@click.argument("subject", required=False)
def set_config(
    url: str | None, config: Path | None, compatibility: str | None, normalize: bool | None, subject: str | None
) -> None:
    """Change the settings of SUBJECT, or of the registry."""
    if compatibility is None and normalize is None:
        raise click.UsageError("nothing to change: give --compatibility or --normalize")
    changes: dict[str, Any] = {"compatibility": compatibility, "normalize": normalize}
    _change("config", url, config, subject, {name: value for name, value in changes.items() if value is not None})


@config.command("reset")
@registry_options
@click.argument("subject", required=False)
def reset_config(url: str | None, config: Path | None, subject: str | None) -> None:
    """Delete the settings of SUBJECT, which then has those of the registry; without SUBJECT, those of the registry."""
    _reset("config", url, config, subject)


@mode.command("get")
@registry_options
@output_option
@click.argument("subject", required=False)
def get_mode(url: str | None, config: Path | None, subject: str | None) -> None:
    """Show the mode of SUBJECT, or of the registry.

    Prints: subject, mode, inherited (from the registry).
    """
    _show("mode", url, config, subject)


@mode.command("set")
@registry_options
@click.option("--force", is_flag=True, help="IMPORT also where there are schemas.")
@click.argument("words", nargs=-1, required=True, metavar="[SUBJECT] MODE")
def set_mode(url: str | None, config: Path | None, force: bool, words: tuple[str, ...]) -> None:
    """Change the mode of SUBJECT, or of the registry.

    READWRITE: schemas may be registered and deleted. READONLY: neither. READONLY_OVERRIDE, of the registry only: for
    no subject, whatever its own mode is. IMPORT: whoever registers a schema says which id it gets. FORWARD, of the
    SUBJECT :.__GLOBAL: only: IMPORT for all contexts without a mode of their own.
    """
    wanted = words[-1].upper()
    if len(words) > 2 or wanted not in _MODES:
        raise click.UsageError(f"give [SUBJECT] MODE, with one of {', '.join(_MODES)}")
    subject = words[0] if len(words) == 2 else None
    _change("mode", url, config, subject, {"mode": wanted}, {"force": "true" if force else "false"})


@mode.command("reset")
@registry_options
@click.argument("subject", required=False)
def reset_mode(url: str | None, config: Path | None, subject: str | None) -> None:
    """Delete the mode of SUBJECT, which then has that of the registry; without SUBJECT, the registry is READWRITE."""
    _reset("mode", url, config, subject)


def _path(kind: str, subject: str | None) -> str:
    from pylogd.client.registry.api_client import path_of

    return path_of(kind, *([] if subject is None else [subject]))


def _show(kind: str, url: str | None, config: Path | None, subject: str | None) -> None:
    """Print the settings or the mode of a subject, or of the registry.

    kind: "config" or "mode".
    """
    from pylogd.client.registry.api_client import SchemaRegistryError

    api, inherited = registry_api(url, config), False
    try:
        found = api.ask(_path(kind, subject))
    except SchemaRegistryError as error:
        if error.code not in _NOTHING_OWN:
            raise
        found, inherited = api.ask(_path(kind, subject), query={"defaultToGlobal": "true"}), True
    print_records(_COLUMNS[kind], [{"normalize": None, **found, "subject": subject, "inherited": inherited}])


def _change(
    kind: str, url: str | None, config: Path | None, subject: str | None, document: Mapping[str, Any],
    query: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    registry_api(url, config).send("PUT", _path(kind, subject), document, query)


def _reset(kind: str, url: str | None, config: Path | None, subject: str | None) -> None:
    """Delete the settings or the mode; note if there were none."""
    from pylogd.client.registry.api_client import SchemaRegistryError

    try:
        registry_api(url, config).send("DELETE", _path(kind, subject))
    except SchemaRegistryError as error:
        if error.code not in {*_NOTHING_OWN, _UNKNOWN_SUBJECT}:
            raise
        note(f"{subject or 'the registry'} has none of its own; nothing was changed")
