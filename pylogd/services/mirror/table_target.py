"""A table as the end of a route: a Parquet lake, Iceberg or Delta (`pylogd.lake.tables`).

Strategy: batches wait in a queue until a thread takes all of them, decodes them into columns and writes them to files
(`table_load`). `commit` adds the files and the checkpoints to the table, both or neither: the checkpoints are the
table's own position. A commit is refused if the table's position has changed since its load began. So no fencing is
needed: if two workers load the same partition, because one of them was taken for dead, the first commit succeeds, and
the other worker starts again at the new position. Each record is in the table once.

Rules: all work on files runs in the thread, one call at a time, in order. The queue is limited. In the table, a topic
has its name at the target, and offsets are those of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.defer import Deferred

from pylogd.base.errors import PylogdError
from pylogd.base.threads import ThreadPool
from pylogd.client.core.model import TopicPartition
from pylogd.lake.tables.interface import Layout, Table
from pylogd.lake.tables.position import Position
from pylogd.services.mirror.batches import BatchCopy
from pylogd.services.mirror.errors import MirrorError
from pylogd.services.mirror.offset_map import Run
from pylogd.services.mirror.settings import SchemaSettings
from pylogd.services.mirror.table_load import Slice, TableLoader
from pylogd.services.mirror.target import Checkpoint, OnAppended, SourcePartition
from pylogd.wire.records import BatchHeader
from pylogd.wire.values import ZERO_UUID

#: The most bytes of received batches that wait for the thread.
_QUEUE_BYTES: Final = 32 << 20
_UNKNOWN: Final = -1


@dataclass(eq=False, slots=True)
class TableCheckpoints(Mapping[SourcePartition, Checkpoint]):
    """The position of a table as checkpoints. They have no time. The cluster and topic of the source are ignored."""

    _position: Position

    def __getitem__(self, key: SourcePartition) -> Checkpoint:
        """Return the checkpoint of a partition. Raises KeyError."""
        partition = key.target_topic, key.partition
        offset = self._position.offsets[partition]
        topic_id = self._position.topic_ids.get(key.target_topic)
        return Checkpoint(
            ZERO_UUID if topic_id is None else bytes.fromhex(topic_id), offset,
            self._position.leader_epochs.get(partition, _UNKNOWN), offset, _UNKNOWN,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._position.offsets)

    def __iter__(self) -> Any:
        """Iterate over the keys, with an empty cluster and the topic's name at the target."""
        return (SourcePartition("", topic, number, topic) for topic, number in self._position.offsets)


class TableView:
    """The checkpoints of a table, for programs that only read them."""

    def __init__(self, open_table: Callable[[], Table], reactor: Any) -> None:
        """`open_table` returns the table. It may block, and is called in a thread."""
        self._open = open_table
        self._threads = ThreadPool(reactor, 1, "mirror-view")
        self.checkpoints: Mapping[SourcePartition, Checkpoint] = {}

    async def refresh(self) -> None:
        """Read the checkpoints from the table. Raises TableError."""
        self.checkpoints = TableCheckpoints(await _called(self._threads, lambda: self._open().position))

    async def close(self) -> None:
        """End the thread that reads the table."""
        self._threads.stop()


class TableTarget:
    """See `target.Target`."""

    def __init__(
        self, open_table: Callable[[], Table], layout: Layout, schemas: SchemaSettings | None = None, *,
        reactor: Any, now_ms: Callable[[], int], name: str,
    ) -> None:  # fmt: skip
        """open_table: opens the table; called in a thread.
        schemas: the source of a typed table's columns.
        name: the name of the table, for the thread's name.
        """
        self._loader = TableLoader(open_table, layout, schemas)
        self._threads = ThreadPool(reactor, 1, f"mirror-{name}")
        self._now_ms = now_ms
        self._queue: dict[TopicPartition, list[tuple[BatchCopy, OnAppended]]] = {}
        self._queued_bytes = 0
        self._writing: Deferred[None] | None = None
        self._flushes: list[Deferred[None]] = []
        self._failure: PylogdError | None = None

    async def open(self) -> None:
        """Open the table. Raises TableError."""
        await self._thread(self._loader.open)

    async def checkpoints(self) -> Mapping[SourcePartition, Checkpoint]:
        """Return the table's present checkpoints. Raises TableError."""
        return TableCheckpoints(await self._thread(self._loader.position))

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return 0 for each partition: a table has no offsets."""
        return dict.fromkeys(partitions, 0)

    def start(self, key: SourcePartition, known: Checkpoint | None, offset: int, topic_id: bytes) -> None:
        """Set where the next load of a partition begins. Arguments: see `target.Target.start`."""
        self._loader.begin((key.target_topic, key.partition), known, offset, topic_id)

    def copy_of(self, header: BatchHeader, batch: memoryview, position: int) -> BatchCopy | None:
        """Return a batch unchanged. Its records before `position` are dropped when it is decoded."""
        if not header.record_count:
            return None
        return BatchCopy(batch, header.record_count, max(header.base_offset, position), None)

    async def begin(self) -> None:
        """Do nothing: `append` opens files when it needs them."""

    def append(self, partition: TopicPartition, batch: BatchCopy, on_appended: OnAppended) -> bool:
        """Queue a batch. Return whether it was accepted: False while the queue is full. Raises PylogdError."""
        if self._failure is not None:
            raise self._failure
        if self._queued_bytes >= _QUEUE_BYTES:
            return False
        self._queued_bytes += len(batch.batch)
        self._queue.setdefault(partition, []).append((batch, on_appended))
        if self._writing is None:
            self._write()
        return True

    def _write(self) -> None:
        """Start writing all queued batches in the thread. Without batches, complete the waiting `flush` calls."""
        queue, self._queue = self._queue, {}
        if not queue:
            self._writing = None
            flushes, self._flushes = self._flushes, []
            for each in flushes:
                each.callback(None)
            return
        slices = [
            Slice((partition.topic, partition.partition), found[0][0].first, [batch.batch for batch, _ in found])
            for partition, found in queue.items()
        ]
        self._writing = self._threads.defer(self._loader.write, slices)
        self._writing.addErrback(self._failed)
        self._writing.addCallback(lambda _: self._written(queue))

    def _failed(self, failure: Any) -> None:
        error = failure.value
        known = isinstance(error, PylogdError)
        self._failure = error if known else MirrorError(f"rows can't be written: {type(error).__name__}: {error}")

    def _written(self, queue: Mapping[TopicPartition, Sequence[tuple[BatchCopy, OnAppended]]]) -> None:
        for found in queue.values():
            for batch, on_appended in found:
                self._queued_bytes -= len(batch.batch)
                on_appended(_UNKNOWN, self._failure)
        self._write()

    async def flush(self) -> None:
        """Return when all queued batches are written to files. Raises PylogdError if one could not be written."""
        if self._writing is not None:
            done: Deferred[None] = Deferred()
            self._flushes.append(done)
            await done
        if self._failure is not None:
            raise self._failure

    async def commit(
        self, checkpoints: Mapping[SourcePartition, Checkpoint], runs: Mapping[SourcePartition, Sequence[Run]]
    ) -> None:
        """Add the written rows to the table, with these checkpoints. Raises TableError."""
        await self.flush()
        found = {(key.target_topic, key.partition): checkpoint for key, checkpoint in checkpoints.items()}
        await self._thread(self._loader.commit, found, self._now_ms())

    async def close(self) -> None:
        """Drop uncommitted rows, and end the thread."""
        self._queue.clear()
        try:
            await self._threads.defer(self._loader.abort)
        finally:
            self._threads.stop()

    async def _thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await _called(self._threads, function, *arguments)


async def _called(threads: ThreadPool, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread. Raises its PylogdErrors; errors of other libraries become MirrorError."""
    try:
        return await threads.defer(function, *arguments)
    except (PylogdError, AssertionError):
        raise
    except Exception as error:
        raise MirrorError(f"the table can't be used: {type(error).__name__}: {error}") from error
