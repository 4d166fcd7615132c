"""The highest epoch of a producer id, and errors while a transactional id changes: neither leaves anything stuck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.transactions.values import LAST_EPOCH, MAX_EPOCH, ProducerAnswer
from tests.fakes.groups import PendingResult
from tests.fakes.metadata import result_of
from tests.fakes.transactions import TIMEOUT_MS, TransactionFixture
from tests.unit.broker.transactions.test_transaction_coordinator import (
    CONCURRENT,
    FENCED,
    NONE,
    UNMAPPED,
    fixture,
    use_epoch,
)

__all__ = ["fixture"]


class TestLastEpoch:
    """The highest epoch of a producer id is 32767, and is never told to a producer."""

    def late(self, fixture: TransactionFixture, epoch: int = LAST_EPOCH) -> ProducerAnswer:
        """Return a producer whose transaction was aborted since its time was up."""
        producer = use_epoch(fixture, fixture.ready(), epoch)
        assert fixture.add(producer, version=2) == NONE
        fixture.wall_step_ms = TIMEOUT_MS + 1
        fixture.time.advance(10)
        assert fixture.state() == "COMPLETE_ABORT"
        return producer

    @pytest.mark.parametrize("epoch", [LAST_EPOCH - 1, LAST_EPOCH])
    def test_a_producer_that_was_too_slow_continues(self, fixture: TransactionFixture, epoch: int) -> None:
        late = self.late(fixture, epoch)
        for _ in range(2):  # and once more, as if the first answer was lost
            told = fixture.end(late, commit=False, version=2)
            assert told.error == NONE
            assert (told.epoch, told.producer_id == late.producer_id) == (
                (LAST_EPOCH, True) if epoch < LAST_EPOCH else (0, False)
            )
        for expected in (1, 2, 3):
            assert fixture.add(told, version=2) == NONE
            told = fixture.end(told, version=2)
            assert (told.error, told.producer_id == late.producer_id) == (NONE, False)
            assert told.epoch == (expected if epoch == LAST_EPOCH else expected - 1)

    @pytest.mark.parametrize("restart", [False, True])
    def test_a_producer_that_asks_for_a_new_epoch_continues(self, fixture: TransactionFixture, restart: bool) -> None:
        """KIP-360: it names the id and the epoch that it has."""
        late = self.late(fixture)
        if restart:
            fixture.restart()
        for _ in range(2):
            told = fixture.init((late.producer_id, late.epoch))
            assert (told.error, told.epoch) == (NONE, 0)
            assert told.producer_id != late.producer_id
        assert fixture.add(told, version=2) == NONE
        assert fixture.end(told, version=2).epoch == 1

    def test_a_successor_fences_it_under_the_new_id_too(self, fixture: TransactionFixture) -> None:
        late = self.late(fixture)
        new = fixture.ready()
        assert (new.epoch, new.producer_id != late.producer_id) == (1, True)
        assert fixture.init((late.producer_id, late.epoch)).error == FENCED
        assert fixture.end(late, commit=False, version=2).error == UNMAPPED

    def test_without_an_epoch_per_transaction_the_next_producer_gets_another_id(
        self, fixture: TransactionFixture
    ) -> None:
        fixture.metadata.features.levels = {"transaction.version": 1}
        late = self.late(fixture)
        assert fixture.found().value.epoch == MAX_EPOCH
        assert fixture.add(late) == FENCED
        new = fixture.init((late.producer_id, MAX_EPOCH))  # as an earlier release told it
        assert (new.epoch, new.producer_id != late.producer_id) == (0, True)

    @pytest.mark.parametrize("commit", [True, False])
    def test_a_transaction_in_the_highest_epoch_can_be_ended(self, fixture: TransactionFixture, commit: bool) -> None:
        """As an earlier release left it: it told this epoch to a producer."""
        stuck = use_epoch(fixture, fixture.ready(), MAX_EPOCH)
        fixture.add(stuck, version=2)
        fixture.restart()
        for _ in range(2):
            told = fixture.end(stuck, commit, version=2)
            assert (told.error, told.epoch) == (NONE, 0)
            assert told.producer_id != stuck.producer_id
        [marker] = fixture.leaders.markers
        assert marker[2:4] == (MAX_EPOCH, commit)
        version = fixture.leaders.requests[-1][1].markers[0].transaction_version
        assert version == 1, "leaders of an earlier release take no marker of the same epoch with version 2"

    @pytest.mark.parametrize("how", ["time", "successor"])
    def test_a_transaction_in_the_highest_epoch_can_be_fenced(self, fixture: TransactionFixture, how: str) -> None:
        stuck = use_epoch(fixture, fixture.ready(), MAX_EPOCH)
        fixture.add(stuck, version=2)
        if how == "time":
            fixture.wall_step_ms = TIMEOUT_MS + 1
            fixture.time.advance(10)
        else:
            assert fixture.init().error == CONCURRENT
        assert fixture.state() == "COMPLETE_ABORT"
        new = fixture.ready()
        assert (new.epoch, new.producer_id != stuck.producer_id) == (1, True)

    def test_an_id_that_stands_at_the_highest_epoch_is_replaced(self, fixture: TransactionFixture) -> None:
        stuck = use_epoch(fixture, fixture.ready(), MAX_EPOCH)
        fixture.found().value = replace(fixture.found().value, last_epoch=LAST_EPOCH)
        for expected in (LAST_EPOCH, LAST_EPOCH):
            new = fixture.init((stuck.producer_id, expected))
            assert (new.epoch, new.producer_id != stuck.producer_id) == (0, True)


class TestErrors:
    """A change that fails, however that is, leaves nothing pending: the next request makes it."""

    class Broken(Exception):
        pass

    @pytest.mark.parametrize("late", [False, True])
    def test_of_a_producer_id(self, fixture: TransactionFixture, late: bool) -> None:
        producer = use_epoch(fixture, fixture.ready(), LAST_EPOCH)
        fixture.add(producer, version=2)
        x, real = fixture.transactions, fixture.transactions._next_producer_id
        failing: list[Deferred[int]] = []

        def broken() -> Deferred[int]:
            if not late:
                raise self.Broken
            failing.append(Deferred())
            fixture.time.callLater(0, failing[-1].errback, self.Broken())
            return failing[-1]

        x._next_producer_id = broken
        changes: list[Callable[[], Any]] = [
            lambda: x.end("x", producer.producer_id, producer.epoch, True, 2),
            lambda: x.initialize("x", TIMEOUT_MS, None),
        ]
        for change in changes:
            result = PendingResult(maybeDeferred(change).addErrback(lambda failure: failure.type))
            fixture.time.advance(0)
            assert result.answer is self.Broken
            assert fixture.found().pending is None
        x._next_producer_id = real
        assert fixture.end(producer, version=2).error == NONE

    def test_of_an_append(self, fixture: TransactionFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        producer = fixture.ready()

        def broken(*_: object, **__: object) -> bytes:
            raise self.Broken

        with monkeypatch.context() as patched:
            patched.setattr("pylogd.broker.replica.internal_topic.encode_batch", broken)
            assert fixture.add(producer) == ErrorCode.UNKNOWN_SERVER_ERROR
        with monkeypatch.context() as patched:
            patched.setattr("pylogd.broker.transactions.shards.transaction_value", broken)
            with pytest.raises(self.Broken):
                result_of(fixture.transactions.add("x", producer.producer_id, producer.epoch, [("t", 0)], 0))
        assert fixture.found().pending is None
        assert fixture.add(producer) == fixture.end(producer).error == NONE

    def test_of_markers(self, fixture: TransactionFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        """A decided transaction is taken up again by itself."""
        producer = fixture.ready()
        fixture.add(producer)

        def broken(*_: object) -> None:
            raise self.Broken

        with monkeypatch.context() as patched:
            patched.setattr(fixture.transactions._markers, "send", broken)
            with pytest.raises(self.Broken):
                result_of(fixture.transactions.end("x", producer.producer_id, producer.epoch, True, 0))
        assert (fixture.state(), fixture.found().pending) == ("PREPARE_COMMIT", None)
        fixture.time.advance(10)
        assert fixture.state() == "COMPLETE_COMMIT"
        assert [marker[3] for marker in fixture.leaders.markers] == [True]
