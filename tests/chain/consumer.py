"""A member of a group in ZooKeeper that writes down what `poll` hands out.

    python consumer.py ZOOKEEPER BOOTSTRAP GROUP TOPIC SESSION_SECONDS LOG

Lines of JSON: {"at": seconds, "assigned": [partitions]} and {"at": ..., "got": [[partition, first, last], ...]}. `at`
is the time of a clock that all processes share.

A process can be stopped between the last test of its lease and the application's first look at the records, and no
program can do anything about that. So the time of handing out is that of the last test if the thread has not worked
since for longer than it takes to return; whoever decodes records after the test has worked for longer.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from itertools import groupby
from typing import Final

from pylogd.client import Consumer, TopicPartition
from pylogd.client.blocking.zookeeper_group import ZooKeeperGroup
from pylogd.wire.records import Record

_RETURNING_SECONDS: Final = 0.0002  # of processor time
_MOST_RECORDS: Final = 5000


class Lease:
    """When this thread tested the lease the last time: by the shared clock, and by its processor time."""

    def __init__(self) -> None:
        self._at = self._worked = 0.0
        test = ZooKeeperGroup.may_fetch.fget  # type: ignore[attr-defined]
        thread = threading.get_ident()

        def may_fetch(group: ZooKeeperGroup) -> bool:
            before = now()
            found: bool = test(group)
            if threading.get_ident() == thread:
                self._at, self._worked = before, time.thread_time()
            return found

        ZooKeeperGroup.may_fetch = property(may_fetch)  # type: ignore[assignment, method-assign]

    def handed_out_at(self) -> float:
        """Return the time at which records were handed out. Call it at once."""
        worked, at = time.thread_time(), now()
        return self._at if worked - self._worked < _RETURNING_SECONDS else at


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def main(zookeeper: str, bootstrap: str, group: str, topic: str, session_seconds: str, log: str) -> None:
    """Read without end."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    lease = Lease()

    def write(at: float, **what: object) -> None:
        os.write(file, json.dumps({"at": at, **what}).encode() + b"\n")

    def assigned(partitions: Iterable[TopicPartition]) -> None:
        write(now(), assigned=[each.partition for each in partitions])

    consumer = Consumer(
        bootstrap, group_id=group, coordinator="zookeeper", zookeeper=zookeeper, auto_commit_interval=0.5,
        session_timeout=float(session_seconds), auto_offset_reset="earliest", max_poll_records=_MOST_RECORDS,
    )  # fmt: skip
    consumer.subscribe(topic, on_assign=assigned)
    while True:
        records = consumer.poll(0.2)
        at = lease.handed_out_at()
        if records:
            write(at, got=[run for partition, some in groupby(records, _partition) for run in runs(partition, some)])


def _partition(record: Record) -> int:
    return record.partition


def runs(partition: int, records: Iterable[Record]) -> list[list[int]]:
    """Return the offsets of a partition's records as ranges: partition, first, last."""
    found: list[list[int]] = []
    for record in records:
        if found and record.offset == found[-1][2] + 1:
            found[-1][2] = record.offset
        else:
            found.append([partition, record.offset, record.offset])
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
