"""A consumer process for tests that kill, stop and pause it. It logs its actions as lines of JSON.

    python zookeeper_consumer.py ZOOKEEPER BOOTSTRAP GROUP TOPIC LOG SESSION_MS

Lines: {"at": seconds, "assigned": {partition: offset}, "may": bool}, {"at": ..., "read": [partition, from, to]},
{"at": ..., "revoked": [partitions], "lost": bool}. `at` is the time of a clock that all processes share, read before
`may_fetch`. A line is written before its offset is stored, so that commits are never ahead of the log. On SIGTERM the
consumer leaves the group.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from itertools import groupby

from pylogd.base.errors import KafkaError
from pylogd.client import Consumer, TopicPartition
from pylogd.client.core.errors import ClientError
from pylogd.client.zookeeper.bridge import ZooKeeperMembership
from pylogd.client.zookeeper.errors import RebalanceFailed
from pylogd.client.zookeeper.events import Assigned, Revoked
from pylogd.wire.records import Record

CLOSE_SECONDS = 60.0  # long enough to commit the last records when leaving on a busy machine


class Reader:
    """The consumer, its membership and its log."""

    def __init__(self, zookeeper: str, bootstrap: str, group: str, topic: str, log: str, session_ms: str) -> None:
        self.topic = topic
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.positions: dict[TopicPartition, int] = {}
        self.consumer = Consumer(bootstrap)
        self.membership = ZooKeeperMembership(
            zookeeper, group, {topic: 1}, session_timeout_ms=int(session_ms), commit_interval_ms=300
        )
        self.leaving = False
        signal.signal(signal.SIGTERM, self.leave)

    def leave(self, *_: object) -> None:
        self.leaving = True

    def write(self, at: float, **what: object) -> None:
        os.write(self.log, json.dumps({"at": at, **what}).encode() + b"\n")

    def run(self) -> None:
        self.membership.start(60.0)
        while not self.leaving:
            for event in self.news():
                self.apply(event)
            if self.positions:
                self.read()
        self.consumer.close()
        self.membership.close(CLOSE_SECONDS)

    def news(self) -> list[Assigned | Revoked]:
        """Return new events. If partitions can't be claimed for long, the membership keeps trying."""
        try:
            return self.membership.poll(0.0 if self.positions else 0.1)
        except RebalanceFailed as error:
            print(f"membership: {error!r}", file=sys.stderr, flush=True)
            return []

    def apply(self, event: Assigned | Revoked) -> None:
        at = now()
        if isinstance(event, Assigned):
            may = self.membership.may_fetch
            self.write(at, assigned={p.partition: offset for p, offset in event.offsets.items()}, may=may)
            self.positions.update({p: offset or 0 for p, offset in event.offsets.items()})
        else:
            for partition in event.partitions:
                del self.positions[partition]
            self.write(at, revoked=[p.partition for p in event.partitions], lost=event.lost)
            self.membership.done(event)
        self.consumer.assign(self.positions)

    def read(self) -> None:
        try:
            records = self.consumer.poll(0.05, 50)
        except (ClientError, KafkaError) as error:
            print(f"poll: {error!r}", file=sys.stderr, flush=True)
            time.sleep(0.1)
            return
        for partition, run in groupby(records, lambda record: record.partition):
            self.process(TopicPartition(self.topic, partition), run)

    def process(self, partition: TopicPartition, records: Iterable[Record]) -> None:
        offsets = [record.offset for record in records]
        at = now()
        if self.membership.may_fetch:
            self.write(at, read=[partition.partition, offsets[0], offsets[-1] + 1])
            self.positions[partition] = offsets[-1] + 1
            self.membership.store({partition: offsets[-1] + 1})
        else:
            self.consumer.seek(partition, self.positions[partition])


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


if __name__ == "__main__":
    Reader(*sys.argv[1:]).run()
