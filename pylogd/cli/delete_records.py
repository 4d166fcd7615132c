"""`pylogd topics delete-records`: delete the oldest records of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pylogd.cli.common import bootstrap_option, connect, parse_time
from pylogd.cli.names import topic_names
from pylogd.cli.output import confirmed, note, output_option, print_records
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.offsets import EARLIEST, LATEST


@click.command("delete-records")
@click.argument("name", metavar="TOPIC", shell_complete=topic_names)
@click.option("-p", "--partition", "chosen", type=click.IntRange(0), multiple=True,
              help="Only this partition. Repeatable.")  # fmt: skip
@click.option("--before", required=True, metavar="WHERE",
              help="Delete what is before this: an offset, end (all records), or a time: 2026-11-21T08:00, @1795219200 "
              "(seconds since 1970), or 15m, 2h, 3d ago.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@output_option
@bootstrap_option
def delete_records(name: str, chosen: Sequence[int], before: str, dry_run: bool, yes: bool, bootstrap: str) -> None:
    """Delete the records of TOPIC before an offset or a time. On a terminal, asks for confirmation.

    Consumers can't read them from then on. Disks have their space back when a whole segment is deleted.

    Prints for each partition: topic, partition, beginning (before), new_beginning, deleted (if none was compacted
    away).

    \b
    pylogd topics delete-records events --before 7d --dry-run
    pylogd topics delete-records events --partition 3 --before 120000 --yes
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        partitions = _partitions(admin, name, chosen)
        begins = {at: found.offset for at, found in admin.offsets(dict.fromkeys(partitions, EARLIEST)).items()}
        targets = _targets(admin, partitions, before)
        targets = {at: max(offset, begins[at]) for at, offset in targets.items()}
        count = sum(offset - begins[at] for at, offset in targets.items())
        if not dry_run and count:
            if not yes and not confirmed(f"Delete {count} records of {name}?"):
                raise click.exceptions.Exit(1)
            targets |= admin.delete_records({at: offset for at, offset in targets.items() if offset > begins[at]})
    rows: list[dict[str, Any]] = [
        {"topic": at.topic, "partition": at.partition, "beginning": begins[at], "new_beginning": offset,
         "deleted": offset - begins[at]} for at, offset in sorted(targets.items())
    ]  # fmt: skip
    print_records(["topic", ">partition", ">beginning", ">new_beginning", ">deleted"], rows)
    if dry_run:
        note("Nothing was deleted (--dry-run).")


def _partitions(admin: Admin, name: str, chosen: Sequence[int]) -> list[TopicPartition]:
    there = [one.index for one in admin.describe_topic(name).partitions]
    if missing := set(chosen) - set(there):
        raise click.ClickException(f"topic {name} has no partition {min(missing)}: it has {len(there)}")
    return [TopicPartition(name, index) for index in chosen or there]


def _targets(admin: Admin, partitions: Sequence[TopicPartition], before: str) -> dict[TopicPartition, int]:
    """Return the first offset that stays in each partition."""
    ends = {at: found.offset for at, found in admin.offsets(dict.fromkeys(partitions, LATEST)).items()}
    if before == "end":
        return ends
    if before.isdecimal():
        return {at: min(int(before), end) for at, end in ends.items()}
    timestamp = parse_time(before)
    if timestamp is None:
        raise click.BadParameter(f"{before!r}: use an offset, end, or a time such as 7d", param_hint="--before")
    found = admin.offsets(dict.fromkeys(partitions, timestamp))
    return {at: ends[at] if found[at].offset < 0 else found[at].offset for at in partitions}
