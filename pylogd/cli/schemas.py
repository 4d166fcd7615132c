"""`pylogd schemas`: the schemas of a registry, pylogd's or Confluent's, and which new ones and changes it accepts."""

# ruff: noqa: PLC0415 - the client is imported only where it is needed, so that other commands start fast
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from pylogd.cli.commands import Commands, Function, add_options
from pylogd.cli.output import (
    confirm,
    note,
    output_option,
    print_document,
    print_json,
    print_line,
    print_records,
    yes_option,
)
from pylogd.cli.schema_options import LEVELS, registry_api, registry_options

_TYPES: Final = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
_REFERENCE: Final = re.compile(r"(?P<name>[^=]+)=(?P<subject>.+):(?P<version>\d+)")
_INCOMPATIBLE: Final = 1
_MODES: Final = ["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD"]
#: The codes of the registry's API for a subject that has no settings, or no mode, of its own.
_NOTHING_OWN: Final = frozenset({40408, 40409})
_UNKNOWN_SUBJECT: Final = 40401
_COLUMNS: Final = {"config": ("subject", "compatibilityLevel", "normalize", "inherited"),
                   "mode": ("subject", "mode", "inherited")}  # fmt: skip


@click.group(cls=Commands)
def schemas() -> None:
    """List, show, register, check and delete schemas of a registry: Avro, JSON Schema, Protobuf.

    A schema is a version of a subject; a serialiser for the topic `flights` uses the subject `flights-value`. The
    registry is `--schema-registry URL`, PYLOGD_SCHEMA_REGISTRY, or that of the profile. TLS and a user:
    `--command-config FILE`, with `basic.auth.user.info=ada:secret` and `ssl.truststore.location=ca.pem`, for example.

    \b
    pylogd schemas list
    pylogd schemas show flights-value
    pylogd schemas check flights-value flight.avsc
    pylogd schemas register flights-value flight.avsc
    pylogd schemas config set flights-value --compatibility FULL
    """


def _new_schema(function: Function) -> Function:
    """Add the arguments and options that say which schema is sent."""
    return add_options(
        function,
        click.argument("subject"),
        click.argument("file", type=click.File("r", encoding="utf-8")),
        click.option("--type", "kind", type=click.Choice(list(_TYPES.values()), case_sensitive=False),
                     help="Default: by the file's name (.avsc, .json, .proto)."),
        click.option("--reference", "references", multiple=True, metavar="NAME=SUBJECT:VERSION",
                     help="A version that the schema refers to by NAME: a type in Avro, a URI in JSON Schema, a file "
                          "in Protobuf. May be repeated."),
        click.option("--normalize", is_flag=True, help="Write equivalent schemas alike."),
    )  # fmt: skip


@schemas.command("list")
@registry_options
@click.option("--prefix", default="", metavar="TEXT", help="Only subjects that begin with this.")
@click.option("--all", "every", is_flag=True, help="All versions, not only each subject's last.")
@click.option("--deleted", is_flag=True, help="Soft-deleted versions too.")
@output_option
def list_schemas(url: str | None, config: Path | None, prefix: str, every: bool, deleted: bool) -> None:
    """Print the subjects with their last version, its id and type, and how many schemas it refers to.

    Prints for each version: subject, version, id, schemaType, references (their number).

    \b
    pylogd schemas list --prefix flights
    pylogd schemas list --prefix :.production: --all
    """
    start = prefix if prefix.startswith(":.") else ":*:" + prefix
    query = {"subjectPrefix": start, "latestOnly": _flag(not every), "deleted": _flag(deleted)}
    found = registry_api(url, config).ask("/schemas", query=query)
    if print_document(found):
        return
    rows = [
        {**each, "schemaType": each.get("schemaType", "AVRO"), "references": len(each.get("references", ()))}
        for each in found
    ]
    print_records(("subject", ">version", ">id", "schemaType", ">references"), rows)


@schemas.command()
@registry_options
@click.option("--id", "schema_id", type=int, metavar="NUMBER", help="The schema with this id, instead of a subject's.")
@click.option("--deleted", is_flag=True, help="A soft-deleted version too.")
@output_option
@click.argument("subject", required=False)
@click.argument("version", default="latest")
def show(
    url: str | None,
    config: Path | None,
    schema_id: int | None,
    deleted: bool,
    subject: str | None,
    version: str,
) -> None:
    """Print a schema: the last version of SUBJECT, or VERSION, or the one with an id.

    A message's id is in its bytes 1 to 4.

    \b
    pylogd schemas show flights-value
    pylogd schemas show flights-value 2 > flight.avsc
    pylogd schemas show --id 41
    """
    from pylogd.client.registry.api_client import path_of

    if (schema_id is None) == (subject is None):
        raise click.UsageError("name a SUBJECT or an --id")
    path = (
        path_of("schemas", "ids", schema_id) if subject is None else path_of("subjects", subject, "versions", version)
    )
    found = registry_api(url, config).ask(path, query={"deleted": _flag(deleted)})
    if print_document(found):
        return
    if found.get("schemaType") == "PROTOBUF":
        for line in found["schema"].splitlines():
            print_line(line)
    else:
        print_json(json.loads(found["schema"]))


@schemas.command()
@registry_options
@_new_schema
def register(url: str | None, config: Path | None, subject: str, file: Any, **given: Any) -> None:
    """Register the schema in FILE (- for standard input) as the last version of SUBJECT; print its id.

    A schema that the subject has already keeps its version. One that is not compatible with the earlier versions is
    refused: `pylogd schemas check` says why.

    \b
    pylogd schemas register flights-value flight.avsc
    pylogd schemas register flights-value flight.proto \\
        --reference carrier.proto=carriers:1
    """
    from pylogd.client.registry.api_client import path_of

    query = {"normalize": _flag(given["normalize"])}
    answer = registry_api(url, config).ask(path_of("subjects", subject, "versions"), _body(file, **given), query)
    print_line(str(answer["id"]))


@schemas.command()
@registry_options
@click.option(
    "--version", metavar="NUMBER|latest", help="Compare with this version. Default: as the subject's level says."
)
@_new_schema
def check(url: str | None, config: Path | None, subject: str, file: Any, version: str | None, **given: Any) -> None:
    """Say whether the schema in FILE (- for standard input) could be registered for SUBJECT.

    It is compared with the subject's versions by its compatibility level. Exit status 1 and the reasons on standard
    error if it is not compatible.

    \b
    pylogd schemas check flights-value flight.avsc
    pylogd schemas check flights-value flight.avsc --version 2
    """
    from pylogd.client.registry.api_client import path_of

    parts = ["compatibility", "subjects", subject, "versions", *([] if version is None else [version])]
    query = {"normalize": _flag(given["normalize"]), "verbose": "true"}
    answer = registry_api(url, config).ask(path_of(*parts), _body(file, **given), query)
    for reason in answer.get("messages", ()):
        note(str(reason))
    print_line("compatible" if answer["is_compatible"] else "not compatible")
    if not answer["is_compatible"]:
        click.get_current_context().exit(_INCOMPATIBLE)


def _body(file: Any, kind: str | None, references: Sequence[str], normalize: bool) -> Mapping[str, Any]:
    """Return the body of a request with the schema in a file. Raises BadParameter."""
    kind = kind or _TYPES.get(Path(file.name).suffix)
    if kind is None:
        raise click.UsageError(f"name the --type of {file.name}: its name does not end with {', '.join(_TYPES)}")
    used = []
    for text in references:
        match = _REFERENCE.fullmatch(text)
        if match is None:
            raise click.BadParameter(f"{text!r} is not NAME=SUBJECT:VERSION", param_hint="--reference")
        used.append({**match.groupdict(), "version": int(match["version"])})
    try:
        return {"schema": file.read(), "schemaType": kind, "references": used}
    except UnicodeDecodeError:
        raise click.BadParameter(f"{file.name} is not text in UTF-8", param_hint="FILE") from None


@schemas.command()
@registry_options
@click.option("--permanent", is_flag=True, help="Delete for good what was deleted before without this option.")
@yes_option
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
    confirm(f"Delete {what}{' for good' if permanent else ''}?", yes)
    parts = ["subjects", subject, *([] if version is None else ["versions", version])]
    answer = api.send("DELETE", path_of(*parts), query={"permanent": _flag(permanent)})
    versions = answer if isinstance(answer, list) else [answer]
    print_records(("subject", ">version"), [{"subject": subject, "version": number} for number in versions])


@schemas.group(cls=Commands)
def config() -> None:
    """Show and change which new schemas a registry accepts for a subject.

    A subject without settings of its own has those of the registry, which are shown and changed without a SUBJECT.

    \b
    pylogd schemas config get flights-value
    pylogd schemas config set flights-value --compatibility FULL
    pylogd schemas config reset flights-value
    """


@schemas.group(cls=Commands)
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
@click.option("--compatibility", type=click.Choice(LEVELS, case_sensitive=False), metavar="LEVEL",
              help=f"Which earlier versions a new one must be compatible with: {', '.join(LEVELS)}.")  # fmt: skip
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
    _change("mode", url, config, subject, {"mode": wanted}, {"force": _flag(force)})


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


def _flag(value: bool) -> str:
    return "true" if value else "false"
