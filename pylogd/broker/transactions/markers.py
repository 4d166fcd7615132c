"""Write the markers that end transactions to the leaders of their partitions, and retry until all have them.

Strategy: each broker has a queue and one request in flight, so markers that arrive during a request are sent together
in the next one. Markers that could not be written are sent to the partition's present leader, after a pause that grows.
If a leader could not write to partitions in time, since a disk hangs or a replica is late, these have their own queue,
request and connection until a write succeeds, so that other transactions do not wait for them.

Rules:
- A marker is done when each of its partitions has it, or no longer exists.
- All errors are temporary: a leader may be about to change, or too few replicas may be in sync. A leader that knows of
  a newer coordinator refuses (TRANSACTION_COORDINATOR_FENCED): this broker will learn of it soon, and then cancels its
  markers.
- An unexpected error while an answer is handled counts as no answer: the markers are sent again.
Must not know: states of transactions, connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.broker.metadata.image import NO_LEADER
from pylogd.broker.transactions.values import PartitionId
from pylogd.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = Logger()

#: The first and the longest pause before a marker is tried again, in seconds.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
#: A warning is logged each time a marker has failed this many times.
_TRIES_UNTIL_LOGGED: Final = 30
#: The most partitions that one request names.
_MOST_PARTITIONS: Final = 2000

#: Errors after which no marker is needed, since the partition can hold no records of the transaction.
_NEEDLESS = frozenset({ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})

Ask = Callable[[int, WriteTxnMarkersRequest], "Deferred[WriteTxnMarkersResponse]"]
#: A broker's node id, and whether the queue is for its slow partitions.
Lane = tuple[int, bool]


@dataclass(slots=True, eq=False)
class Marker:
    """The end of a transaction, on its way to its partitions.

    owner: an object for `cancel`.
    name: the transactional id, for the log.
    partitions: the partitions that do not have it yet.
    done: called once all partitions have it.
    version: the version of transactions that the producer uses.
    """

    owner: object
    name: str
    producer_id: int
    epoch: int
    partitions: set[PartitionId]
    done: Callable[[], object]
    commit: bool
    coordinator_epoch: int
    version: int
    cancelled: bool = False
    tries: int = 0


#: A marker, and the partitions to which it is sent now.
Errand = tuple[Marker, list[PartitionId]]


class MarkerSender:
    """Writes markers to the leaders of partitions.

    waiting: markers that some partition does not have yet.
    """

    def __init__(
        self,
        ask: Ask,
        leader_of: Callable[[str, int], int | None],
        clock: IReactorTime,
        ask_slow: Ask | None = None,
    ) -> None:
        """Arguments:

        ask: sends a request to a broker.
        ask_slow: does so over another connection, for slow partitions.
        leader_of: returns the node id of a partition's leader, None if the partition is deleted.
        """
        self._ask = ask
        self._ask_slow = ask_slow or ask
        self._leader_of = leader_of
        self._clock = clock
        self.waiting: set[Marker] = set()
        self._queues: dict[Lane, list[Errand]] = {}
        self._in_flight: set[Lane] = set()
        self._slow: set[PartitionId] = set()
        self._retries: set[IDelayedCall] = set()

    def send(self, marker: Marker) -> None:
        """Write a marker to its partitions; call its `done` when all have it."""
        self.waiting.add(marker)
        self._route(marker, sorted(marker.partitions))

    def cancel(self, owner: object) -> None:
        """Give up the markers of `owner`; their `done` is not called."""
        for marker in [marker for marker in self.waiting if marker.owner is owner]:
            self._give_up(marker)

    def stop(self) -> None:
        """Give up all markers."""
        for call in self._retries:
            call.cancel()
        self._retries.clear()
        for marker in list(self.waiting):
            self._give_up(marker)
        self._queues.clear()

    def _give_up(self, marker: Marker) -> None:
        marker.cancelled = True
        self.waiting.discard(marker)

    def _route(self, marker: Marker, partitions: Iterable[PartitionId]) -> None:
        """Queue partitions for their leaders."""
        leaderless: list[PartitionId] = []
        by_lane: dict[Lane, list[PartitionId]] = {}
        for partition in partitions:
            leader = self._leader_of(*partition)
            if leader is None:
                log.info("{name}: no marker for {topic}-{index}, which was deleted",
                         name=marker.name, topic=partition[0], index=partition[1])  # fmt: skip
                marker.partitions.discard(partition)
                self._slow.discard(partition)
            elif leader == NO_LEADER:
                leaderless.append(partition)
            else:
                by_lane.setdefault((leader, partition in self._slow), []).append(partition)
        for lane, led in by_lane.items():
            self._queues.setdefault(lane, []).extend(_pieces(marker, led))
        if leaderless:
            self._try_again(marker, leaderless, "no leader")
        if not marker.partitions:
            self._finish(marker)
        for lane in by_lane:
            self._flush(lane)

    def _finish(self, marker: Marker) -> None:
        if marker in self.waiting:
            self.waiting.discard(marker)
            marker.done()

    def _flush(self, lane: Lane) -> None:
        """Send the queued markers, unless a request of the same queue is in flight."""
        if lane in self._in_flight:
            return
        errands = [errand for errand in self._queues.pop(lane, []) if not errand[0].cancelled]
        now: list[Errand] = []
        size = 0
        while errands and (not now or size + len(errands[0][1]) <= _MOST_PARTITIONS):
            size += len(errands[0][1])
            now.append(errands.pop(0))
        if errands:
            self._queues[lane] = errands
        if now:
            self._in_flight.add(lane)
            node_id, slow = lane
            ask = self._ask_slow if slow else self._ask
            answered = maybeDeferred(ask, node_id, WriteTxnMarkersRequest([_marker(*errand) for errand in now]))
            answered.addCallback(self._answered, now).addErrback(self._not_answered, now, node_id)
            answered.addBoth(self._landed, lane)

    def _landed(self, _: object, lane: Lane) -> None:
        self._in_flight.discard(lane)
        self._flush(lane)

    def _answered(self, response: WriteTxnMarkersResponse, errands: list[Errand]) -> None:
        errors = {
            (result.producer_id, topic.name, partition.partition_index): ErrorCode(partition.error_code)
            for result in response.markers
            for topic in result.topics
            for partition in topic.partitions
        }
        for marker, partitions in errands:
            if not marker.cancelled:
                self._note(marker, partitions, errors)

    def _note(
        self, marker: Marker, partitions: list[PartitionId], errors: dict[tuple[int, str, int], ErrorCode]
    ) -> None:
        """Handle the results of the partitions to which a marker was sent."""
        again: list[PartitionId] = []
        failure = ErrorCode.NONE
        for partition in partitions:
            error = errors.get((marker.producer_id, *partition), ErrorCode.UNKNOWN_SERVER_ERROR)
            if error is ErrorCode.INVALID_PRODUCER_EPOCH:
                log.error("{name}: {topic}-{index} has records of a newer epoch than the transaction's ({epoch})",
                          name=marker.name, topic=partition[0], index=partition[1], epoch=marker.epoch)  # fmt: skip
            elif error and error not in _NEEDLESS:
                again.append(partition)
                failure = error
                if error is ErrorCode.REQUEST_TIMED_OUT:
                    self._slow.add(partition)
                continue
            self._slow.discard(partition)
            marker.partitions.discard(partition)
        if again:
            self._try_again(marker, again, failure.name)
        elif not marker.partitions:
            self._finish(marker)

    def _not_answered(self, failure: Failure, errands: list[Errand], node_id: int) -> None:
        if not failure.check(PylogdError):
            log.failure("Unexpected error while sending markers to broker {node}", failure, node=node_id)
        for marker, partitions in errands:
            left = [partition for partition in partitions if partition in marker.partitions]
            if left and not marker.cancelled:
                self._try_again(marker, left, failure.getErrorMessage())

    def _try_again(self, marker: Marker, partitions: list[PartitionId], why: str) -> None:
        marker.tries += 1
        if marker.tries % _TRIES_UNTIL_LOGGED == 0:
            log.warn(
                "{name}: {count} partitions, such as {topic}-{index}, do not have the marker that ends the "
                "transaction after {tries} attempts: {why}. The coordinator keeps trying; check that the partitions "
                "have leaders. If they know a newer coordinator (TRANSACTION_COORDINATOR_FENCED), elect other leaders "
                "of __transaction_state until its leader epoch is higher",
                name=marker.name, count=len(partitions), topic=partitions[0][0], index=partitions[0][1],
                tries=marker.tries, why=why,
            )  # fmt: skip
        self._retry_later(marker, partitions)

    def _retry_later(self, marker: Marker, partitions: list[PartitionId]) -> None:
        def retry() -> None:
            self._retries.discard(call)
            if not marker.cancelled:
                self._route(marker, partitions)

        pause = min(_FIRST_PAUSE * 2 ** min(marker.tries, 10), _LONGEST_PAUSE)
        call = self._clock.callLater(pause, retry)
        self._retries.add(call)


def _pieces(marker: Marker, partitions: list[PartitionId]) -> Iterator[Errand]:
    return ((marker, partitions[at : at + _MOST_PARTITIONS]) for at in range(0, len(partitions), _MOST_PARTITIONS))


def _marker(marker: Marker, partitions: list[PartitionId]) -> WritableTxnMarker:
    topics = [
        WritableTxnMarkerTopic(name, [index for _, index in found])
        for name, found in groupby(sorted(partitions), lambda partition: partition[0])
    ]
    return WritableTxnMarker(
        marker.producer_id, marker.epoch, marker.commit, topics, marker.coordinator_epoch, marker.version
    )
