"""A consumer's part in a group whose coordinator is the test: it sends events, and keeps what is committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from pylogd.base.errors import PylogdError
from pylogd.client.core.consumer.start_offsets import Committed
from pylogd.client.core.group.assignment import Topics
from pylogd.client.core.group.member_model import Event, GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class ScriptedGroup:
    """Implements `ConsumerGroup`. Put events into `events`; `committed` has the offsets."""

    wakes = False
    leased = False

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}

    @property
    def may_fetch(self) -> bool:
        return True

    @property
    def has_event(self) -> bool:
        return bool(self.events)

    def next_event(self) -> Event | None:
        return self.events.popleft() if self.events else None

    def subscribe(self, topics: Topics) -> None: ...

    def look_up(
        self, partitions: list[TopicPartition], done: Callable[[Committed | None, PylogdError | None], None]
    ) -> None:
        done({partition: self.committed.get(partition) for partition in partitions}, None)

    def commit_soon(self, offsets: Offsets) -> None:
        self.committed.update(offsets)

    async def commit(self, offsets: Offsets, timeout: float) -> None:
        self.committed.update(offsets)

    def on_commit(self, call: Callable[[Offsets], object]) -> None: ...

    def stream_of(self, partition: TopicPartition) -> int | None:
        return None

    def metadata(self) -> GroupMetadata:
        return GroupMetadata("g")

    def polled(self, polling: bool) -> None: ...

    def done(self, event: Event) -> None: ...

    def stop(self) -> None: ...

    async def leave(self) -> None: ...

    async def close(self, timeout: float) -> None: ...
