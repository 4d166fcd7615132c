"""The options of `pylogd load` for typed tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from pylogd.cli.common import registry_settings

if TYPE_CHECKING:
    from pylogd.lake.typed.rows import SchemaSource

Function = Callable[..., Any]


def schema_options(function: Function) -> Function:
    """Add the options `--schema-registry`, `--subject` and `--message` to a command."""
    for option in (
        click.option("--message", default="", metavar="NAME", help="Protobuf: the message type that makes the columns; "
                     "else the first of the file."),
        click.option("--subject", default="", metavar="NAME", help="The subject whose versions make the columns; else "
                     "TOPIC-value."),
        click.option("--schema-registry", "registry", metavar="URL", help="Make a typed table, with a column for each "
                     "field of the registered schema. Credentials: schema.registry.* in --command-config."),
    ):  # fmt: skip
        function = option(function)
    return function


def schema_source(given: Mapping[str, Any]) -> SchemaSource | None:
    """Return the source of a typed table's columns, by the command's options; None for a table of records."""
    if given["registry"] is None:
        if given["subject"] or given["message"]:
            raise click.UsageError("--subject and --message need --schema-registry")
        return None
    try:
        from pylogd.lake.typed.rows import SchemaSource  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise click.ClickException(f"{error}: install the extra, pip install 'pylogd-broker[typed]'") from error
    try:
        return SchemaSource.at(given["registry"], registry_settings(), given["subject"], given["message"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--schema-registry") from None
