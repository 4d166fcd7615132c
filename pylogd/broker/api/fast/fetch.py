"""Answer Fetch requests of a client that reads one partition without a session, if enough is in the page cache.

Strategy: a request that repeats the last one of its connection, except for the offset, is not even decoded: compiled
functions compare it, and make the response (`answer_repeated`). If there are no records yet, the request waits in the
purgatory (`PartitionFetchWait`). All other requests, and all errors, are left to the general handler (`api.fetch`),
which reads the request again, so that no rule is written twice. tests/property/test_fast_fetch.py,
test_repeated_fetches.py and test_waiting_fetches.py prove that all give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple, cast

from pylogd.base.errors import PylogdError
from pylogd.broker.api.context import BrokerParts, RequestContext
from pylogd.broker.api.fast.repeated import FetchingConnection, repeated
from pylogd.broker.api.fast.session_fetch import answer_in_session
from pylogd.broker.api.fast.waiting_fetch import NOTHING, AfterWait, WaitingFetch
from pylogd.broker.api.statistics import FETCH, STATISTICS
from pylogd.broker.log.transactions import AbortedTransaction as Aborted
from pylogd.broker.replica.partition import NO_EPOCH
from pylogd.broker.replica.roles import Role
from pylogd.broker.replica.sessions import FINAL_EPOCH
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.wire.fast.fetch import NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT
from pylogd.wire.fast.known_fetch import END, KnownFetch, decode_fetch
from pylogd.wire.fast.known_session import KnownSessionFetch, decode_session_fetch
from pylogd.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pylogd.wire.session import DirectOutput, DirectReply, RepeatReply

_repeated = repeated
#: The first version with topic ids.
FIRST_VERSION = 13
READ_COMMITTED = 1
NONE_ABORTED: list[AbortedTransaction] = []  # shared and never changed
_requests = STATISTICS.requests
_PERMISSION = (AclOperation.READ, ResourceType.TOPIC)


class FastFetch(NamedTuple):
    """The result of the fast path for a request.

    response: the whole response; None if the general handler has to answer.
    at_end: whether that is only because the partition has no records yet at the offset, and there is nothing else to
        report.
    """

    response: FetchResponse | None
    at_end: bool


_new_result = partial(tuple.__new__, FastFetch)  # the constructor of NamedTuple runs in Python
_LEFT = FastFetch(None, False)
_AT_END = FastFetch(None, True)


def answer(context: RequestContext, request: FetchRequest) -> FastFetch:
    """Return the response that `api.fetch` would make, if the request has the usual shape and there is no error."""
    topics = request.topics
    if not _is_usual(context.version, request) or len(topics) != 1 or len(topics[0].partitions) != 1:
        return _LEFT
    (topic,) = topics
    (wanted,) = topic.partitions
    broker = context.broker
    partition = broker.partitions.by_id.get((topic.topic_id, wanted.partition))
    if partition is None or partition.role is not Role.LEADING or wanted.last_fetched_epoch >= 0:
        return _LEFT
    if wanted.current_leader_epoch not in (partition.leader_epoch, NO_EPOCH):
        return _LEFT
    if broker.authorizer is not None and not broker.authorizer.authorize(
        context.connection.principal, context.connection.host, AclOperation.READ, ResourceType.TOPIC, partition.topic
    ):
        return _LEFT
    most = min(request.max_bytes, broker.settings["fetch.max.bytes"])
    limit = max(min(most, wanted.partition_max_bytes), 0)
    end, committed = partition.high_watermark, request.isolation_level == READ_COMMITTED
    try:
        log = partition.log
        stable = partition.last_stable_offset if log.producers.unstable.active else end
        records = log.read(wanted.fetch_offset, limit, end_offset=stable if committed else end)
        if records is None or (size := len(records)) < min(request.min_bytes, most):
            return _AT_END if records is None else _LEFT
        aborted = named(log.aborted_in(wanted.fetch_offset, records, stable)) if committed else None
    except PylogdError:
        return _LEFT
    partition.fetches += 1
    partition.fetched_bytes += size
    data = PartitionData(
        wanted.partition,
        0,
        end,
        stable,
        log.log_start_offset,
        NO_DIVERGENCE,
        NO_LEADER,
        NO_SNAPSHOT,
        aborted,
        -1,
        records,
    )
    return _new_result((FetchResponse(0, 0, 0, [FetchableTopicResponse("", topic.topic_id, [data])], []), False))


def repeated_answers(
    broker: BrokerParts, after_wait: AfterWait
) -> Callable[[FetchingConnection, bytes, DirectOutput], RepeatReply | None]:
    """Return the function that answers repeated requests: the compiled one, or `answer_repeated` without it."""
    in_python = partial(answer_repeated, broker, after_wait=after_wait)
    return (
        in_python
        if _repeated is None
        else partial(_repeated.answer_repeated, broker, broker.partitions.by_id, _requests, _PERMISSION, in_python)
    )


def answer_repeated(
    broker: BrokerParts, connection: FetchingConnection, data: bytes, _output: DirectOutput | None = None,
    after_wait: AfterWait | None = None,
) -> RepeatReply | None:  # fmt: skip
    """Return the reply that `answer` would make to the request in `data`, if it repeats the connection's last one.

    The result is None if the general handler has to answer; then nothing has been changed.

    after_wait: answers the request if its wait does not end as usual; None if it must not wait.
    """
    known = connection.known_fetch
    if isinstance(known, KnownSessionFetch):
        return _answer_of_session(broker, connection, known, data, after_wait)
    if known is None or (offset := known.offset_in(data)) < 0:
        known = connection.known_fetch = _known(data, broker.settings["fetch.max.bytes"])
        if known is None:
            return _first_of_session(broker, connection, data, after_wait)
        offset = known.offset_in(data)
    reply = _read(broker, connection, known, data, offset)
    if reply is NOTHING:
        if after_wait is None or known.wait_seconds <= 0 or not 0 < known.least <= 1:
            return None
        wait = PartitionFetchWait(broker, connection, known, data, after_wait, offset)
        broker.fetch_waits.enter(wait, (wait.partition.key,), known.wait_seconds)
        _requests[FETCH] += 1
        return wait
    if reply is not None:
        _requests[FETCH] += 1
    return reply


def _read(
    broker: BrokerParts, connection: FetchingConnection, known: KnownFetch, data: bytes, offset: int
) -> DirectReply | None:
    """Return the reply with records from `offset` on; None for the general handler; NOTHING if there are none yet."""
    partition = broker.partitions.by_id.get(known.key)
    if partition is None or (log := partition.led_log) is None:
        return None
    epoch = known.leader_epoch
    if epoch != NO_EPOCH and epoch != partition.leader_epoch:
        return None
    if broker.authorizer is not None and not broker.authorizer.authorize(
        connection.principal, connection.host, AclOperation.READ, ResourceType.TOPIC, partition.topic
    ):
        return None
    end = stable = partition.high_watermark
    try:
        if log.producers.unstable.active:
            stable = partition.last_stable_offset
        committed, limit = known.committed, known.limit
        visible = stable if committed else end
        records = log.read_again(offset, limit, visible)
        if records is None:
            if visible <= offset <= log.log_end_offset:
                return NOTHING
            records = log.read(offset, limit, end_offset=visible)
        if records is None or (size := records.length) < known.least:
            return None
        if committed and log.aborted_in(offset, records, stable):
            return None
    except PylogdError:
        return None
    head = known.response_head(data, end, stable, log.log_start_offset, size)
    partition.fetches += 1
    partition.fetched_bytes += size
    return head, records, END, -1


class PartitionFetchWait(WaitingFetch[KnownFetch]):
    """A Fetch without a session that waits until its partition has a record to give, or an error to report."""

    __slots__ = ("_epoch", "_offset", "partition")

    def __init__(
        self, broker: BrokerParts, connection: FetchingConnection, known: KnownFetch, data: bytes,
        after_wait: AfterWait, offset: int,
    ) -> None:  # fmt: skip
        """offset: the client's position, at the end of the partition in `known`."""
        super().__init__(broker, connection, known, data, after_wait, known.version)
        self.partition = broker.partitions.by_id[known.key]
        self._epoch, self._offset = self.partition.leader_epoch, offset

    def look(self) -> bool:
        """Return whether the partition has ended the wait."""
        return self.ends_with(self.partition, self._epoch, self._offset) and self.complete(None)

    def try_complete(self, key: Hashable) -> bool:
        """Do the work of `look`, after the partition has changed."""
        return self.ends_with(self.partition, self._epoch, self._offset) and self.complete(None)

    def reply(self) -> object:
        """Return the reply with the partition's records, or the reply of the general handler."""
        connection = cast("FetchingConnection", self.connection)
        found = _read(self.broker, connection, self.known, self.data, self._offset)
        return self.general_reply() if found is None or found is NOTHING else found

    def general_reply(self) -> object:
        """See `WaitingFetch`."""
        return self.after_wait(self.broker, self.connection, self.data, None)


def _answer_of_session(
    broker: BrokerParts, connection: FetchingConnection, known: KnownSessionFetch, data: bytes,
    after_wait: AfterWait | None,
) -> RepeatReply | None:  # fmt: skip
    """Do the work of `answer_repeated` if the last usual request of the connection belonged to a session."""
    reply = answer_in_session(broker, connection, known, data, after_wait)
    if reply is not None or not known.has_size_of(data) or known.is_like(data):
        return reply
    connection.known_fetch = None
    return answer_repeated(broker, connection, data, after_wait=after_wait)


def _first_of_session(
    broker: BrokerParts, connection: FetchingConnection, data: bytes, after_wait: AfterWait | None
) -> RepeatReply | None:
    """Answer the first request of a session that has the usual shape, and keep it to compare the next ones with."""
    known = connection.known_fetch = decode_session_fetch(data, broker.settings["fetch.max.bytes"])
    return None if known is None else answer_in_session(broker, connection, known, data, after_wait)


def _known(data: bytes, most: int) -> KnownFetch | None:
    """Return the request in `data` to compare the next ones with, if `answer_repeated` may answer them.

    most: the most bytes of records in an answer (`fetch.max.bytes`).
    """
    decoded = decode_fetch(data)
    if decoded is None:
        return None
    request = decoded.request
    (topic,) = request.topics
    if not _is_usual(decoded.version, request) or len(topic.partitions) != 1:
        return None
    (wanted,) = topic.partitions
    if (
        wanted.last_fetched_epoch >= 0
        or wanted.fetch_offset < 0
        or min(request.max_bytes, wanted.partition_max_bytes) < 0
    ):
        return None
    return KnownFetch(data, decoded.version, request, most, committed=request.isolation_level == READ_COMMITTED)


def _is_usual(version: int, request: FetchRequest) -> bool:
    """Return whether a client sent the request, without a session, in a version that is served here."""
    return (
        version >= FIRST_VERSION
        and request.session_epoch == FINAL_EPOCH
        and not request.session_id
        and request.replica_id < 0  # before version 15 a follower sets its id here
        and request.replica_state.replica_id < 0
        and not request.rack_id
        and request.cluster_id is None
    )


def named(found: Sequence[Aborted]) -> list[AbortedTransaction]:
    """Return aborted transactions in the response's form."""
    return [AbortedTransaction(one.producer_id, one.first_offset) for one in found] if found else NONE_ABORTED
