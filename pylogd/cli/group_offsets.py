"""`pylogd groups reset-offsets` and `groups seek`: move the committed offsets of a group.

Both make a plan, which `Admin.plan_group_offsets` keeps within the logs, and carry it out with one request.
`reset-offsets` has the options of Kafka's tool and shows the plan unless it is told to execute it; `seek` has those of
rpk and executes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

import click

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.cli.common import bootstrap_option, connect, format_time, given_time, parse_time
from pylogd.cli.names import check_partitions, group_names
from pylogd.cli.output import confirm, note, output_option, print_records, yes_option
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.model import OffsetAndMetadata, OffsetSpec

_SHIFT: Final = re.compile(r"[+-]\d+")

#: The new offset of each partition; None to delete the committed one.
_Plan = dict[TopicPartition, int | None]


@click.command("reset-offsets")
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
    """Move the committed offsets of GROUP, as Kafka's tool does. Its consumers must be stopped first.

    Shows the plan; nothing is changed without --execute. An offset outside of a log becomes the nearest offset in it.
    `pylogd groups seek` does the same with fewer words.

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
        partitions = sorted(committed) if all_topics else _chosen_partitions(admin, topics)
        plan: _Plan
        if spec is None:
            plan = {partition: None for partition in partitions if partition in committed}
        else:
            plan = dict(admin.plan_group_offsets(name, partitions, spec))
        if execute and plan:
            _execute(admin, name, plan)
    _show_plan(plan, committed)
    _explain(plan, partitions, spec)
    if not execute:
        note("Nothing was changed. Use --execute to make the changes.")


@click.command()
@click.argument("name", metavar="GROUP", shell_complete=group_names)
@click.option("--to", "where", metavar="WHERE",
              help="start, end, an offset, +N or -N records from the committed offset, or a time: 2026-11-21T08:00, "
              "@1795219200 (seconds since 1970), or 15m, 2h, 3d ago.")  # fmt: skip
@click.option("--to-group", "other", metavar="GROUP", shell_complete=group_names,
              help="To the committed offsets of another group.")  # fmt: skip
@click.option("--to-file", "file", type=click.File("rb"), metavar="FILE",
              help="To the offsets of a file (- for standard input): TOPIC PARTITION OFFSET on each line.")  # fmt: skip
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION,...]",
              help="Only this topic. With --to, the group may be new to it. Repeatable.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be changed.")
@yes_option
@output_option
@bootstrap_option
def seek(
    name: str, where: str | None, other: str | None, file: BinaryIO | None, topics: Sequence[str], dry_run: bool,
    yes: bool, bootstrap: str,
) -> None:  # fmt: skip
    """Move the committed offsets of GROUP. Its consumers must be stopped first. On a terminal, asks for confirmation.

    Without --topic it moves in every topic of which it has committed offsets, or which the other group or the file
    names. An offset outside of a log becomes the nearest offset in it; one that is in no log is refused.

    Prints for each partition: topic, partition, committed (before), new.

    \b
    pylogd groups seek billing --to start
    pylogd groups seek billing --to -100 --topic events:0,3
    pylogd groups seek billing --to 2h --dry-run
    pylogd groups seek billing-copy --to-group billing
    """
    if sum(given is not None for given in (where, other, file)) != 1:
        raise click.UsageError("give exactly one of --to, --to-group, --to-file")
    spec = None if where is None else _parse_target(where)
    listed = None if file is None else _read_offsets(file)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        committed = admin.group_offsets(name)
        if other is not None:
            listed = {at: found.offset for at, found in admin.group_offsets(other).items()}
        known = committed if listed is None else listed
        partitions = _chosen_partitions(admin, topics) if topics else sorted(known)
        if listed is not None:
            spec = OffsetSpec(offsets={at: listed[at] for at in partitions if at in listed})
            partitions = list(spec.offsets or {})
        if not partitions or spec is None:
            raise click.ClickException(_why_nothing_moves(name, other, topics))
        plan: _Plan = dict(admin.plan_group_offsets(name, partitions, spec))
        if spec.offset is not None and spec.offset not in plan.values():
            # rpk takes numbers for times: what was meant as one would move the group to the end.
            raise click.ClickException(f"no partition has offset {spec.offset}; a time is written @{spec.offset}")
        if plan and not dry_run:
            confirm(f"Move {name} in {len(plan)} partitions?", yes)
            _execute(admin, name, plan)
    _show_plan(plan, committed)
    _explain(plan, partitions, spec)
    if dry_run:
        note("Nothing was changed (--dry-run).")


def _execute(admin: Admin, name: str, plan: _Plan) -> None:
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
    timestamp = None if when is None else given_time(when, "--to-time")
    if timestamp is not None:
        note(f"to {format_time(timestamp)}")
    return None if forget else OffsetSpec(earliest, offset, shift, timestamp)


def _parse_target(where: str) -> OffsetSpec:
    """Return the target in --to of `seek`."""
    if where in ("start", "beginning"):
        return OffsetSpec(earliest=True)
    if where == "end":
        return OffsetSpec()
    if _SHIFT.fullmatch(where):
        return OffsetSpec(shift=int(where))
    if where.isdecimal():
        return OffsetSpec(offset=int(where))
    timestamp = parse_time(where)
    if timestamp is None:
        raise click.BadParameter(
            f"{where!r}: use start, end, an offset, +N, -N, or a time such as 2h or 2026-11-21T08:00",
            param_hint="--to",
        )
    note(f"to {format_time(timestamp)}")
    return OffsetSpec(timestamp=timestamp)


def _read_offsets(file: BinaryIO) -> dict[TopicPartition, int]:
    """Return the offsets in a file with TOPIC PARTITION OFFSET on each line. Raises BadParameter.

    The file is read whole before anything is changed.
    """
    lines: dict[TopicPartition, int] = {}
    found = {}
    for number, line in enumerate(file, 1):
        fields = line.decode(errors="replace").split()
        if not fields:
            continue
        if len(fields) != 3 or not (fields[1].isdecimal() and fields[2].isdecimal()):
            raise _bad_file(file, f"line {number}: not TOPIC PARTITION OFFSET: {' '.join(fields)!r}")
        place = TopicPartition(fields[0], int(fields[1]))
        if place in found:
            raise _bad_file(file, f"line {number}: {place} has an offset in line {lines[place]} already")
        found[place], lines[place] = int(fields[2]), number
    if not found:
        raise _bad_file(file, "it has no offsets")
    return found


def _bad_file(file: BinaryIO, text: str) -> click.BadParameter:
    name = "standard input" if file.name == "<stdin>" else file.name
    return click.BadParameter(f"{name}: {text}. Nothing was changed", param_hint="--to-file")


def _chosen_partitions(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that the TOPIC[:PARTITION,...] of --topic name."""
    return [partition for text in topics for partition in _partitions(admin, text)]


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
    check_partitions(topic, wanted, there)
    return [TopicPartition(topic, index) for index in wanted]


def _why_nothing_moves(name: str, other: str | None, topics: Sequence[str]) -> str:
    """Return the reason why `seek` has no partition to change."""
    if topics:
        return f"nothing says where to move in {', '.join(topics)}"
    if other is not None:
        return f"group {other} has no committed offsets"
    return f"group {name} has no committed offsets: name a topic with --topic"


def _show_plan(plan: _Plan, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "topic": p.topic, "partition": p.partition, "committed": committed[p].offset if p in committed else None,
            "new": offset,
        }
        for p, offset in plan.items()
    ]  # fmt: skip
    print_records(["topic", ">partition", ">committed", ">new"], rows)


def _explain(plan: _Plan, partitions: Sequence[TopicPartition], spec: OffsetSpec | None) -> None:
    """Report on standard error where the plan differs from the request.

    partitions: the requested partitions.
    """
    if missing := len(set(partitions) - set(plan)):
        note(f"{missing} partitions have no committed offset to shift or delete; they stay unchanged")
    wanted = None if spec is None else spec.offsets
    if spec is not None and spec.offset is not None:
        wanted = dict.fromkeys(partitions, spec.offset)
    if wanted and (moved := sum(plan[at] != offset for at, offset in wanted.items())):
        note(f"{moved} partitions don't have that offset: they get the nearest one in their logs")
