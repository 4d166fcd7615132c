"""A mirror's target and source in memory, for tests of the loop that copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.consumer.reader import BatchChunk
from pylogd.client.core.model import TopicPartition
from pylogd.services.mirror.batches import BatchCopy, copy_of
from pylogd.services.mirror.offset_map import Run
from pylogd.services.mirror.target import Checkpoint, OnAppended, SourcePartition
from pylogd.wire.records import BatchHeader, NewRecord, decode_batch, encode_batch, parse_header

TOPIC_ID = bytes(15) + b"1"


class FakeCluster:
    """What is committed at the target; it outlives the targets that write to it."""

    def __init__(self) -> None:
        self.values: dict[TopicPartition, list[bytes]] = {}
        self.checkpoints: dict[SourcePartition, Checkpoint] = {}
        self.runs: dict[SourcePartition, list[Run]] = {}
        #: the checkpoint and the offset that each partition was started with last
        self.started: dict[SourcePartition, tuple[Checkpoint | None, int]] = {}
        self.opened = 0
        self.commits = 0
        #: what the next calls of these names fail with
        self.fails: dict[str, PylogdError] = {}
        self.full = False
        #: calls of `commit` that wait
        self.held: list[Deferred[None]] | None = None

    def fail(self, name: str) -> None:
        """Raise what a call of this name is to fail with, once."""
        error = self.fails.pop(name, None)
        if error is not None:
            raise error


class FakeTarget:
    """A target with transactions: nothing is there before `commit`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._appended: list[tuple[TopicPartition, BatchCopy, OnAppended]] = []
        self._told = 0

    async def open(self) -> None:
        self._cluster.fail("open")
        self._cluster.opened += 1

    async def checkpoints(self) -> Mapping[SourcePartition, Checkpoint]:
        self._cluster.fail("checkpoints")
        return dict(self._cluster.checkpoints)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: len(self._cluster.values.get(partition, ())) for partition in partitions}

    def start(self, key: SourcePartition, known: Checkpoint | None, offset: int, topic_id: bytes) -> None:
        self._cluster.started[key] = (known, offset)

    def copy_of(self, header: BatchHeader, batch: memoryview, position: int) -> BatchCopy | None:
        return copy_of(header, batch, position)

    async def begin(self) -> None:
        self._cluster.fail("begin")

    def append(self, partition: TopicPartition, batch: BatchCopy, on_appended: OnAppended) -> bool:
        self._cluster.fail("append")
        if self._cluster.full:
            return False
        self._appended.append((partition, batch, on_appended))
        return True

    async def flush(self) -> None:
        error = self._cluster.fails.pop("flush", None)
        ends = {partition: len(found) for partition, found in self._cluster.values.items()}
        for index, (partition, batch, on_appended) in enumerate(self._appended):
            offset = ends.get(partition, 0)
            ends[partition] = offset + batch.records
            if index >= self._told:
                on_appended(-1 if error else offset, error)
        self._told = len(self._appended)
        if error is not None:
            raise error

    async def commit(
        self, checkpoints: Mapping[SourcePartition, Checkpoint], runs: Mapping[SourcePartition, Sequence[Run]]
    ) -> None:
        if self._cluster.held is not None:
            held: Deferred[None] = Deferred()
            self._cluster.held.append(held)
            await held
        self._cluster.fail("commit")
        for partition, batch, _ in self._appended:
            found = self._cluster.values.setdefault(partition, [])
            found += [record.value or b"" for record in decode_batch(batch.batch)]
        self._appended.clear()
        self._told = 0
        self._cluster.checkpoints.update(checkpoints)
        for partition_, some in runs.items():
            self._cluster.runs.setdefault(partition_, []).extend(some)
        self._cluster.commits += 1

    async def close(self) -> None:
        self._appended.clear()


class FakeReader:
    """A source whose logs are lists of values; each `take` returns up to `most` of them as one batch."""

    def __init__(
        self, logs: dict[TopicPartition, list[bytes]], on_ready: Callable[[], None],
        on_error: Callable[[TopicPartition, PylogdError], None], most: int = 10,
    ) -> None:  # fmt: skip
        self._logs, self.on_ready, self.on_error = logs, on_ready, on_error
        self._most = most
        self._positions: dict[TopicPartition, int] = {}
        self.closed = False
        self.reads: list[tuple[TopicPartition, int, int]] = []

    @property
    def is_ready(self) -> bool:
        return any(at < len(self._logs[partition]) for partition, at in self._positions.items())

    def read(self, partition: TopicPartition, offset: int, epoch: int, topic_id: bytes) -> None:
        self.reads.append((partition, offset, epoch))
        self._positions[partition] = offset
        self.on_ready()

    def forget(self, partition: TopicPartition) -> None:
        self._positions.pop(partition, None)

    def epoch(self, partition: TopicPartition) -> int:
        return 3

    def position(self, partition: TopicPartition) -> int | None:
        return self._positions.get(partition)

    def end(self, partition: TopicPartition) -> int:
        return len(self._logs[partition])

    def take(self) -> BatchChunk | None:
        for partition, at in self._positions.items():
            values = self._logs[partition][at : at + self._most]
            if values:
                batch = encode_batch([NewRecord(None, v, 1) for v in values], base_offset=at, leader_epoch=3)
                self._positions[partition] = at + len(values)
                self._positions[partition] = self._positions.pop(partition)  # the others are next
                return partition, at, [(parse_header(batch), memoryview(batch))]
        return None

    def close(self) -> None:
        self.closed = True


def refused() -> Any:
    """Return an error that no retry helps."""
    return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed")
