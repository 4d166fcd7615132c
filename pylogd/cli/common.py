"""Parts that the subcommands share: common options, times and sizes as users write them. Output is in `output`."""

# ruff: noqa: PLC0415 - the client is imported only where it is needed, so that other commands start fast
from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pylogd.base.clock import wall_ms
from pylogd.cli.commands import Function, add_options
from pylogd.cli.output import default_format

if TYPE_CHECKING:
    from pylogd.cli.client_file import Profile
    from pylogd.client import Cluster, SecurityOptions

_PATIENCE = 10.0  # seconds to retry requests to a broker that was reachable before
_PROPERTIES = "pylogd.properties"  # the context's key for the properties
_SECURITY = "pylogd.security"
_MEMBER = "pylogd.member"
_REGISTRY = "pylogd.registry"
_PROFILE = "pylogd.profile"
_PROFILE_NAMED = "pylogd.profile.named"
_TIMEOUT = "pylogd.timeout"
DEFAULT_BOOTSTRAP = "localhost:9092"
_SPAN = re.compile(r"(\d+)(s|m|h|d)")
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def bootstrap_option(function: Function, *, timeout: str = "--timeout") -> Function:
    """Add the options for the connection to a cluster. The command gets the parameter `bootstrap`.

    timeout: the name of the option for the time to wait for a broker.
    """
    return add_options(
        function,
        click.option("-b", "--bootstrap-server", "bootstrap", metavar="HOST:PORT[,...]",
                     envvar="PYLOGD_BOOTSTRAP_SERVER", default=DEFAULT_BOOTSTRAP, show_default=True,
                     callback=_check_addresses, help="Brokers to connect to first. Also from "
                     "PYLOGD_BOOTSTRAP_SERVER."),
        profile_option,
        click.option(timeout, "broker_timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                     expose_value=False, callback=_keep_timeout, help="How long to wait for an answer, and for a "
                     "broker that can't be reached  [default: 30 for an answer, 0 to reach one]"),
        click.option("--command-config", metavar="FILE", envvar="PYLOGD_COMMAND_CONFIG", expose_value=False,
                     is_eager=True,  # a command's other options may replace its properties
                     callback=_read_config, help="Properties of TLS, SASL and members of groups, named as in Kafka. "
                     "Also from PYLOGD_COMMAND_CONFIG."),
    )  # fmt: skip


def profile_option(function: Function) -> Function:
    """Add the option that names a profile of the client file, which `profile_of` returns."""
    return click.option(
        "--profile", metavar="NAME", expose_value=False, is_eager=True, callback=_read_profile,
        shell_complete=_profile_names,
        help="Profile of the client file; see `pylogd profiles`. Also from PYLOGD_PROFILE.",
    )(function)  # fmt: skip


def _profile_names(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the profiles whose names begin with `incomplete`, for shells."""
    from pylogd.cli.client_file import ClientFileError, read_client_file

    try:
        return sorted(name for name in read_client_file().profiles if name.startswith(incomplete))
    except ClientFileError:
        return []


def _read_profile(ctx: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Keep the profile of the client file for the rest of the command."""
    from pylogd.cli.client_file import ClientFileError, read_client_file

    try:
        profile = read_client_file().profile(name or os.environ.get("PYLOGD_PROFILE", ""))
    except ClientFileError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None
    ctx.meta[_PROFILE] = profile
    ctx.meta[_PROFILE_NAMED] = name is not None
    if profile is None:
        return
    if profile.output is not None:
        default_format(ctx, profile.output)
    if profile.properties and _PROPERTIES not in ctx.meta:  # --command-config replaces them
        _keep_properties(ctx, f"profile {profile.name!r}", profile.properties)


def profile_of(ctx: click.Context) -> Profile | None:
    """Return the command's profile of the client file; None if it uses none."""
    found: Profile | None = ctx.meta.get(_PROFILE)
    return found


def _profile_replaces(ctx: click.Context, parameter: click.Parameter, value: str | None) -> bool:
    """Return whether to use the profile's value. It replaces a default always, and a variable only with --profile."""
    source = ctx.get_parameter_source(parameter.name or "")
    if source is ParameterSource.ENVIRONMENT:
        return bool(ctx.meta.get(_PROFILE_NAMED))
    return source is not ParameterSource.COMMANDLINE or value is None


def _keep_timeout(ctx: click.Context, _parameter: click.Parameter, seconds: float | None) -> None:
    profile = profile_of(ctx)
    ctx.meta[_TIMEOUT] = seconds if seconds is not None or profile is None else profile.timeout


def _read_config(ctx: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Keep the properties of `--command-config` for the rest of the command."""
    from pylogd.client.properties import parse_properties

    if path and not _profile_replaces(ctx, parameter, path):
        try:
            _keep_properties(ctx, path, parse_properties(Path(path).read_text("utf-8")))
        except OSError as error:
            raise click.BadParameter(f"can't read {path}: {error.strerror}") from None
        except ValueError as error:
            raise click.BadParameter(f"{path}: {error}") from None


def _keep_properties(ctx: click.Context, source: str, properties: Mapping[str, str]) -> None:
    """Keep properties for the rest of the command.

    source: the origin of the properties, for error messages.
    """
    from pylogd.client.properties import is_security, member_options, security_from

    try:
        found = security_from(properties)
        ctx.meta[_MEMBER] = member_options(properties)
    except ValueError as error:
        raise click.BadParameter(f"{source}: {error}") from None
    ctx.meta[_PROPERTIES] = {name: value for name, value in properties.items() if is_security(name)}
    ctx.meta[_SECURITY] = found
    ctx.meta[_REGISTRY] = {name: value for name, value in properties.items() if name.startswith("schema.registry.")}


def replace_properties(ctx: click.Context, properties: Mapping[str, str]) -> None:
    """Let properties, named as in Kafka, replace or extend those of `--command-config`. Raises ValueError."""
    from pylogd.client.properties import security_from

    merged = {**ctx.meta.get(_PROPERTIES, {}), **properties}
    ctx.meta[_SECURITY] = security_from(merged)
    ctx.meta[_PROPERTIES] = merged


def security() -> SecurityOptions | None:
    """Return the TLS and SASL options of the command's `--command-config`; None if it has none."""
    ctx = click.get_current_context(silent=True)
    found: SecurityOptions | None = None if ctx is None else ctx.meta.get(_SECURITY)
    return found


def member_settings(protocol: str | None) -> dict[str, Any]:
    """Return the options of a group member in the command's `--command-config`, by the names of `ConsumerOptions`.

    protocol: the group protocol that replaces the file's; None keeps the file's.
    """
    found: dict[str, Any] = dict(click.get_current_context().meta.get(_MEMBER, {}))
    if protocol is not None:
        found["group_protocol"] = protocol
    if found.get("group_protocol") != "consumer":
        found.pop("group_remote_assignor", None)
    return found


def kafka_options() -> dict[str, str]:
    """Return all properties given to the command (TLS, SASL and others) as options of the Spark source."""
    properties: dict[str, str] = click.get_current_context().meta.get(_PROPERTIES, {})
    return {f"kafka.{name}": value for name, value in properties.items()}


def registry_settings() -> dict[str, str]:
    """Return the schema registry's options in the command's `--command-config` (`pylogd.client.registry.access`)."""
    found: dict[str, str] = click.get_current_context().meta.get(_REGISTRY, {})
    return found


def connect(bootstrap: str, *, auto_create_topics: bool = False) -> Cluster:
    """Return a connection to a cluster, which says so on standard error when an answer takes long.

    Without --timeout an unreachable cluster raises at once: a person waits for the command.
    """
    from pylogd.cli.waiting import WatchedCluster

    ctx = click.get_current_context(silent=True)
    seconds: float | None = None if ctx is None else ctx.meta.get(_TIMEOUT)
    options = {} if seconds is None else {"request_timeout": seconds, "connect_timeout": min(seconds, 10.0)}
    return WatchedCluster(
        bootstrap,
        client_id="pylogd-cli",
        retry_timeout=_PATIENCE if seconds is None else seconds,
        bootstrap_timeout=0.0 if seconds is None else seconds,
        auto_create_topics=auto_create_topics,
        security=security(),
        **options,
    )


def patience(seconds: float) -> float:
    """Return the time to wait for a broker that may be down: --timeout, or else `seconds`."""
    given: float | None = click.get_current_context().meta.get(_TIMEOUT)
    return seconds if given is None else given


def _check_addresses(ctx: click.Context, parameter: click.Parameter, text: str) -> str:
    from pylogd.client.core.model import parse_address

    profile = profile_of(ctx)
    if profile is not None and profile.bootstrap_server and _profile_replaces(ctx, parameter, text):
        text = profile.bootstrap_server
    try:
        for address in text.split(","):
            parse_address(address)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


def assignments(_ctx: click.Context, _parameter: click.Parameter, words: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE words as a dict. A callback for click options."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{word!r} is not NAME=VALUE")
        found[name] = value
    return found


def parse_span(text: str) -> int | None:
    """Return a time such as 90s, 15m, 2h or 3d in milliseconds; None for another text."""
    found = _SPAN.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def parse_time(text: str, now_ms: int | None = None) -> int | None:
    """Return a time in milliseconds since 1970, or None if `text` is not a time.

    Times are ISO 8601 (local time if without a zone), `@SECONDS` since 1970, or an age such as `90s`, `15m` or `2h`.
    """
    if (age := parse_span(text)) is not None:
        return (wall_ms() if now_ms is None else now_ms) - age
    try:
        if text.startswith("@"):
            return round(float(text[1:]) * 1000)
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def given_time(text: str, option: str) -> int:
    """Return the time in an option's value, as `parse_time` does. Raises BadParameter."""
    found = parse_time(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not a time: use 2026-11-21T08:00, @SECONDS, 15m, 2h or 3d", param_hint=option
        )
    return found


def format_time(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in the local zone, to the millisecond; "" for -1."""
    if timestamp_ms < 0:
        return ""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def format_bytes(size: float) -> str:
    """Return a size with a binary unit, such as 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return a field for JSON: the text if the data is UTF-8, or else its base64 under `<name>_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}
