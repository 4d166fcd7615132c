"""Transactions on a broker's parts, with partition leaders that the test plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred

from pylogd.base.errors import BrokerUnavailable, ErrorCode
from pylogd.broker.transactions.shards import Transaction
from pylogd.broker.transactions.values import PartitionId, ProducerAnswer
from pylogd.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.fakes.groups import PendingResult
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE, Parts

TOPIC = "__transaction_state"
TIMEOUT_MS = 60_000


class Leaders:
    """Takes markers as the leaders of partitions do.

    markers: (partition, producer id, epoch, committed, coordinator epoch), in order. errors: what a partition answers,
    until `hold` is over. hold: keep requests for `release`. down: nodes that can't be reached.
    """

    def __init__(self) -> None:
        self.markers: list[tuple[PartitionId, int, int, bool, int]] = []
        self.errors: dict[PartitionId, ErrorCode] = {}
        self.hold = False
        self.down: set[int] = set()
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        self._held: list[tuple[Deferred[WriteTxnMarkersResponse], WriteTxnMarkersRequest]] = []

    def ask(self, node: int, request: WriteTxnMarkersRequest) -> Deferred[WriteTxnMarkersResponse]:
        answer: Deferred[WriteTxnMarkersResponse] = Deferred()
        self.requests.append((node, request))
        if node in self.down:
            answer.errback(BrokerUnavailable(f"broker {node} is down"))
        elif self.hold:
            self._held.append((answer, request))
        else:
            answer.callback(self._take(request))
        return answer

    def release(self) -> None:
        """Answer what was kept, and what comes from now on."""
        self.hold = False
        held, self._held = self._held, []
        for answer, request in held:
            answer.callback(self._take(request))

    def _take(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        response = WriteTxnMarkersResponse()
        for marker in request.markers:
            result = WritableTxnMarkerResult(marker.producer_id)
            response.markers.append(result)
            for topic in marker.topics:
                found = []
                for index in topic.partition_indexes:
                    error = self.errors.get((topic.name, index), ErrorCode.NONE)
                    if not error:
                        self.markers.append(
                            ((topic.name, index), marker.producer_id, marker.producer_epoch, marker.transaction_result,
                             marker.coordinator_epoch)
                        )  # fmt: skip
                    found.append(WritableTxnMarkerPartitionResult(index, error))
                result.topics.append(WritableTxnMarkerTopicResult(topic.name, found))
        return response


class TransactionFixture(Parts):
    """A broker that coordinates transactions. `leaders` are those of the partitions."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.leaders = Leaders()
        super().__init__(directory, transaction_state_log_num_partitions=4, **settings)
        self.create("t", 3)
        assert result_of(self.transactions.coordinator_of("x")) == NODE  # type: ignore[arg-type]

    def boot(self) -> None:
        super().boot()
        self.verifier = self.transaction_parts.verifier
        self.transactions._markers._ask = self.leaders.ask

    def restart(self) -> None:
        """Stop the broker and start it again on the same disk."""
        self.groups.stop()
        self.transaction_parts.stop()
        result_of(self.replica_parts.stop())
        self.logs.close()
        self.boot()
        result_of(self.replica_parts.start())

    def init(self, expected: tuple[int, int] | None = None, name: str = "x", timeout_ms: int = TIMEOUT_MS) -> Any:
        return PendingResult(self.transactions.initialize(name, timeout_ms, expected)).answer

    def ready(self, name: str = "x") -> ProducerAnswer:
        """Return a new producer's id and epoch."""
        answer: ProducerAnswer = self.init(name=name)
        assert answer.error == ErrorCode.NONE
        return answer

    def add(self, producer: ProducerAnswer, *indexes: int, name: str = "x", version: int = 0) -> Any:
        partitions = [("t", index) for index in indexes or (0,)]
        return PendingResult(
            self.transactions.add(name, producer.producer_id, producer.epoch, partitions, version)
        ).answer

    def end(self, producer: ProducerAnswer, commit: bool = True, version: int = 0, name: str = "x") -> Any:
        return PendingResult(self.transactions.end(name, producer.producer_id, producer.epoch, commit, version)).answer

    def found(self, name: str = "x") -> Transaction:
        """Return a transactional id in memory."""
        found = self.transactions._shards.find(name)
        assert not isinstance(found, ErrorCode)
        return found[1]

    def state(self, name: str = "x") -> str:
        return self.found(name).value.state.name
