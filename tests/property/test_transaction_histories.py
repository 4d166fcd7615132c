"""Histories of the transaction coordinator: whatever fails, each transaction ends committed everywhere or nowhere.

Producers begin and end transactions while markers are held up or refused, and while the coordinator's log waits for a
replica, loses what was not replicated, moves to another leader, or its broker crashes. At the end all is healed, and
time passes. Each transaction has an epoch of its own, by which its markers are known.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.replica.partition import Partition
from pylogd.broker.transactions.values import ProducerAnswer
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE
from tests.fakes.transactions import TOPIC, TransactionFixture

OTHER = 2
STEPS = 500
SEEDS = 16


class History:
    """One history.

    producers: what each was told last. added: (producer id, epoch of the markers, partition), as acknowledged. decided:
    whether those transactions were committed, as acknowledged. committed: up to where each log is in the in-sync set.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.fixture = TransactionFixture(folder)
        self.producers: dict[str, ProducerAnswer] = {}
        self.added: set[tuple[int, int, int]] = set()
        self.decided: dict[tuple[int, int], bool] = {}
        self.committed = [0] * 4

    def run(self) -> None:
        """Take all steps, heal everything, and check."""
        steps = {
            self.initialize: 6, self.recover: 2, self.add: 30, self.end: 20, self.hold_markers: 3,
            self.refuse_markers: 4, self.time_passes: 8, self.a_replica_lags: 2, self.the_replica_follows: 20,
            self.the_leader_changes: 2, self.the_leader_changes_twice: 2, self.the_broker_crashes: 1,
        }  # fmt: skip
        for step in self.random.choices(list(steps), list(steps.values()), k=STEPS):
            step(self.random.choice(["x", "y"]))
            for partition in self._homes():
                self.committed[partition.index] = max(self.committed[partition.index], partition.high_watermark)
            self.no_transaction_is_torn()
        self.heal()

    # -- producers

    def initialize(self, name: str) -> None:
        self._when(self.fixture.transactions.initialize(name, 60_000, None), self._initialized, name)

    def recover(self, name: str) -> None:
        known = self.producers.get(name)
        if known is not None:
            expected = known.producer_id, known.epoch
            self._when(self.fixture.transactions.initialize(name, 60_000, expected), self._initialized, name)

    def _initialized(self, answer: ProducerAnswer, name: str) -> None:
        if not answer.error:
            self.producers[name] = answer

    def add(self, name: str) -> None:
        index = self.random.randrange(3)
        known = self.producers.get(name)
        if known is None:
            return

        def added(error: ErrorCode) -> None:
            if not error:
                self.added.add((known.producer_id, known.epoch + 1, index))

        self._when(self.fixture.transactions.add(name, known.producer_id, known.epoch, [("t", index)], 2), added)

    def end(self, name: str) -> None:
        commit = self.random.random() < 0.6
        known = self.producers.get(name)
        if known is None:
            return
        if self.random.random() < 0.2:  # a zombie
            known = known._replace(epoch=max(known.epoch - self.random.choice([1, 2, 3]), 0))

        def ended(answer: ProducerAnswer) -> None:
            if not answer.error:
                assert answer[1:] == (known.producer_id, known.epoch + 1), "an outdated epoch ended a transaction"
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

    def hold_markers(self, _: str) -> None:
        leaders = self.fixture.leaders
        leaders.hold = not leaders.hold
        if not leaders.hold:
            leaders.release()

    def refuse_markers(self, _: str) -> None:
        error = self.random.choice([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS])
        self.fixture.leaders.errors["t", self.random.randrange(3)] = error

    def time_passes(self, _: str) -> None:
        self.fixture.time.pump([1] * self.random.choice([1, 1, 1, 31, 70]))

    def a_replica_lags(self, _: str) -> None:
        """Nothing is committed from now on until it follows."""
        for partition in self._homes():
            if partition.leading:
                self.fixture.set_state(TOPIC, partition.index, replicas=(NODE, OTHER), isr=(NODE, OTHER))

    def the_replica_follows(self, _: str) -> None:
        for partition in self._homes():
            if partition.leading:
                partition.high_watermark = partition.log.log_end_offset
                self.fixture.replicas.append_waits.check(partition.key)

    def the_leader_changes(self, _: str) -> None:
        """Another replica leads for a moment; what was not committed is lost, unless it had that already."""
        self._change_leader(keep=self.random.random() < 0.5, lags=self.random.random() < 0.7)

    def the_leader_changes_twice(self, _: str) -> None:
        """The new leader has what was not committed, and is lost with it before anybody else has it."""
        self._change_leader(keep=True, lags=True)
        self.fixture.time.pump([1] * self.random.choice([0, 1, 40]))
        self._change_leader(keep=False, lags=True)

    def _change_leader(self, *, keep: bool, lags: bool) -> None:
        for partition in self._homes():
            epoch = partition.leader_epoch
            state = {"replicas": (NODE, OTHER), "isr": (NODE, OTHER)}
            self.fixture.set_state(TOPIC, partition.index, leader=OTHER, leader_epoch=epoch + 1, **state)
            if not keep:
                result_of(self.fixture.replicas.truncate(partition, self.committed[partition.index]))
            isr = (NODE, OTHER) if lags else (NODE,)
            self.fixture.set_state(TOPIC, partition.index, leader=NODE, leader_epoch=epoch + 2, isr=isr)

    def the_broker_crashes(self, _: str) -> None:
        """What was written stays; all else is forgotten, and answers under way are lost."""
        self.fixture.restart()

    def _homes(self) -> list[Partition]:
        return [self.fixture.partitions.by_name[TOPIC, index] for index in range(4)]

    # -- what must hold

    def no_transaction_is_torn(self) -> None:
        outcomes: dict[tuple[int, int], bool] = dict(self.decided)
        for _, producer_id, epoch, commit, _ in self.fixture.leaders.markers:
            assert outcomes.setdefault((producer_id, epoch), commit) == commit, "a transaction is torn"

    def heal(self) -> None:
        """End all faults, let time pass, and see that every transaction has ended everywhere."""
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


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_transaction_ends_alike_everywhere(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    history.run()
    assert len(history.added) > 3  # it was about something
