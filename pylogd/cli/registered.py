"""`pylogd schemas`: list, show, register and check schemas of a registry, pylogd's or Confluent's."""

# ruff: noqa: PLC0415 - the client is imported only where it is needed, so that other commands start fast
from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from pylogd.cli.commands import Commands
from pylogd.cli.output import note, output_option, print_document, print_json, print_line, print_records
from pylogd.cli.registered_changes import config, delete, mode
from pylogd.cli.schema_options import registry_api, registry_options

Function = TypeVar("Function", bound=Callable[..., Any])

_TYPES: Final = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
_REFERENCE: Final = re.compile(r"(?P<name>[^=]+)=(?P<subject>.+):(?P<version>\d+)")
_INCOMPATIBLE: Final = 1


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


schemas.add_command(delete)
schemas.add_command(config)
schemas.add_command(mode)


def _new_schema(function: Function) -> Function:
    """Add the arguments and options that say which schema is sent."""
    for add in (
        click.option("--normalize", is_flag=True, help="Write equivalent schemas alike."),
        click.option("--reference", "references", multiple=True, metavar="NAME=SUBJECT:VERSION",
                     help="A version that the schema refers to by NAME: a type in Avro, a URI in JSON Schema, a file "
                          "in Protobuf. May be repeated."),
        click.option("--type", "kind", type=click.Choice(list(_TYPES.values()), case_sensitive=False),
                     help="Default: by the file's name (.avsc, .json, .proto)."),
        click.argument("file", type=click.File("r", encoding="utf-8")),
        click.argument("subject"),
    ):  # fmt: skip
        function = add(function)
    return function


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


def _flag(value: bool) -> str:
    return "true" if value else "false"
