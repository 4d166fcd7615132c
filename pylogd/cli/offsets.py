"""`pylogd offsets`: show the first and the end offset of partitions, and the offset at a time."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pylogd.cli.common import bootstrap_option, connect, given_time
from pylogd.cli.names import matching, regex_option, topic_names
from pylogd.cli.output import output_option, print_records
from pylogd.client import Admin
from pylogd.client.core.admin.offsets import EARLIEST, LATEST


@click.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...", shell_complete=topic_names)
@regex_option
@click.option("--time", "when", metavar="TIME", help="Also show the first offset at or after a time: 2026-11-21T08:00, "
              "@1795219200 (seconds since 1970), or 15m, 2h, 3d ago.")  # fmt: skip
@output_option
@bootstrap_option
def offsets(names: Sequence[str], regex: bool, when: str | None, bootstrap: str) -> None:
    """Show the first and the end offset of each partition of TOPICs, or of all topics.

    Prints for each partition: topic, partition, beginning, end, records (if none was compacted away), and with --time
    at_time, which is -1 if all records are older.

    \b
    pylogd offsets events
    pylogd offsets events --time 1h
    """
    timestamp = None if when is None else given_time(when, "--time")
    with connect(bootstrap) as connected, Admin(connected) as admin:
        topics = list(names)
        if regex or not topics:
            there = [topic.name for topic in admin.list_topics()]
            topics = matching(names, there) if names else there
        partitions = [partition for name in topics for partition in admin.cluster.partitions(name)]
        begins = admin.offsets(dict.fromkeys(partitions, EARLIEST))
        ends = admin.offsets(dict.fromkeys(partitions, LATEST))
        at = {} if timestamp is None else admin.offsets(dict.fromkeys(partitions, timestamp))
    columns = ["topic", ">partition", ">beginning", ">end", ">records"] + ([">at_time"] if at else [])
    rows = []
    for partition in partitions:
        first, end = begins[partition].offset, ends[partition].offset
        row = {"topic": partition.topic, "partition": partition.partition, "beginning": first, "end": end,
               "records": end - first}  # fmt: skip
        rows.append({**row, "at_time": at[partition].offset} if at else row)
    print_records(columns, rows)
