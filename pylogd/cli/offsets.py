"""`pylogd offsets`: show the first and the end offset of partitions, and the offset at a time."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pylogd.cli.common import bootstrap_option, connect, json_option, parse_time
from pylogd.cli.output import print_json, print_table
from pylogd.client import Admin
from pylogd.client.core.admin.offsets import EARLIEST, LATEST


@click.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...")
@click.option("--time", "when", metavar="TIME", help="Also show the first offset at or after a time: 2026-11-21T08:00, "
              "@1795219200 (seconds since 1970), or 15m, 2h, 3d ago.")  # fmt: skip
@json_option
@bootstrap_option
def offsets(names: Sequence[str], when: str | None, as_json: bool, bootstrap: str) -> None:
    """Show the first and the end offset of each partition of TOPICs, or of all topics.

    In a pipe, a line for each partition: topic, partition, beginning, end, records (if none was compacted away),
    and the offset for --time, which is -1 if all records are older.

    \b
    pylogd offsets events
    pylogd offsets events --time 1h
    """
    timestamp = None
    if when is not None and (timestamp := parse_time(when)) is None:
        raise click.BadParameter(
            f"{when!r} is not a time: use 2026-11-21T08:00, @SECONDS, 15m, 2h or 3d", param_hint="--time"
        )
    with connect(bootstrap) as connected, Admin(connected) as admin:
        topics = list(names) or [topic.name for topic in admin.list_topics()]
        partitions = [partition for name in topics for partition in admin.cluster.partitions(name)]
        begins = admin.offsets(dict.fromkeys(partitions, EARLIEST))
        ends = admin.offsets(dict.fromkeys(partitions, LATEST))
        at = {} if timestamp is None else admin.offsets(dict.fromkeys(partitions, timestamp))
    columns = ["topic", ">partition", ">beginning", ">end", ">records"] + ([">at time"] if at else [])
    rows: list[list[object]] = []
    for partition in partitions:
        first, end = begins[partition].offset, ends[partition].offset
        row: list[object] = [partition.topic, partition.partition, first, end, end - first]
        rows.append([*row, at[partition].offset] if at else row)
    if as_json:
        names_ = [column.lstrip(">").replace(" ", "_") for column in columns]
        print_json([dict(zip(names_, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows)
