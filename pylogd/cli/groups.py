"""`pylogd groups`: show consumer groups and their lag, change their settings, delete them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, UnsupportedByBroker
from pylogd.cli.commands import Commands
from pylogd.cli.common import assignments, bootstrap_option, connect, patience
from pylogd.cli.group_offsets import reset_offsets, seek
from pylogd.cli.names import group_names, matching, regex_option
from pylogd.cli.output import (
    confirm,
    fail_on,
    note,
    output_format,
    output_option,
    print_document,
    print_line,
    print_records,
    yes_option,
)
from pylogd.cli.silent_brokers import fail_if_silent, split_answers
from pylogd.cli.zookeeper import KIND, zookeeper_groups, zookeeper_option
from pylogd.client import Admin
from pylogd.client.core.model import GroupDescription, GroupsDescribed, OffsetAndMetadata

#: Seconds for the answers of brokers that have many groups. A broker that was killed refuses at once.
_SECONDS: Final = 10.0
#: The setting by which brokers tell which clients had to wait for busy disks (docs/lagging-consumers.md).
_THROTTLED: Final = "lagging.consumers.throttled"


@click.group(cls=Commands)
def groups() -> None:
    """List, describe, move and delete consumer groups.

    The consumers of a group share the partitions of topics: each partition is read by one of them. The group commits
    the offset up to which it has read; the number of records after it is the group's lag.

    \b
    pylogd groups list --lag
    pylogd groups describe billing             members, offsets, lag
    pylogd groups seek billing --to 2h         read the last two hours again
    pylogd groups alter billing --config consumer.session.timeout.ms=60000
    pylogd groups delete billing
    """


@groups.command("list")
@click.argument("names", nargs=-1, metavar="[GROUP]...", shell_complete=group_names)
@regex_option
@click.option("-s", "--state", "states", multiple=True, metavar="STATE",
              help="Only groups in this state: Stable, Empty, PreparingRebalance, CompletingRebalance.")  # fmt: skip
@click.option("--lag", is_flag=True, help="Also ask for the members, and the records that the groups have not read.")
@zookeeper_option
@output_option
@bootstrap_option
def list_(
    names: Sequence[str], regex: bool, states: Sequence[str], lag: bool, zookeeper: str | None, bootstrap: str
) -> None:
    """List groups with their state: all, or those with the names.

    Prints for each group: group, state, kind, coordinator; with --lag also members and lag, the sum of all partitions.
    The groups of brokers that do not answer are left out; standard error names these brokers, and the exit status is 1.
    The lag of a group is null if one of them leads a partition that the group has read. With -z also those groups whose
    consumers coordinate through ZooKeeper; their kind is zookeeper, and their coordinator null.
    """
    wanted = {state.lower() for state in states}
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found, silent = split_answers(admin.groups_by_broker(patience(_SECONDS)), "groups")
        found = sorted(one for one in found if not wanted or one.state.lower() in wanted)
        others = zookeeper_groups(admin, zookeeper, silent, patience(_SECONDS))
        if names:
            chosen = matching(names, [*(one.group_id for one in found), *others.groups]) if regex else names
            found = [one for one in found if one.group_id in chosen]
        totals = admin.group_totals(found, silent, patience(_SECONDS)) if lag else None
    columns = ["group", "state", "kind", ">coordinator"]
    rows: list[dict[str, Any]] = [
        {"group": g.group_id, "state": g.state, "kind": g.protocol_type or None, "coordinator": g.coordinator}
        for g in found
    ]
    beside = [
        each for each in others.groups.values()
        if (not names or each.group_id in chosen) and (not wanted or each.state.lower() in wanted)
    ]  # fmt: skip
    if totals is None:
        print_records(columns, rows + [_as_row(each) for each in beside])
        fail_if_silent(silent)
        return
    rows = [row | totals.groups[row["group"]]._asdict() for row in rows if row["group"] in totals.groups]
    rows += [
        _as_row(each) | {"members": len(each.members), "lag": total_lag(lag_of(others, each.group_id))[0]}
        for each in beside
    ]
    print_records([*columns, ">members", ">lag"], rows)
    for name, error in totals.errors.items():
        note(f"group {name}: {error}")
    fail_if_silent(totals.silent)
    if totals.errors:
        raise click.ClickException("the figures of some groups are not known")


def _as_row(group: GroupDescription) -> dict[str, Any]:
    """Return the record in the list for a group in ZooKeeper."""
    return {"group": group.group_id, "state": group.state, "kind": group.protocol_type, "coordinator": None}


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@regex_option
@click.option("-m", "--members", is_flag=True, help="Show the members instead of the offsets.")
@zookeeper_option
@output_option
@bootstrap_option
def describe(names: Sequence[str], regex: bool, members: bool, zookeeper: str | None, bootstrap: str) -> None:
    """Show the committed offsets, the lag and the members of GROUPs.

    Prints for each partition: topic, partition, committed, end, lag, member, client, host. With --members: member,
    instance, client, host, count (of partitions), partitions. tsv has the group before. Members that had to wait for a
    busy disk are named with the time (docs/lagging-consumers.md); with tsv, on standard error.

    All coordinators are asked at the same time, each once for all its groups. The groups of brokers that do not answer
    are left out; standard error names these brokers, and the exit status is 1. The end and the lag of a partition are
    null if its leader does not answer, and the lag if nothing was committed. The lag of the group, in the heading and
    in JSON and YAML, is the sum of those that are known; the number of the other partitions (lag_unknown_partitions)
    is beside it. With -z also those groups whose consumers coordinate through ZooKeeper.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        waited, silent = throttled_clients(admin, patience(_SECONDS))
        unlisted: list[int] = []
        others = zookeeper_groups(admin, zookeeper, silent, patience(_SECONDS))
        if regex:
            listed, unlisted = split_answers(admin.groups_by_broker(patience(_SECONDS), silent), "groups")
            unlisted += silent
            names = matching(names, [*(one.group_id for one in listed), *others.groups])
        chosen = {name: group for name, group in others.groups.items() if name in names}
        asked = [name for name in names if name not in chosen]
        found = admin.describe_groups(asked, {*silent, *unlisted}, patience(_SECONDS))
    rows = {name: lag_of(found, name) for name in found.groups}
    rows |= {name: lag_of(others, name) for name in chosen}
    groups_found = {**found.groups, **chosen}
    if not print_document([_as_json(group, rows[name], waited) for name, group in groups_found.items()]):
        for name, group in groups_found.items():
            waits = [throttled_text(client) for client in throttled_of(group, waited)]
            _print_group(group, rows[name], waits, members=members)
    errors = [f"group {name}: {error}" for name, error in found.errors.items()]
    missing = sorted({*found.silent, *unlisted, *others.silent})
    for error in errors if missing else errors[:-1]:
        note(error)
    fail_if_silent(missing)
    if errors:
        raise click.ClickException(errors[-1])


_OFFSET_COLUMNS = ["topic", ">partition", ">committed", ">end", ">lag", "member", "client", "host"]
_MEMBER_COLUMNS = ["member", "instance", "client", "host", ">count", "partitions"]


def _print_group(group: GroupDescription, offsets: list[dict[str, Any]], waits: list[str], *, members: bool) -> None:
    """Print tables of a group: its state, the clients that had to wait, and its members or offsets."""
    columns = _MEMBER_COLUMNS if members else _OFFSET_COLUMNS
    records = _member_records(group) if members else offsets
    if output_format() == "tsv":
        for wait in waits:
            note(wait)
        print_records(["group", *columns], [{"group": group.group_id, **record} for record in records])
        return
    protocol = f", by {group.protocol}" if group.protocol else ""
    print_line(group.group_id, bold=True)
    where = "through ZooKeeper" if group.protocol_type == KIND else f"by broker {group.coordinator}"
    print_line(f"{group.state}{protocol}, coordinated {where}, "
               f"{len(group.members)} members, {_total(offsets)}")  # fmt: skip
    for wait in waits:
        print_line(wait)
    print_records(columns, records)
    print_line("")


def _total(offsets: list[dict[str, Any]]) -> str:
    """Return the lag of a group as text, such as `lag 120, 2 partitions unknown`."""
    lag, unknown = total_lag(offsets)
    if lag is None or not unknown:
        return f"lag {'unknown' if lag is None else lag}"
    return f"lag {lag}, {unknown} partition{'s' * (unknown > 1)} unknown"


def _member_records(group: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.host,
            "count": len(member.assignment),
            "partitions": " ".join(map(str, sorted(member.assignment))),
        }
        for member in group.members
    ]


def _as_json(group: GroupDescription, rows: list[dict[str, Any]], waited: list[dict[str, Any]]) -> dict[str, Any]:
    lag, unknown = total_lag(rows)
    return {
        "group": group.group_id,
        "state": group.state,
        "kind": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": None if group.protocol_type == KIND else group.coordinator,
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "topics": list(member.topics),
                "partitions": [{"topic": p.topic, "partition": p.partition} for p in sorted(member.assignment)],
            }
            for member in group.members
        ],
        "lag": lag,
        "lag_unknown_partitions": unknown,
        "offsets": rows,
        "throttled": throttled_of(group, waited),
    }


groups.add_command(reset_offsets)
groups.add_command(seek)


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@output_option
@bootstrap_option
def settings(names: Sequence[str], bootstrap: str) -> None:
    """Show the settings of GROUPs of the newer protocol, and where each value comes from.

    Prints for each setting: group, name, value, source.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = [(name, entry) for name in names for entry in admin.describe_configs("group", name)]
    rows = [{"group": name, "name": e.name, "value": e.value, "source": e.source} for name, e in found]
    print_records(["group", "name", "value", "source"], rows)


@groups.command()
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("-c", "--config", "configs", multiple=True, metavar="NAME=VALUE", callback=assignments,
              help="Change a setting. Repeatable.")  # fmt: skip
@click.option("-d", "--delete-config", "deleted", multiple=True, metavar="NAME",
              help="Go back to the broker's value of a setting. Repeatable.")  # fmt: skip
@bootstrap_option
def alter(name: str, configs: dict[str, str], deleted: Sequence[str], bootstrap: str) -> None:
    """Change settings of a group of the newer protocol. Its members follow with their next heartbeats.

    \b
    pylogd groups alter billing --config consumer.session.timeout.ms=60000
    pylogd groups alter billing --delete-config consumer.session.timeout.ms
    """
    if not (configs or deleted):
        raise click.UsageError("nothing to change: give --config or --delete-config")
    with connect(bootstrap) as connected, Admin(connected) as admin:
        admin.alter_configs("group", name, {**configs, **dict.fromkeys(deleted)})


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@click.option("--if-exists", is_flag=True, help="Ignore a group that does not exist.")
@yes_option
@bootstrap_option
def delete(names: Sequence[str], if_exists: bool, yes: bool, bootstrap: str) -> None:
    """Delete groups without members, and their committed offsets. On a terminal, asks for confirmation."""
    confirm(f"Delete {', '.join(names)}?", yes)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        outcome = admin.delete_groups(names)
    ignored = ErrorCode.GROUP_ID_NOT_FOUND if if_exists else None
    fail_on([f"{name}: {error}" for name, error in outcome.items() if error is not None and error.code is not ignored])


def lag_of(found: GroupsDescribed, name: str) -> list[dict[str, Any]]:
    """Return a record for each partition that has a member of the group or a committed offset.

    The end and the lag of a log that was deleted, or whose leader does not answer, are None.
    """
    committed = found.offsets.get(name, {})
    owners = {partition: member for member in found.groups[name].members for partition in member.assignment}
    rows = []
    for partition in sorted({*owners, *committed}):
        at, end, owner = committed.get(partition), found.ends.get(partition), owners.get(partition)
        rows.append({
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": None if at is None else at.offset,
            "end": end,
            "lag": _lag(at, end),
            "member": None if owner is None else owner.member_id,
            "client": None if owner is None else owner.client_id,
            "host": None if owner is None else owner.host,
        })  # fmt: skip
    return rows


def total_lag(rows: Iterable[Mapping[str, Any]]) -> tuple[int | None, int]:
    """Return the sum of the lags that are known, and the number of partitions whose lag is not.

    rows: from `lag_of`. The sum is None if there are partitions, and no lag is known.
    """
    lags = [row["lag"] for row in rows]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known or not lags else None, len(lags) - len(known)


def _lag(committed: OffsetAndMetadata | None, end: int | None) -> int | None:
    return None if committed is None or end is None else max(0, end - committed.offset)


def throttled_clients(admin: Admin, timeout: float) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the clients that had to wait in the last minute, with the broker, from all brokers that report them, and
    the ids of the brokers that do not answer within `timeout` seconds.

    Brokers count waits by client, since a fetch does not say its group.

    A broker that the user may not ask, or that is not pylogd of this release, adds nothing.
    """
    found = []
    silent = []
    nodes = [broker.node_id for broker in admin.cluster.brokers()]
    for node, entries in admin.configs_by_broker(nodes, [_THROTTLED], timeout).items():
        if isinstance(entries, (KafkaError, UnsupportedByBroker)):
            continue
        if isinstance(entries, PylogdError):
            silent.append(node)
            continue
        for entry in entries:
            if entry.name == _THROTTLED and entry.value:
                found += [{"broker": node, **client} for client in json.loads(entry.value)]
    return found, silent


def throttled_of(group: GroupDescription, clients: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the clients that are members of a group: those with the client id and host of one.

    Clients that share both can't be told apart.
    """
    members = {(member.client_id, member.host.removeprefix("/")) for member in group.members}
    return [client for client in clients if (client["client"], client["host"]) in members]


def throttled_text(client: dict[str, Any]) -> str:
    """Return the fields of a client that are shown."""
    busy = "" if client["utilization"] is None else f" at {client['utilization']:.0%}"
    return (
        f"throttled: {client['seconds']:.1f} s in the last minute: client {client['client']!r} of {client['host']}, "
        f"reading {client['partition']} from broker {client['broker']}, disk {client['disk']} ({client['directory']})"
        f"{busy}"
    )
