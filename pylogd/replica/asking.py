"""The follower's half of an incremental fetch session (KIP-227): say what changed, hear what changed.

Strategy: what each partition was last asked for is remembered; a request names only those that are asked for something
else now, and those that are no longer wanted. A leader without room for a session is sent everything each time.

Must not know: connections, logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pylogd.replica.following import Asked, wanted
from pylogd.replica.sessions import INITIAL_EPOCH
from pylogd.wire.messages.fetch import FetchPartition, FetchResponse, FetchTopic, ForgottenTopic

Key = tuple[bytes, int]
"""A topic's id and a partition's index."""

_LAST_EPOCH = 0x7FFFFFFF


class FetchConversation:
    """A session with one leader. `asked`: what the leader holds to be asked for."""

    __slots__ = ("_epoch", "_session_id", "asked")

    def __init__(self) -> None:
        self.asked: dict[Key, Asked] = {}
        self._session_id = 0
        self._epoch = INITIAL_EPOCH

    @property
    def session(self) -> tuple[int, int]:
        """(session id, epoch) of the next request."""
        return self._session_id, self._epoch

    @property
    def incremental(self) -> bool:
        """Whether the next request may name changes only."""
        return self._epoch != INITIAL_EPOCH

    def restart(self) -> None:
        """The leader has lost the session, or the answer got lost: begin anew."""
        self._session_id, self._epoch = 0, INITIAL_EPOCH
        self.asked = {}

    def request(
        self, changed: Mapping[Key, Asked], gone: Iterable[Key], most_bytes: int
    ) -> tuple[list[FetchTopic], list[ForgottenTopic]]:
        """The topics of a request that asks for `changed` too and for `gone` no more."""
        forgotten: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in gone:
            if self.asked.pop((topic_id, index), None) is not None:
                forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
        if not self.incremental:
            self.asked.update(changed)
            return _topics(self.asked, most_bytes), []
        news = {key: asked for key, asked in changed.items() if self.asked.get(key) != asked}
        self.asked.update(news)
        return _topics(news, most_bytes), list(forgotten.values())

    def answered(self, response: FetchResponse) -> None:
        """A response without an error has come."""
        if not response.session_id:
            self._session_id, self._epoch = 0, INITIAL_EPOCH  # no room there: everything again the next time
        else:
            self._session_id = response.session_id
            self._epoch = next_epoch(self._epoch)


def next_epoch(epoch: int) -> int:
    """The epoch of the request behind one of `epoch`."""
    return 1 if epoch == _LAST_EPOCH else epoch + 1


def _topics(entries: Mapping[Key, Asked], most_bytes: int) -> list[FetchTopic]:
    topics: dict[bytes, list[FetchPartition]] = {}
    for (topic_id, index), asked in entries.items():
        topics.setdefault(topic_id, []).append(wanted(index, asked, most_bytes))
    return [FetchTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]
