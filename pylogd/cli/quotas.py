"""`pylogd quotas`: list, set and remove client quotas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import click

from pylogd.cli.commands import Commands, Function, add_options
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.output import note, output_option, print_document, print_records
from pylogd.client import Admin
from pylogd.client.core.admin.access_operations import DEFAULT_ENTITY, QuotaEntity

_UNITS: Final = {
    "": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30,
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?(?:/S)?", re.IGNORECASE)


def _byte_rate(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Return the number of bytes in text such as 1048576, 10MB or 10MiB."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * _UNITS[found[2].upper()] if found and found[2].upper() in _UNITS else 0
    if size < 1:
        raise click.BadParameter(f"{text!r} is not a number of bytes such as 1048576, 10MB or 10MiB")
    return float(int(size))


_BYTES: Final[Mapping[str, Any]] = {"callback": _byte_rate, "metavar": "BYTES"}
_ABOVE_ZERO: Final[Mapping[str, Any]] = {"type": click.FloatRange(0, min_open=True), "metavar": "NUMBER"}
#: Each quota: its name, how a value is given, and what it limits.
_QUOTAS: Final[tuple[tuple[str, Mapping[str, Any], str], ...]] = (
    ("producer_byte_rate", _BYTES, "Bytes produced a second: 1048576, 10MB, 10MiB."),
    ("consumer_byte_rate", _BYTES, "Bytes fetched a second: 1048576, 10MB, 10MiB."),
    ("request_percentage", _ABOVE_ZERO, "Time that a broker works on requests, in percent of one processor."),
    ("controller_mutation_rate", _ABOVE_ZERO, "Partitions created and deleted a second."),
    ("connection_creation_rate", {"type": click.IntRange(1)}, "New connections a second; with --ip only."),
)


def _entity_options(function: Function) -> Function:
    for part, what in (("ip", "IP address"), ("client-id", "client id"), ("user", "user")):
        name = part.replace("-", "_")
        function = click.option(
            f"--{part}-default", f"{name}_default", is_flag=True, help=f"Each {what} that has no quota of its own."
        )(function)
        function = click.option(f"--{part}", name, metavar="NAME", help=f"This {what}.")(function)
    return function


def _quota_options(function: Function) -> Function:
    return add_options(
        function, *(click.option(f"--{name.replace('_', '-')}", name, help=text, **how) for name, how, text in _QUOTAS)
    )


def _removal_options(function: Function) -> Function:
    return add_options(function, *(
        click.option(f"--{name.replace('_', '-')}", name, is_flag=True, help=f"Remove {name}.")
        for name, _, _ in _QUOTAS
    ))  # fmt: skip


def _entity(options: Mapping[str, Any]) -> QuotaEntity:
    """Return the entity that the options name."""
    parts: list[str | None] = []
    for name in ("user", "client_id", "ip"):
        given, default = options[name], options[f"{name}_default"]
        option = f"--{name.replace('_', '-')}"
        if given is not None and default:
            raise click.UsageError(f"Give either {option} or {option}-default.")
        if given == "":
            raise click.UsageError(f"{option} is empty; {option}-default is the default.")
        parts.append(DEFAULT_ENTITY if default else given)
    entity = QuotaEntity(*parts)
    if entity.ip is not None and (entity.user is not None or entity.client_id is not None):
        raise click.UsageError("An IP address has quotas of its own: leave out users and client ids.")
    return entity


def _named_entity(options: Mapping[str, Any]) -> QuotaEntity:
    entity = _entity(options)
    if entity == QuotaEntity():
        raise click.UsageError(
            "Whose quota? Give --user, --client-id, both, or --ip, or one of them with -default behind it."
        )
    return entity


@click.group(cls=Commands)
def quotas() -> None:
    """List, set and remove quotas of users, client ids and IP addresses.

    \b
    pylogd quotas set --user ann --producer-byte-rate 10MB \\
        --consumer-byte-rate 20MB
    pylogd quotas set --user ann --client-id loader --producer-byte-rate 2MB
    pylogd quotas set --client-id-default --request-percentage 25
    pylogd quotas set --ip-default --connection-creation-rate 20
    pylogd quotas list
    pylogd quotas remove --user ann --producer-byte-rate

    A client over its quota is slowed down: its requests are answered at once, and the broker reads the next one from
    its connection when the rate is down to the quota. A quota holds on each broker by itself. The most specific one
    decides, for each kind: a user's client id, a user, the defaults of users, a client id, the default of client ids.
    """


@quotas.command("list")
@_entity_options
@output_option
@bootstrap_option
def list_(bootstrap: str, **options: Any) -> None:
    """List quotas: all, or those whose entity has the parts given.

    Prints for each: user, client_id, ip, quota, value. <default> is the default, and - or null none. JSON and YAML have
    the quotas of an entity together.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.client_quotas(_entity(options))
    entities = [(_parts(entity), values) for entity, values in sorted(found.items(), key=_order)]
    if print_document([{**parts, "quotas": values} for parts, values in entities]):
        return
    rows = [
        {**parts, "quota": quota, "value": f"{value:.15g}"}
        for parts, values in entities for quota, value in sorted(values.items())
    ]  # fmt: skip
    print_records(["user", "client_id", "ip", "quota", ">value"], rows)


def _parts(entity: QuotaEntity) -> dict[str, str]:
    return {part: name or "<default>" for part, name in entity._asdict().items() if name is not None}


def _order(item: tuple[QuotaEntity, Any]) -> tuple[tuple[bool, str], ...]:
    return tuple((name is None, name or "") for name in item[0])


@quotas.command("set")
@_entity_options
@_quota_options
@bootstrap_option
def set_(bootstrap: str, **options: Any) -> None:
    """Set quotas of a user, a client id, both, or an IP address. Others of it stay.

    \b
    pylogd quotas set --user ann --producer-byte-rate 10MB
    pylogd quotas set --user-default --client-id-default \\
        --consumer-byte-rate 50MiB
    """
    entity = _named_entity(options)
    changes = {name: float(options[name]) for name, _, _ in _QUOTAS if options[name] is not None}
    if not changes:
        raise click.UsageError("Which quota? Give at least one, such as --producer-byte-rate 10MB.")
    with connect(bootstrap) as connected, Admin(connected) as admin:
        admin.alter_client_quotas(entity, changes)


@quotas.command()
@_entity_options
@_removal_options
@click.option("--all", "everything", is_flag=True, help="Remove all quotas of it.")
@bootstrap_option
def remove(bootstrap: str, everything: bool, **options: Any) -> None:
    """Remove quotas of a user, a client id, both, or an IP address. The next level of quotas holds then.

    \b
    pylogd quotas remove --user ann --producer-byte-rate
    pylogd quotas remove --ip 10.0.0.1 --all
    """
    entity = _named_entity(options)
    names = [name for name, _, _ in _QUOTAS if options[name]]
    if bool(names) == everything:
        raise click.UsageError("Which quota? Give at least one, such as --producer-byte-rate, or --all.")
    with connect(bootstrap) as connected, Admin(connected) as admin:
        present = admin.client_quotas(entity, strict=True).get(entity, {})
        missing = [name for name in names if name not in present]
        if missing or not present:
            note(f"Not set: {', '.join(missing) or 'any quota of it'}.")
        changes = dict.fromkeys(present if everything else [name for name in names if name in present])
        if changes:
            admin.alter_client_quotas(entity, changes)
