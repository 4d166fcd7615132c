"""Compare all places of a run with the producers' own journals: log, copy, lake, and what was handed out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pylogd.client import Consumer, TopicPartition
from pylogd.lake.tables.parquet.files import COMMITS
from tests.chain.journals import Sent, Window, check_group, check_log, handed, windows
from tests.chain.scene import ConsumerGroup
from tests.kills.comparing import LakeFault, check_history, check_same_rows, compare, read_log, reader_of
from tests.kills.lakes import RoundLake


def ends_of(address: str, topic: str) -> dict[int, int]:
    """Return the end of each partition as readers of committed records see it. Raises KafkaError."""
    with reader_of(address) as consumer:
        return {place[1]: end for place, end in consumer.end_offsets(consumer.partitions(topic)).items()}


def _logs(consumer: Consumer, topic: str) -> dict[int, pa.Table]:
    places = [TopicPartition(topic, place[1]) for place in consumer.partitions(topic)]
    return {place[1]: read_log(consumer, place, end) for place, end in consumer.end_offsets(places).items()}


@dataclass(frozen=True, slots=True)
class Found:
    """The serving cluster's log, by partition, and the journals with which it agrees."""

    logs: Mapping[int, pa.Table]
    journals: Mapping[str, Sent]

    @classmethod
    def read(cls, address: str, topic: str, journals: Mapping[str, Sent]) -> Found:
        """Read the log, and compare. Raises LakeFault."""
        with reader_of(address) as consumer:
            logs = _logs(consumer, topic)
        check_log(logs, journals)
        return cls(logs, journals)

    def counts(self) -> tuple[int, int, int]:
        """Return how many events were sent, how many acknowledged, and how many are there."""
        sent = sum(len(each.sent) for each in self.journals.values())
        acked = sum(len(each.acked) for each in self.journals.values())
        return sent, acked, sum(table.num_rows for table in self.logs.values())

    def windows(self, killed: Mapping[str, Sequence[int]], width_ms: int) -> dict[int, Window]:
        """Return the truth about each window. killed: the last number of each process that was killed."""
        return windows(self.logs.values(), self.journals, killed, width_ms)


def check_copies(found: Found, address: str, topic: str, lake: RoundLake) -> int:
    """Compare log and copy, and copy and lake, row by row. Return the number of commits. Raises LakeFault."""
    with reader_of(address) as consumer:
        for partition, copy in _logs(consumer, topic).items():
            check_same_rows((topic, partition), found.logs[partition], copy)
    if compare(address, topic, lake, "committed") != found.counts()[2]:
        raise LakeFault(f"the lake has not the {found.counts()[2]} events of the log")
    return check_history(lake, gaps=True)


def check_reads(group: ConsumerGroup, ends: Mapping[int, int]) -> int:
    """Check what a group was handed. Return the number of records. Raises LakeFault."""
    log = [each for member in group.all for each in handed(member.read.stem, member.entries())]
    return check_group(group.name, log, ends)


def latencies(lake: Path) -> list[tuple[int, int]]:
    """Return the time of each send, and how long it took until its row was in a complete commit, in milliseconds."""
    found: list[tuple[int, int]] = []
    for path in sorted((lake / COMMITS).glob("*.json")):
        done = path.with_suffix(".done")
        seen_ms = int((done if done.exists() else path).stat().st_mtime * 1000)
        for added in json.loads(path.read_bytes())["added"]:
            column = pq.read_table(lake / added["path"], columns=["timestamp"], partitioning=None).column(0)
            times = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
            found += [(ms, seen_ms - ms) for ms in times]
    return sorted(found)
