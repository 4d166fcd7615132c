"""Histories of the transaction coordinator: whatever fails, each transaction ends committed everywhere or nowhere.

Producers begin and end transactions while markers are held up or refused, and while the coordinator's log waits for a
replica, loses what was not replicated, moves to another leader, or its broker crashes. At the end all is healed, and
time passes. Each transaction has an epoch of its own, by which its markers are known.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.internet.defer import Deferred

from pylogd.errors import ErrorCode
from pylogd.replica.partition import Partition
from pylogd.transactions.values import ProducerAnswer
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE
from tests.fakes.transactions import TOPIC, TransactionFixture

OTHER = 2
names = st.sampled_from(["x", "y"])
indexes = st.integers(0, 2)


class Histories(RuleBasedStateMachine):
    """producers: what each was told last. added: (producer id, epoch of the markers) and partitions, as acknowledged.

    decided: whether those transactions were committed, as acknowledged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.fixture = TransactionFixture(Path(self.folder.name))
        self.producers: dict[str, ProducerAnswer] = {}
        self.added: set[tuple[int, int, int]] = set()
        self.decided: dict[tuple[int, int], bool] = {}
        self.markers: list[tuple[Any, int, int, bool, int]] = []

    # -- producers

    @rule(name=names)
    def initialize(self, name: str) -> None:
        self._when(self.fixture.transactions.initialize(name, 60_000, None), self._initialized, name)

    @precondition(lambda self: self.producers)
    @rule(name=names)
    def recover(self, name: str) -> None:
        known = self.producers.get(name)
        if known is not None:
            expected = known.producer_id, known.epoch
            self._when(self.fixture.transactions.initialize(name, 60_000, expected), self._initialized, name)

    def _initialized(self, answer: ProducerAnswer, name: str) -> None:
        if not answer.error:
            self.producers[name] = answer

    @precondition(lambda self: self.producers)
    @rule(name=names, index=indexes)
    def add(self, name: str, index: int) -> None:
        known = self.producers.get(name)
        if known is None:
            return

        def added(error: ErrorCode) -> None:
            if not error:
                self.added.add((known.producer_id, known.epoch + 1, index))

        self._when(self.fixture.transactions.add(name, known.producer_id, known.epoch, [("t", index)], 2), added)

    @precondition(lambda self: self.producers)
    @rule(name=names, commit=st.booleans())
    def end(self, name: str, commit: bool) -> None:
        known = self.producers.get(name)
        if known is None:
            return

        def ended(answer: ProducerAnswer) -> None:
            if not answer.error:
                before = self.decided.setdefault((known.producer_id, known.epoch + 1), commit)
                assert before == commit, "a decision was changed"
                if self.producers[name].epoch <= answer.epoch:
                    self.producers[name] = answer

        self._when(self.fixture.transactions.end(name, known.producer_id, known.epoch, commit, 2), ended)

    @staticmethod
    def _when(result: Any, then: Any, *args: Any) -> None:
        if isinstance(result, Deferred):
            result.addCallback(then, *args)
        else:
            then(result, *args)

    # -- what goes wrong

    @rule(hold=st.booleans())
    def hold_markers(self, hold: bool) -> None:
        leaders = self.fixture.leaders
        leaders.hold = hold
        if not hold:
            leaders.release()

    @rule(index=indexes, error=st.sampled_from([ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS]))
    def refuse_markers(self, index: int, error: ErrorCode) -> None:
        self.fixture.leaders.errors["t", index] = error

    @rule(seconds=st.sampled_from([0.05, 1.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.fixture.time.advance(seconds)

    @rule(seconds=st.just(70))
    def much_time_passes(self, seconds: int) -> None:
        self.fixture.time.pump([1] * seconds)

    @rule()
    def a_replica_lags(self) -> None:
        """Nothing is committed from now on until it follows."""
        for partition in self._homes():
            if partition.leading:
                self.fixture.set_state(TOPIC, partition.index, replicas=(NODE, OTHER), isr=(NODE, OTHER))

    @rule()
    def the_replica_follows(self) -> None:
        for partition in self._homes():
            if partition.leading:
                partition.high_watermark = partition.log.log_end_offset
                self.fixture.replicas.append_waits.check(partition.key)

    @rule(keep=st.booleans(), lags=st.booleans())
    def the_leader_changes(self, keep: bool, lags: bool) -> None:
        """Another replica leads for a moment; what was not committed is lost, unless it had that already."""
        for partition in self._homes():
            epoch = partition.leader_epoch
            state = {"replicas": (NODE, OTHER), "isr": (NODE, OTHER)}
            self.fixture.set_state(TOPIC, partition.index, leader=OTHER, leader_epoch=epoch + 1, **state)
            if not keep:
                result_of(self.fixture.replicas.truncate(partition, partition.high_watermark))
            isr = (NODE, OTHER) if lags else (NODE,)
            self.fixture.set_state(TOPIC, partition.index, leader=NODE, leader_epoch=epoch + 2, isr=isr)

    @rule()
    def the_broker_crashes(self) -> None:
        """What was written stays; all else is forgotten, and answers under way are lost."""
        self.fixture.restart()

    def _homes(self) -> list[Partition]:
        return [self.fixture.partitions.by_name[TOPIC, index] for index in range(4)]

    # -- what must hold

    @invariant()
    def no_transaction_is_torn(self) -> None:
        outcomes: dict[tuple[int, int], bool] = dict(self.decided)
        for _, producer_id, epoch, commit, _ in self.fixture.leaders.markers:
            assert outcomes.setdefault((producer_id, epoch), commit) == commit, "a transaction is torn"

    def teardown(self) -> None:
        fixture = self.fixture
        fixture.leaders.errors.clear()
        fixture.leaders.release()
        for partition in self._homes():
            fixture.set_state(TOPIC, partition.index, replicas=(NODE,), isr=(NODE,))
        fixture.time.pump([1] * 120)
        self.no_transaction_is_torn()
        told = {(producer_id, epoch, index) for (_, index), producer_id, epoch, _, _ in fixture.leaders.markers}
        assert self.added <= told, "a partition waits for the end of its transaction"
        for shard in fixture.transactions._shards.led():
            for transaction in shard.transactions.values():
                assert transaction.pending is None
                assert transaction.value.state.may_expire, transaction.value
        fixture.close()
        self.folder.cleanup()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
