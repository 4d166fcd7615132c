"""`pylogd logdirs`: sums of the sizes in the data directories of brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from pylogd.cli.common import bootstrap_option, connect, format_bytes
from pylogd.cli.names import topic_names
from pylogd.cli.output import output_option, print_records
from pylogd.cli.silent_brokers import ask_log_dirs, fail_if_silent, log_dir_state
from pylogd.client import Admin
from pylogd.client.core.model import LogDir

#: For each value of `by`, the fields that identify a sum.
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "broker": ("broker",),
    "directory": ("broker", "directory"),
    "topic": ("topic",),
    "partition": ("broker", "directory", "topic", "partition"),
}
_RIGHT: Final = ("broker", "partition")


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=topic_names)
@click.option("--broker", "brokers", type=int, multiple=True, metavar="ID", help="Only this broker. Repeatable.")
@click.option("--by", type=click.Choice(list(_KEYS)), default="directory", show_default=True, help="What to add up by.")
@output_option
@bootstrap_option
def logdirs(topics: Sequence[str], brokers: Sequence[int], by: str, bootstrap: str) -> None:
    """Show how much is in the data directories of brokers, of all topics or of TOPICS.

    Prints for each sum: broker, directory, topic, partition (as --by says), partitions (replicas), bytes; by directory
    also total_bytes, usable_bytes and state. The largest sums come first, except by directory. Brokers that do not
    answer are left out; standard error names them, and the exit status is 1.

    \b
    pylogd logdirs
    pylogd logdirs --by topic
    pylogd logdirs --by partition events --output json
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found, silent = ask_log_dirs(admin, brokers or [one.node_id for one in connected.brokers()])
    rows = add_up(found, by, topics)
    columns = [f">{name}" if name in _RIGHT else name for name in _KEYS[by]]
    columns += [] if by == "partition" else [">partitions"]
    columns += [">bytes"] + ([">total_bytes", ">usable_bytes", "state"] if by == "directory" else [])
    print_records(columns, rows, dict.fromkeys(("bytes", "total_bytes", "usable_bytes"), _size))
    fail_if_silent(silent)


def _size(value: int) -> str:
    return "-" if value < 0 else format_bytes(value)


def add_up(found: Sequence[LogDir], by: str, topics: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a record for each sum, with its number of replicas and bytes.

    topics: the topics to count; empty means all.
    """
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in found:
        if by in ("broker", "directory"):  # even if it has no partition
            _sum(sums, by, _fields(one, "", -1), one)
        for at, size in one.sizes.items():
            if not topics or at.topic in topics:
                row = _sum(sums, by, _fields(one, at.topic, at.partition), one)
                row["partitions"] += 1
                row["bytes"] += size
    rows = list(sums.values())
    return rows if by in ("broker", "directory") else sorted(rows, key=lambda row: -row["bytes"])


def _fields(one: LogDir, topic: str, partition: int) -> dict[str, Any]:
    return {"broker": one.broker, "directory": one.path, "topic": topic, "partition": partition}


def _sum(
    sums: dict[tuple[Any, ...], dict[str, Any]], by: str, fields: Mapping[str, Any], one: LogDir
) -> dict[str, Any]:
    key = tuple(fields[name] for name in _KEYS[by])
    if key not in sums:
        sums[key] = {name: fields[name] for name in _KEYS[by]} | {"partitions": 0, "bytes": 0}
        if by == "directory":
            sums[key] |= {
                "total_bytes": one.total_bytes, "usable_bytes": one.usable_bytes, "state": log_dir_state(one),
            }  # fmt: skip
    return sums[key]
