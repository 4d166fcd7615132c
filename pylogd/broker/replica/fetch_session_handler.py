"""The follower's half of an incremental fetch session (KIP-227): requests name only the partitions that changed.

Strategy: the position that was last sent for each partition is remembered. A request names the partitions whose
position has changed, and those that are no longer wanted. If the leader has no free slot for a session, each request
names all partitions. The leader serves them in this order, so partitions that moved, since they gave records, go to the
end.

Must not know: connections, logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pylogd.broker.replica.followed_partition import FetchPosition, fetch_entry
from pylogd.broker.replica.sessions import INITIAL_EPOCH
from pylogd.wire.messages.fetch import FetchPartition, FetchResponse, FetchTopic, ForgottenTopic

Key = tuple[bytes, int]
"""A topic's id and a partition's index."""

_LAST_EPOCH = 0x7FFFFFFF


class FetchSessionHandler:
    """A session with one leader.

    positions: the last offset that was sent to the leader, by partition.
    """

    __slots__ = ("_epoch", "_session_id", "positions")

    def __init__(self) -> None:
        self.positions: dict[Key, FetchPosition] = {}
        self._session_id = 0
        self._epoch = INITIAL_EPOCH

    @property
    def next(self) -> tuple[int, int]:
        """The (session id, epoch) of the next request."""
        return self._session_id, self._epoch

    @property
    def incremental(self) -> bool:
        """Whether the next request may name only changes."""
        return self._epoch != INITIAL_EPOCH

    def restart(self) -> None:
        """Begin a new session: the leader has lost this one, or an answer was lost."""
        self._session_id, self._epoch = 0, INITIAL_EPOCH
        self.positions = {}

    def request(
        self, changed: Mapping[Key, FetchPosition], gone: Iterable[Key], most_bytes: int
    ) -> tuple[list[FetchTopic], list[ForgottenTopic]]:
        """Return the topics and the forgotten topics of the next request.

        changed: the present positions. Those that equal the last ones sent are left out.
        gone: the partitions to forget.
        most_bytes: the most bytes that the leader may return for each partition.
        """
        forgotten: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in gone:
            if self.positions.pop((topic_id, index), None) is not None:
                forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
        moved = {key: position for key, position in changed.items() if self.positions.get(key) != position}
        for key, position in moved.items():
            self.positions.pop(key, None)
            self.positions[key] = position
        if not self.incremental:
            return _topics(self.positions, most_bytes), []
        return _topics(moved, most_bytes), list(forgotten.values())

    def answered(self, response: FetchResponse) -> None:
        """Note a response without an error."""
        if not response.session_id:
            self._session_id, self._epoch = 0, INITIAL_EPOCH  # the leader has no free slot: send all partitions again
        else:
            self._session_id = response.session_id
            self._epoch = next_epoch(self._epoch)


def next_epoch(epoch: int) -> int:
    """Return the epoch of the request after the one with `epoch`."""
    return 1 if epoch == _LAST_EPOCH else epoch + 1


def _topics(entries: Mapping[Key, FetchPosition], most_bytes: int) -> list[FetchTopic]:
    topics: dict[bytes, list[FetchPartition]] = {}
    for (topic_id, index), position in entries.items():
        topics.setdefault(topic_id, []).append(fetch_entry(index, position, most_bytes))
    return [FetchTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]
