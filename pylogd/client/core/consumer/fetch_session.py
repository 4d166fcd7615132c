"""The client's half of an incremental fetch session with one broker (KIP-227): name only what changed.

Strategy: the broker remembers which partitions a session fetches and from which offsets. A first request, with epoch 0,
names all of them; later requests name partitions whose fetch differs from what the broker remembers, and partitions to
forget. The epoch counts the requests. A few partitions are fetched without a session, since naming them costs less than
a session.

Rules: one request is in flight at a time. After any failure the next request opens a new session. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pylogd.base.errors import ErrorCode

#: A topic, by its id or its name, and the number of a partition.
PartitionKey = tuple[str | bytes, int]

INITIAL_EPOCH = 0  # opens a session
FINAL_EPOCH = -1  # closes the session, if one is named, and opens none
FIRST_VERSION = 7  # a version of Fetch
#: With fewer partitions than this no session is opened.
LEAST_PARTITIONS = 4
_LAST_EPOCH = 0x7FFFFFFF

#: Errors that mean that the broker and this client disagree about the session, not that a partition has a problem.
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class PartitionRequest(NamedTuple):
    """The fields of a partition in a Fetch request; the broker of a session remembers them."""

    offset: int
    leader_epoch: int
    max_bytes: int


class SessionRequest(NamedTuple):
    """The session fields of a Fetch request, and the partitions that it must name."""

    session_id: int
    epoch: int
    named: Mapping[PartitionKey, PartitionRequest]
    forgotten: list[PartitionKey]


class FetchSession:
    """A session with one broker, which may not be open yet."""

    __slots__ = ("_by_id", "_epoch", "_id", "_remembered", "_sent_epoch")

    def __init__(self) -> None:
        """No session is open."""
        self._id = 0
        self._epoch = self._sent_epoch = INITIAL_EPOCH
        self._remembered: dict[PartitionKey, PartitionRequest] = {}
        self._by_id = False

    @property
    def incremental(self) -> bool:
        """Whether the request in flight belongs to a session that was open already."""
        return self._sent_epoch > INITIAL_EPOCH

    def request(self, wanted: Mapping[PartitionKey, PartitionRequest], version: int, by_id: bool) -> SessionRequest:
        """Return the contents of the next request, at a version of Fetch, that fetches `wanted` and no other
        partitions.
        """
        session_id = self._id
        if version < FIRST_VERSION or len(wanted) < LEAST_PARTITIONS:
            self._id, self._epoch, self._sent_epoch = 0, INITIAL_EPOCH, FINAL_EPOCH
            return SessionRequest(session_id, FINAL_EPOCH, wanted, [])
        if by_id != self._by_id:  # the version has changed: a session does not mix names and ids
            self._epoch, self._by_id = INITIAL_EPOCH, by_id
        self._sent_epoch = self._epoch
        before, self._remembered = self._remembered, dict(wanted)
        if self._epoch == INITIAL_EPOCH:
            return SessionRequest(session_id, INITIAL_EPOCH, wanted, [])
        changed = {key: partition for key, partition in wanted.items() if before.get(key) != partition}
        return SessionRequest(session_id, self._epoch, changed, [key for key in before if key not in wanted])

    def close(self) -> int:
        """Return the id of the session that the broker keeps, which the caller must close; 0 if there is none."""
        session_id, self._id, self._epoch = self._id, 0, INITIAL_EPOCH
        return session_id

    def succeeded(self, session_id: int) -> None:
        """Record an answer without an error, and the session that it names: 0 if the broker has no room for one."""
        if self._sent_epoch == FINAL_EPOCH:
            return
        if not session_id or (self.incremental and session_id != self._id):
            self._id, self._epoch = 0, INITIAL_EPOCH
        else:
            self._id = session_id
            self._epoch = 1 if self._sent_epoch == _LAST_EPOCH else self._sent_epoch + 1

    def failed(self, code: ErrorCode | None = None) -> None:
        """Record that there was no answer, or an error: open a new session, and have the broker close this one."""
        if code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id = 0
        self._epoch = INITIAL_EPOCH
