"""A seeded history with transactions: the coordinator, the leaders' logs, producers, markers, and all faults.

Real are the coordinator on every broker, `__transaction_state` with its replicas, verification, markers and
read_committed. Checked besides what `history` checks:

- a reader of committed records gets exactly what is committed at the end, from the first record on, without a gap;
- the last stable offset of a leader epoch never goes back;
- an outcome is decided once: of every transaction all records are committed, or none; all of one that its producer was
  told is committed, and none of one that was not to be;
- in every partition, the epochs of a producer id never go back, nor do those that producers are told;
- what an ended producer had still to say ends no transaction of its successor;
- after everything has healed no transaction stays open: the last stable offsets are the ends of the logs, and the
  coordinators have nothing pending.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from twisted.internet.defer import Deferred

from pylogd.broker.api.dispatch import ask_self
from pylogd.broker.log.markers import read_marker
from pylogd.broker.metadata.layout import decode_states, decode_topic
from pylogd.broker.transactions.service import Transactions
from pylogd.store.paths import TOPICS, TRANSACTIONS_TOPIC
from pylogd.wire.records import decode_batch, iter_batches
from tests.simulation.expansion import NoGroups
from tests.simulation.history import History, Producer, Violation
from tests.simulation.nemesis import TOPIC
from tests.simulation.transactional_clients import CommittedReader, TransactionalProducer
from tests.simulation.world import SimBroker

_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "transaction_state_log_num_partitions": 2,
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": 200,
        "request_timeout_ms": 2000,
    }
)
#: Idempotent producers have ids that the coordinator does not give.
_OTHER_IDS = 10_000_000
#: Seconds after all faults within which every transaction has to be ended.
_SETTLE_SECONDS = 60.0


class TransactionHistory(History):
    """A history with transactions.

    internal: the topics of coordinators.
    outcomes: by transaction "committed", "aborted" or "unknown", as its producer was told. deadline: when producers
    stop to repeat requests. transactions: how many ended how, at the end.
    """

    internal: tuple[str, ...] = (TRANSACTIONS_TOPIC,)
    skew_ms = 300  # a transaction times out by the clock of whoever coordinates it
    deadline = float("inf")
    late_copies = 0.05  # the share of batches that arrive a second time, much later

    def __init__(self, seed: int, brokers: int = 3, producers: int = 3, **settings: Any) -> None:
        super().__init__(seed, brokers, **{**_SETTINGS, **settings})
        self.producers = [Producer(self, _OTHER_IDS + index, index) for index in range(self.partitions)]
        self.transactional = [TransactionalProducer(self, number) for number in range(producers)]
        self.reader = CommittedReader(self)
        self.outcomes: dict[str, str] = {}
        self.stopping = False
        self.ended = {"committed": 0, "aborted": 0}
        self._working = 0
        self._broken: list[str] = []
        self._internal: dict[str, tuple[Any, ...]] = {}
        for broker in self.brokers.values():
            broker.groups = NoGroups()  # type: ignore[attr-defined]

    # -- running

    def admitted(self, broker: SimBroker) -> None:
        """Start the coordinator, as a broker does before it hosts partitions."""
        super().admitted(broker)
        parts = Transactions(
            broker.replica_parts, broker.metadata, broker.settings, broker.clock, broker.now_ms, broker._connect,
            partial(ask_self, cast(Any, broker)),
        )  # fmt: skip
        broker.transactions, broker.verifier = parts.coordinator, parts.verifier
        parts.start()

    def start_clients(self) -> None:
        super().start_clients()
        for producer in self.transactional:
            self.begin(producer.work())
        self._read_committed()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start what a client does. An exception in it ends the history."""
        self._working += 1

        def ended(_: object) -> None:
            self._working -= 1

        Deferred.fromCoroutine(work).addCallbacks(ended, self.fault)

    def broken(self, text: str) -> None:
        """Note that an invariant is violated, where no exception can be raised."""
        self._broken.append(text)

    def check(self) -> None:
        super().check()
        if self._broken:
            raise Violation(self._broken[0])

    def _read_committed(self) -> None:
        if not self.nemesis_over:
            self.clock.callLater(0.03, self._read_committed)
        self.reader.read()

    # -- faults

    def read_states(self) -> bool:
        """Read the states of all topics. Return whether those of the topic have changed."""
        if self.stored != self.tree.transaction:
            for topic in self.internal:
                self._read_internal(topic)
        return super().read_states()

    def _read_internal(self, topic: str) -> None:
        path = f"{TOPICS}/{topic}"
        node = self.tree.nodes.get(path)
        if node is not None:
            assignment = decode_topic(topic, node.data)
            for name in self.tree.names(path):
                self._internal[topic] = tuple(
                    decode_states(topic, self.tree.nodes[f"{path}/{name}"].data, assignment)[1]
                )

    def internal_states(self) -> list[Any]:
        """Return the states of the partitions of the coordinators' topics."""
        return [state for states in self._internal.values() for state in states]

    def _may_lose(self, node: int, others: Any = ()) -> bool:
        without = {*others, node, *self.damaged}
        kept = all({*state.isr, *state.elr} - without for state in self.internal_states())
        return kept and super()._may_lose(node, others)

    def _is_whole(self) -> bool:
        return super()._is_whole() and all(
            state.leader >= 0 and len(state.isr) == len(state.replicas) for state in self.internal_states()
        )

    # -- the end

    def _recover(self) -> None:
        self.stopping = True
        self.deadline = self.time.now + _SETTLE_SECONDS
        super()._recover()
        if not self.advance(2 * _SETTLE_SECONDS, self._is_settled):
            raise Violation(f"transactions stay open: {self._what_is_open()}\n{self.describe()}")
        if not self.advance(10.0, self._is_level):
            raise Violation(f"the replicas did not come to the same end: {self.describe()}")

    def _is_settled(self) -> bool:
        return not self._working and not self._what_is_open()

    def _what_is_open(self) -> list[str]:
        """Return the transactions that are not ended, as leaders and coordinators know them."""
        found = [f"{self._working} producers at work"] if self._working else []
        for node, broker in self.brokers.items():
            for one in broker.partitions.by_name.values():
                if one.leading and one.last_stable_offset != one.high_watermark:
                    found.append(f"{node}: {one!r} is stable to {one.last_stable_offset} of {one.high_watermark}")
            for transaction in broker.transactions.transactions()[1]:
                if transaction.pending is not None or not transaction.value.state.may_expire:
                    found.append(f"{node}: {transaction.name} {transaction.value} pending {transaction.pending}")
        return found

    def _conclude(self) -> None:
        numbers: dict[str, list[tuple[int, bool]]] = defaultdict(list)  # by transaction
        sizes: dict[str, int] = {}
        for index, state in enumerate(self.states):
            logs = {node: bytes(self.brokers[node].bytes_of(TOPIC, index)) for node in state.replicas}
            if len(set(logs.values())) != 1:
                raise Violation(f"the replicas of {index} differ: {[(node, len(log)) for node, log in logs.items()]}")
            records = self._records(index, next(iter(logs.values())))
            self._check_order(index, {value: offset for offset, value, _, kept in records if kept})
            committed = [(offset, value) for offset, value, _, kept in records if kept]
            seen = self.reader.seen[index]
            if seen != committed[: len(seen)]:
                at = next(at for at, pair in enumerate(seen) if at >= len(committed) or pair != committed[at])
                raise Violation(f"a reader of {index} got {seen[at]} where {committed[at : at + 1]} is committed")
            for _, value, transactional, kept in records:
                if transactional:
                    name, number, size = value.split("/")
                    numbers[name].append((int(number), kept))
                    sizes[name] = int(size)
        for name, outcome in self.outcomes.items():
            self._check_outcome(name, outcome, numbers[name], sizes.get(name, 0))

    def _records(self, index: int, log: bytes) -> list[tuple[int, str, bool, bool]]:
        """Return offset, value, whether it is of a transaction, and whether it is committed, of each record."""
        found: list[tuple[int, str, bool, bool]] = []
        open_: dict[int, list[int]] = defaultdict(list)  # by producer id, places in `found`
        epochs: dict[int, int] = {}
        for header, view in iter_batches(log):
            producer = header.producer_id
            if header.producer_epoch < epochs.get(producer, -1):
                raise Violation(f"partition {index}: epoch {header.producer_epoch} after {epochs[producer]}: {header}")
            epochs[producer] = header.producer_epoch
            marker = read_marker(header, view) if header.is_control else None
            if marker is not None:
                for at in open_.pop(producer, ()):
                    found[at] = (*found[at][:3], marker.committed)
            elif not header.is_control:
                for record in decode_batch(view, header):
                    if header.is_transactional:
                        open_[producer].append(len(found))
                    value = (record.value or b"").decode()
                    found.append((record.offset, value, header.is_transactional, not header.is_transactional))
        if open_:
            raise Violation(f"partition {index}: transactions of {sorted(open_)} have no end")
        return found

    def _check_outcome(self, name: str, outcome: str, found: list[tuple[int, bool]], size: int) -> None:
        committed = sorted(number for number, kept in found if kept)
        if committed:
            if outcome == "aborted":
                raise Violation(f"{name} was aborted, and {committed} of it are committed")
            if committed != list(range(size)):
                raise Violation(f"{name} is torn or double: of {size} records {committed} are committed")
        elif outcome == "committed":
            raise Violation(f"{name} was committed, and nothing of it is there")
        self.ended["committed" if committed else "aborted"] += 1
