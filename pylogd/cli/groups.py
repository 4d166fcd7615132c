"""`pylogd groups`: show consumer groups and their lag, reset their offsets, change their settings, delete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pylogd.cli import throttled
from pylogd.cli.commands import Commands
from pylogd.cli.common import assignments, bootstrap_option, connect, format_time, parse_time
from pylogd.cli.completing import group_names
from pylogd.cli.group_lag import lag_of, totals
from pylogd.cli.output import confirmed, note, output_format, output_option, print_document, print_line, print_records
from pylogd.cli.selecting import matching, regex_option
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.model import GroupDescription, OffsetAndMetadata, OffsetSpec
from pylogd.errors import ErrorCode, KafkaError


@click.group(cls=Commands)
def groups() -> None:
    """List, describe, reset and delete consumer groups.

    The consumers of a group share the partitions of topics: each partition is read by one of them. The group commits
    the offset up to which it has read; the number of records after it is the group's lag.

    \b
    pylogd groups list --lag
    pylogd groups describe billing             members, offsets, lag
    pylogd groups reset-offsets billing --topic events --to-earliest
    pylogd groups alter billing --config consumer.session.timeout.ms=60000
    pylogd groups delete billing
    """


@groups.command("list")
@click.argument("names", nargs=-1, metavar="[GROUP]...", shell_complete=group_names)
@regex_option
@click.option("-s", "--state", "states", multiple=True, metavar="STATE",
              help="Only groups in this state: Stable, Empty, PreparingRebalance, CompletingRebalance.")  # fmt: skip
@click.option("--lag", is_flag=True, help="Also ask for the members, and the records that the groups have not read.")
@output_option
@bootstrap_option
def list_(names: Sequence[str], regex: bool, states: Sequence[str], lag: bool, bootstrap: str) -> None:
    """List groups with their state: all, or those with the names.

    Prints for each group: group, state, kind, coordinator; with --lag also members and lag, the sum of all partitions.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.list_groups(states)
        if names:
            chosen = matching(names, (one.group_id for one in found)) if regex else names
            found = [one for one in found if one.group_id in chosen]
        figures = totals(admin, [one.group_id for one in found]) if lag else {}
    columns = ["group", "state", "kind", ">coordinator"] + ([">members", ">lag"] if lag else [])
    rows = [
        {"group": g.group_id, "state": g.state, "kind": g.protocol_type or None, "coordinator": g.coordinator,
         **figures.get(g.group_id, {})} for g in found
    ]  # fmt: skip
    print_records(columns, rows)


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names)
@regex_option
@click.option("-m", "--members", is_flag=True, help="Show the members instead of the offsets.")
@output_option
@bootstrap_option
def describe(names: Sequence[str], regex: bool, members: bool, bootstrap: str) -> None:
    """Show the committed offsets, the lag and the members of GROUPs.

    Prints for each partition: topic, partition, committed, end, lag, member, client, host. With --members: member,
    instance, client, host, count (of partitions), partitions. tsv has the group before. Members that had to wait for a
    busy disk are named with the time (docs/lagging-consumers.md); with tsv, on standard error.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        if regex:
            names = matching(names, (one.group_id for one in admin.list_groups()))
        described = [admin.describe_group(name) for name in names]
        rows = {group.group_id: lag_of(admin, group) for group in described}
        waited = throttled.throttled_clients(admin)
    if print_document([_as_json(group, rows[group.group_id], waited) for group in described]):
        return
    columns = _MEMBER_COLUMNS if members else _OFFSET_COLUMNS
    for group in described:
        records = _member_records(group) if members else rows[group.group_id]
        waits = [throttled.line(client) for client in throttled.of_group(group, waited)]
        if output_format() == "tsv":
            for wait in waits:
                note(wait)
            print_records(["group", *columns], [{"group": group.group_id, **record} for record in records])
            continue
        lag = sum(row["lag"] or 0 for row in rows[group.group_id])
        protocol = f", by {group.protocol}" if group.protocol else ""
        print_line(group.group_id, bold=True)
        print_line(f"{group.state}{protocol}, coordinated by broker {group.coordinator}, "
                   f"{len(group.members)} members, lag {lag}")  # fmt: skip
        for wait in waits:
            print_line(wait)
        print_records(columns, records)
        print_line("")


_OFFSET_COLUMNS = ["topic", ">partition", ">committed", ">end", ">lag", "member", "client", "host"]
_MEMBER_COLUMNS = ["member", "instance", "client", "host", ">count", "partitions"]


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
    return {
        "group": group.group_id,
        "state": group.state,
        "kind": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
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
        "offsets": rows,
        "throttled": throttled.of_group(group, waited),
    }


@groups.command("reset-offsets")
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION,...]",
              help="Topic to reset. Repeatable.")  # fmt: skip
@click.option("--all-topics", is_flag=True, help="Reset all topics of which the group has committed offsets.")
@click.option("--to-earliest", is_flag=True, help="To the first available record.")
@click.option("--to-latest", is_flag=True, help="To the end: only new records are read.")
@click.option("--to-offset", type=click.IntRange(0), metavar="OFFSET", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="By N records from the committed offset; may be negative.")
@click.option("--to-time", "when", metavar="TIME", help="To the first record at or after a time: 2026-11-21T08:00, "
              "@1795219200 (seconds since 1970), or 15m, 2h, 3d ago.")  # fmt: skip
@click.option("--delete", "forget", is_flag=True, help="Delete the committed offsets.")
@click.option("--execute", is_flag=True, help="Make the changes. Without this, only show them.")
@output_option
@bootstrap_option
def reset_offsets(
    name: str, topics: Sequence[str], all_topics: bool, to_earliest: bool, to_latest: bool, to_offset: int | None,
    shift_by: int | None, when: str | None, forget: bool, execute: bool, bootstrap: str,
) -> None:  # fmt: skip
    """Move the committed offsets of GROUP. Its consumers must be stopped first.

    Shows the plan; nothing is changed without --execute. An offset outside of a log becomes the nearest offset in it.

    Prints for each partition: topic, partition, committed, new.

    \b
    pylogd groups reset-offsets billing --topic events --to-earliest
    pylogd groups reset-offsets billing --topic events:0,3 --shift-by -100
    pylogd groups reset-offsets billing --all-topics --to-time 2h --execute
    """
    spec = _spec(to_earliest, to_latest, to_offset, shift_by, when, forget)
    if bool(topics) == all_topics:
        raise click.UsageError("give either --topic or --all-topics")
    with connect(bootstrap) as connected, Admin(connected) as admin:
        committed = admin.group_offsets(name)
        partitions = sorted(committed) if all_topics else [p for text in topics for p in _partitions(admin, text)]
        plan: dict[TopicPartition, int | None]
        if spec is None:
            plan = {partition: None for partition in partitions if partition in committed}
        else:
            plan = dict(admin.plan_group_offsets(name, partitions, spec))
        if execute and plan:
            _execute(admin, name, plan)
    _show_plan(plan, committed)
    if missing := len(set(partitions) - set(plan)):
        note(f"{missing} partitions have no committed offset to shift or delete; they stay unchanged")
    if not execute:
        note("Nothing was changed. Use --execute to make the changes.")


def _execute(admin: Admin, name: str, plan: dict[TopicPartition, int | None]) -> None:
    targets = {partition: offset for partition, offset in plan.items() if offset is not None}
    try:
        if targets:
            admin.alter_group_offsets(name, targets)
        else:
            admin.delete_group_offsets(name, list(plan))
    except KafkaError as error:
        if error.code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            raise click.ClickException(f"group {name} has members; stop its consumers first") from error
        raise


def _spec(
    earliest: bool, latest: bool, offset: int | None, shift: int | None, when: str | None, forget: bool
) -> OffsetSpec | None:
    """Return the target of a reset; None to delete the offsets."""
    if sum([earliest, latest, offset is not None, shift is not None, when is not None, forget]) != 1:
        raise click.UsageError(
            "give exactly one of --to-earliest, --to-latest, --to-offset, --shift-by, --to-time, --delete"
        )
    timestamp = None
    if when is not None and (timestamp := parse_time(when)) is None:
        raise click.BadParameter(
            f"{when!r} is not a time: use 2026-11-21T08:00, @SECONDS, 15m, 2h or 3d", param_hint="--to-time"
        )
    if timestamp is not None:
        note(f"to {format_time(timestamp)}")
    return None if forget else OffsetSpec(earliest, offset, shift, timestamp)


def _partitions(admin: Admin, text: str) -> list[TopicPartition]:
    """Return the partitions that TOPIC[:PARTITION,...] names."""
    topic, colon, numbers = text.partition(":")
    there = [partition.index for partition in admin.describe_topic(topic).partitions]
    if not colon:
        return [TopicPartition(topic, index) for index in there]
    try:
        wanted = [int(number) for number in numbers.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not TOPIC[:PARTITION,...]", param_hint="--topic") from None
    if missing := set(wanted) - set(there):
        raise click.ClickException(f"topic {topic} has no partition {min(missing)}: it has {len(there)}")
    return [TopicPartition(topic, index) for index in wanted]


def _show_plan(plan: dict[TopicPartition, int | None], committed: dict[TopicPartition, OffsetAndMetadata]) -> None:
    rows = [
        {
            "topic": p.topic, "partition": p.partition, "committed": committed[p].offset if p in committed else None,
            "new": offset,
        }
        for p, offset in plan.items()
    ]  # fmt: skip
    print_records(["topic", ">partition", ">committed", ">new"], rows)


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
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
def delete(names: Sequence[str], if_exists: bool, yes: bool, bootstrap: str) -> None:
    """Delete groups without members, and their committed offsets. On a terminal, asks for confirmation."""
    if not yes and not confirmed(f"Delete {', '.join(names)}?"):
        raise click.exceptions.Exit(1)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        outcome = admin.delete_groups(names)
    ignored = ErrorCode.GROUP_ID_NOT_FOUND if if_exists else None
    errors = [f"{name}: {error}" for name, error in outcome.items() if error is not None and error.code is not ignored]
    for error in errors[:-1]:
        note(f"Error: {error}")
    if errors:
        raise click.ClickException(errors[-1])
