"""The options of commands that use a schema registry: of `schemas`, and of `produce` and `consume`."""

# ruff: noqa: PLC0415 - the client is imported only where it is needed, so that other commands start fast
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pylogd.cli.commands import Function, needs_extra
from pylogd.cli.common import profile_of, profile_option, registry_settings
from pylogd.cli.record_input import Encoders

if TYPE_CHECKING:
    from pylogd.client.registry.api_client import RegistryApi
    from pylogd.lake.typed.json_codec import Codec

_DEFAULT = "http://localhost:8081"
LEVELS: Final = [
    "NONE", *(f"{way}{more}" for way in ("BACKWARD", "FORWARD", "FULL") for more in ("", "_TRANSITIVE")),
]  # fmt: skip

_registry = click.option(
    "--schema-registry", "registry", metavar="URL", envvar="PYLOGD_SCHEMA_REGISTRY",
    help=f"The registry. Also from PYLOGD_SCHEMA_REGISTRY; credentials from schema.registry.* in --command-config  "
    f"[default: {_DEFAULT}]",
)  # fmt: skip


def registry_options(function: Function) -> Function:
    """Add the options that say which registry: the command has the parameters `url` and `config`."""
    with_profile = profile_option(function)
    with_config = click.option(
        "--command-config", "config", metavar="FILE", envvar="PYLOGD_COMMAND_CONFIG",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Properties of TLS and credentials, named as in Confluent's clients. Also from PYLOGD_COMMAND_CONFIG.",
    )(with_profile)  # fmt: skip
    return click.option(
        "-r", "--schema-registry", "url", metavar="URL", envvar="PYLOGD_SCHEMA_REGISTRY",
        help=f"The registry. Also from PYLOGD_SCHEMA_REGISTRY and the profile.  [default: {_DEFAULT}]",
    )(with_config)  # fmt: skip


def registry_api(url: str | None, config: Path | None) -> RegistryApi:
    """Return the API of the registry that the options name. Raises BadParameter."""
    from pylogd.client.properties import parse_properties
    from pylogd.client.registry.api_client import RegistryApi

    try:
        settings = registry_settings() if config is None else parse_properties(config.read_text("utf-8"))
        return RegistryApi(_registry_url(url), settings=settings)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _registry_url(given: str | None) -> str:
    """Return the registry's address: the given one, or else the profile's, or else the default."""
    profile = profile_of(click.get_current_context())
    return given or (None if profile is None else profile.schema_registry) or _DEFAULT


def written_schemas(function: Function) -> Function:
    """Add `--key-schema`, `--value-schema` and `--schema-registry` to a command that writes records."""
    for part in ("value", "key"):
        function = click.option(
            f"--{part}-schema", metavar="latest|ID", help=f"Take {part}s for JSON, and write them by this schema: the "
            f"last version of TOPIC-{part}, or the one with an id."
        )(function)  # fmt: skip
    return _registry(function)


def read_schemas(function: Function) -> Function:
    """Add `--decode` and `--schema-registry` to a command that reads records."""
    function = click.option(
        "--decode", type=click.Choice(["key", "value", "both"]), help="Print keys, values or both as JSON, by the "
        "schemas whose ids are in them (Avro, JSON Schema, Protobuf)."
    )(function)  # fmt: skip
    return _registry(function)


def encoders_of(topic: str, given: Mapping[str, Any]) -> Encoders:
    """Return the encoders of keys and values, according to the options of `written_schemas`."""
    if given["key_schema"] is None and given["value_schema"] is None:
        return Encoders()
    codec = open_codec(given["registry"])
    return Encoders(*(
        None if given[f"{part}_schema"] is None else codec.encoder(f"{topic}-{part}", given[f"{part}_schema"])
        for part in ("key", "value")
    ))  # fmt: skip


def open_codec(url: str | None) -> Codec:
    """Return a codec that uses a registry's schemas. Raises ClickException if an extra is missing."""
    with needs_extra("schemas"):
        from pylogd.lake.typed.json_codec import Codec
    try:
        return Codec(_registry_url(url), registry_settings())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--schema-registry") from None
