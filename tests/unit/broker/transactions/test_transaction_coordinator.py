"""The transaction coordinator on real logs and metadata, with partition leaders that the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.transactions.values import LAST_EPOCH, ProducerAnswer
from tests.fakes.groups import PendingResult
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE
from tests.fakes.transactions import TOPIC, TransactionFixture

NONE = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
UNMAPPED = ErrorCode.INVALID_PRODUCER_ID_MAPPING
INVALID = ErrorCode.INVALID_TXN_STATE
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[TransactionFixture]:
    made = TransactionFixture(tmp_path)
    yield made
    made.leaders.release()
    made.close()


def use_epoch(fixture: TransactionFixture, producer: ProducerAnswer, epoch: int) -> ProducerAnswer:
    """Return the producer with another epoch, which the coordinator knows too."""
    found = fixture.found()
    found.value = replace(found.value, epoch=epoch)
    return producer._replace(epoch=epoch)


class TestInitialize:
    def test_a_new_producer_gets_an_id_and_epoch_0_and_the_next_one_the_next_epoch(
        self, fixture: TransactionFixture
    ) -> None:
        first = fixture.ready()
        assert first.epoch == 0
        assert fixture.ready() == first._replace(epoch=1)
        assert fixture.ready("y").producer_id != first.producer_id

    @pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
    def test_a_time_out_out_of_range_is_refused(self, fixture: TransactionFixture, timeout_ms: int) -> None:
        assert fixture.init(timeout_ms=timeout_ms).error == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        assert fixture.transactions.describe("x") == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    @pytest.mark.parametrize("name", ["", "x" * 1025])
    def test_an_id_that_is_empty_or_too_long_is_refused(self, fixture: TransactionFixture, name: str) -> None:
        assert fixture.init(name=name).error == ErrorCode.INVALID_REQUEST
        assert fixture.transactions.coordinator_of(name) == (ErrorCode.INVALID_REQUEST if name else 1)  # as in Kafka

    def test_an_open_transaction_is_aborted_with_a_higher_epoch_first(self, fixture: TransactionFixture) -> None:
        old = fixture.ready()
        assert fixture.add(old, 0, 1) == NONE
        fixture.leaders.hold = True
        assert fixture.init().error == CONCURRENT
        assert fixture.init().error == CONCURRENT  # until the markers are written
        waiting = PendingResult(fixture.transactions.add("x", old.producer_id, old.epoch, [("t", 2)], 0))
        fixture.leaders.release()
        assert waiting.answer == FENCED
        assert {marker[0] for marker in fixture.leaders.markers} == {("t", 0), ("t", 1)}
        assert {marker[2:4] for marker in fixture.leaders.markers} == {(old.epoch + 1, False)}
        new = fixture.ready()
        assert new == old._replace(epoch=2)
        assert fixture.add(old, 0) == fixture.end(old).error == FENCED

    def test_a_producer_that_tells_its_epoch_goes_on_and_may_repeat_the_request(
        self, fixture: TransactionFixture
    ) -> None:
        first = fixture.ready()
        second = fixture.init((first.producer_id, 0))
        assert second == first._replace(epoch=1)
        assert fixture.init((first.producer_id, 0)) == second
        assert fixture.init((first.producer_id, 5)).error == FENCED
        assert fixture.init((first.producer_id + 1, 1)).error == FENCED
        fixture.ready()
        assert fixture.init((first.producer_id, 0)).error == FENCED  # another producer has come since
        assert fixture.init((first.producer_id, 1)).error == FENCED

    def test_a_producer_that_is_unknown_gets_a_new_id(self, fixture: TransactionFixture) -> None:
        assert fixture.init((4711, 3)).epoch == 0

    def test_a_zombie_does_not_abort_the_transaction_of_its_successor(self, fixture: TransactionFixture) -> None:
        old = fixture.ready()
        new = fixture.ready()
        assert fixture.add(new) == NONE
        assert fixture.init((old.producer_id, old.epoch)).error == FENCED
        assert fixture.state() == "ONGOING"

    def test_a_producer_id_without_further_epochs_is_replaced(self, fixture: TransactionFixture) -> None:
        last = use_epoch(fixture, fixture.ready(), LAST_EPOCH)
        new = fixture.init((last.producer_id, LAST_EPOCH))
        assert new.epoch == 0
        assert new.producer_id != last.producer_id
        assert fixture.init((last.producer_id, LAST_EPOCH)) == new  # it has not heard the answer
        assert fixture.init((last.producer_id, 7)).error == FENCED

    def test_the_last_epoch_of_an_id_can_be_fenced(self, fixture: TransactionFixture) -> None:
        last = use_epoch(fixture, fixture.ready(), LAST_EPOCH)
        assert fixture.add(last) == NONE
        assert fixture.init().error == CONCURRENT
        assert fixture.leaders.markers[0][2] == LAST_EPOCH + 1 == 32767
        new = fixture.ready()
        assert (new.epoch, new.producer_id != last.producer_id) == (1, True)  # 0 is that of the end (KIP-890)


class TestAdd:
    def test_partitions_are_added_and_stored(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        assert fixture.add(producer, 0) == fixture.add(producer, 1) == fixture.add(producer, 0) == NONE
        fixture.restart()
        assert fixture.found().value.partitions == {("t", 0), ("t", 1)}
        assert fixture.state() == "ONGOING"

    def test_who_is_not_the_producer_is_refused(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        assert fixture.add(producer, name="y") == UNMAPPED
        assert fixture.add(producer._replace(producer_id=4711)) == UNMAPPED
        assert fixture.add(producer._replace(epoch=1)) == FENCED
        assert fixture.add(producer._replace(epoch=-1)) == FENCED

    def test_the_next_transaction_waits_for_the_markers_of_the_one_before(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.add(producer)
        fixture.leaders.hold = True
        assert fixture.end(producer).error == NONE
        x = fixture.transactions
        waiting = PendingResult(x.add("x", producer.producer_id, producer.epoch, [("t", 1)], 0))
        assert waiting.waits
        fixture.leaders.release()
        assert waiting.answer == NONE
        assert fixture.found().value.partitions == {("t", 1)}

    def test_it_does_not_wait_for_long(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.add(producer)
        fixture.leaders.hold = True
        fixture.end(producer)
        x = fixture.transactions
        waiting = PendingResult(x.add("x", producer.producer_id, producer.epoch, [("t", 1)], 0))
        fixture.time.advance(0.1)
        assert waiting.answer == CONCURRENT

    def test_a_transaction_has_a_largest_number_of_partitions(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        many = [("t", index) for index in range(20_001)]
        x = fixture.transactions
        assert result_of(x.add("x", producer.producer_id, producer.epoch, many, 0)) == ErrorCode.INVALID_REQUEST
        assert fixture.state() == "EMPTY"

    def test_verifying_says_which_partitions_are_in_the_transaction(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.add(producer, 0)
        x, partitions = fixture.transactions, [("t", 0), ("t", 1)]
        assert x.verify("x", producer.producer_id, 0, partitions) == {
            ("t", 0): NONE, ("t", 1): ErrorCode.TRANSACTION_ABORTABLE
        }  # fmt: skip
        assert set(x.verify("x", producer.producer_id, 1, partitions).values()) == {FENCED}
        assert set(x.verify("x", 4711, 0, partitions).values()) == {UNMAPPED}
        assert set(x.verify("y", producer.producer_id, 0, partitions).values()) == {UNMAPPED}
        fixture.leaders.hold = True
        fixture.end(producer)
        assert set(x.verify("x", producer.producer_id, 0, partitions).values()) == {CONCURRENT}


class TestEnd:
    @pytest.mark.parametrize("commit", [True, False])
    def test_markers_go_to_all_partitions_and_the_end_may_be_repeated(
        self, fixture: TransactionFixture, commit: bool
    ) -> None:
        producer = fixture.ready()
        fixture.add(producer, 0, 2)
        fixture.leaders.hold = True
        assert fixture.end(producer, commit).error == NONE
        assert fixture.state() == ("PREPARE_COMMIT" if commit else "PREPARE_ABORT")
        assert fixture.end(producer, commit).error == CONCURRENT
        assert fixture.end(producer, not commit).error == CONCURRENT
        fixture.leaders.release()
        assert [marker[:4] for marker in fixture.leaders.markers] == [
            (("t", index), producer.producer_id, 0, commit) for index in (0, 2)
        ]
        assert fixture.state() == ("COMPLETE_COMMIT" if commit else "COMPLETE_ABORT")
        assert fixture.end(producer, commit).error == NONE
        assert fixture.end(producer, not commit).error == INVALID
        assert len(fixture.leaders.markers) == 2

    def test_who_is_not_the_producer_is_refused(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        for version in (0, 2):
            assert fixture.end(producer, version=version, name="y").error == UNMAPPED
            assert fixture.end(producer._replace(producer_id=4711), version=version).error == UNMAPPED
            assert fixture.end(producer._replace(epoch=3), version=version).error == FENCED
            assert fixture.end(producer, version=version).error == INVALID  # there is no transaction

    def test_an_abort_without_a_transaction_is_for_producers_with_an_epoch_per_transaction(
        self, fixture: TransactionFixture
    ) -> None:
        producer = fixture.ready()
        assert fixture.end(producer, False).error == INVALID
        assert fixture.end(producer, False, version=2) == producer._replace(epoch=1)
        assert fixture.state() == "COMPLETE_ABORT"
        assert fixture.leaders.markers == []

    @pytest.mark.parametrize("commit", [True, False])
    def test_an_epoch_per_transaction(self, fixture: TransactionFixture, commit: bool) -> None:
        producer = fixture.ready()
        assert fixture.add(producer, version=2) == NONE
        fixture.leaders.hold = True
        after = fixture.end(producer, commit, 2)
        assert after == producer._replace(epoch=1)
        assert fixture.end(producer, commit, 2).error == CONCURRENT
        fixture.leaders.release()
        assert fixture.leaders.markers[0][:4] == (("t", 0), producer.producer_id, 1, commit)
        assert fixture.end(producer, commit, 2) == after  # the answer was lost
        assert fixture.end(producer, not commit, 2).error == INVALID
        assert fixture.add(producer, version=2) == FENCED
        assert fixture.add(after, version=2) == NONE
        assert fixture.end(producer, commit, 2).error == FENCED
        assert fixture.end(after, True, 2) == after._replace(epoch=2)
        assert fixture.end(after._replace(epoch=2), True, 2).error == INVALID
        assert fixture.end(after._replace(epoch=2), False, 2) == after._replace(epoch=3)

    @pytest.mark.parametrize("commit", [True, False])
    def test_an_empty_abort_while_the_transaction_before_is_being_ended(
        self, fixture: TransactionFixture, commit: bool
    ) -> None:
        """It has the epoch that the answer to the end had, and waits: the producer is not fenced (KAFKA-18464)."""
        producer = fixture.ready()
        fixture.add(producer, version=2)
        fixture.leaders.hold = True
        after = fixture.end(producer, commit, 2)
        assert fixture.end(after, False, 2).error == CONCURRENT
        assert fixture.end(producer._replace(epoch=7), False, 2).error == CONCURRENT
        fixture.leaders.release()
        assert fixture.end(producer._replace(epoch=7), False, 2).error == FENCED
        assert fixture.end(after, False, 2) == after._replace(epoch=2)

    def test_the_last_epoch_is_followed_by_another_id(self, fixture: TransactionFixture) -> None:
        last = use_epoch(fixture, fixture.ready(), LAST_EPOCH)
        assert fixture.add(last, version=2) == NONE
        fixture.leaders.hold = True
        after = fixture.end(last, True, 2)
        assert (after.error, after.epoch) == (NONE, 0)
        assert after.producer_id != last.producer_id
        assert fixture.transactions.verify("x", after.producer_id, 0, [("t", 0)]) == {("t", 0): UNMAPPED}
        waiting = PendingResult(fixture.transactions.add("x", after.producer_id, 0, [("t", 1)], 2))
        assert waiting.waits  # the new id is in effect when the markers are written
        fixture.leaders.release()
        assert fixture.leaders.markers == [(("t", 0), last.producer_id, 32767, True, 0)]
        assert waiting.answer == NONE
        assert fixture.end(after, True, 2) == after._replace(epoch=1)

    def test_an_end_with_the_last_epoch_may_be_repeated(self, fixture: TransactionFixture) -> None:
        last = use_epoch(fixture, fixture.ready(), LAST_EPOCH)
        fixture.add(last, version=2)
        after = fixture.end(last, True, 2)
        assert fixture.end(last, True, 2) == after
        assert fixture.end(last, False, 2).error == INVALID

    def test_the_decision_stands_if_the_client_disconnects(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.add(producer)
        home = fixture.set_state(TOPIC, _home(fixture), replicas=(NODE, 2), isr=(NODE, 2))
        waiting = PendingResult(fixture.transactions.end("x", producer.producer_id, 0, True, 0))
        waiting.disconnect()
        assert fixture.leaders.markers == []  # it is not in the in-sync set
        home.high_watermark = home.log.log_end_offset
        fixture.replicas.append_waits.check(home.key)
        assert len(fixture.leaders.markers) == 1


def _home(fixture: TransactionFixture) -> int:
    return fixture.transactions._shards.topic.index_of("x")


class TestPending:
    def test_a_change_that_is_being_stored_fences_all_others(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        home = fixture.set_state(TOPIC, _home(fixture), replicas=(NODE, 2), isr=(NODE, 2))
        waiting = PendingResult(fixture.transactions.add("x", producer.producer_id, 0, [("t", 0)], 0))
        assert waiting.waits
        assert fixture.state() == "EMPTY"
        assert fixture.add(producer, 1) == fixture.end(producer).error == fixture.init().error == CONCURRENT
        home.high_watermark = home.log.log_end_offset
        fixture.replicas.append_waits.check(home.key)
        assert waiting.answer == NONE
        assert fixture.state() == "ONGOING"

    def test_what_several_leaders_ask_for_meanwhile_is_stored_together(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        home = fixture.set_state(TOPIC, _home(fixture), replicas=(NODE, 2), isr=(NODE, 2))

        def ask(index: int, epoch: int = producer.epoch) -> PendingResult:
            return PendingResult(fixture.transactions.add("x", producer.producer_id, epoch, [("t", index)], 2))

        def replicate() -> int:
            home.high_watermark = home.log.log_end_offset
            fixture.replicas.append_waits.check(home.key)
            return home.log.log_end_offset

        before = replicate()
        first, others, fenced = ask(0), [ask(1), ask(2), ask(1)], ask(0, 7)
        assert first.waits and fenced.waits and all(one.waits for one in others)
        assert replicate() == before + 2
        assert first.answer == NONE
        assert replicate() == before + 2
        assert fenced.answer == FENCED
        assert [one.answer for one in others] == [NONE] * 3
        assert fixture.found().value.partitions == {("t", 0), ("t", 1), ("t", 2)}
        assert fixture.found().wanted == []

    def test_leaders_that_ask_do_not_wait_for_long(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.set_state(TOPIC, _home(fixture), replicas=(NODE, 2), isr=(NODE, 2))
        x = fixture.transactions
        first, other = (
            PendingResult(x.add("x", producer.producer_id, producer.epoch, [("t", index)], 2)) for index in (0, 1)
        )
        fixture.time.advance(0.1)
        assert first.waits
        assert other.answer == CONCURRENT
        assert fixture.found().wanted == []

    def test_a_change_that_is_not_replicated_in_time_is_not_in_effect(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.set_state(TOPIC, _home(fixture), replicas=(NODE, 2), isr=(NODE, 2))
        waiting = PendingResult(fixture.transactions.add("x", producer.producer_id, 0, [("t", 0)], 0))
        fixture.time.advance(30)
        assert waiting.answer == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert fixture.state() == "EMPTY"
        assert fixture.found().pending is None

    def test_a_leader_that_is_none_any_more_says_so(self, fixture: TransactionFixture) -> None:
        """The coordinator may hear later than the partition that another broker leads."""
        producer = fixture.ready()
        partition = fixture.partitions.by_name[TOPIC, _home(fixture)]
        shard, _ = fixture.transactions._shards.find("x")  # type: ignore[misc]
        fixture.set_state(TOPIC, _home(fixture), leader=2, leader_epoch=partition.leader_epoch + 1, replicas=(NODE, 2))
        assert fixture.transactions._shards.topic.append(shard.partition, [(b"k", b"v")]) == ErrorCode.NOT_COORDINATOR
        assert fixture.add(producer) == ErrorCode.NOT_COORDINATOR

    def test_the_end_is_stored_again_until_it_is_replicated(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.add(producer)
        fixture.leaders.hold = True
        fixture.end(producer)
        home = fixture.set_state(TOPIC, _home(fixture), replicas=(NODE, 2), isr=(NODE, 2))
        fixture.leaders.release()
        fixture.time.advance(30)
        assert fixture.state() == "PREPARE_COMMIT"
        assert fixture.init().error == CONCURRENT
        fixture.set_state(TOPIC, home.index, replicas=(NODE,), isr=(NODE,))
        fixture.time.advance(1)
        assert fixture.state() == "COMPLETE_COMMIT"

    def test_an_id_that_could_not_be_stored_is_forgotten(self, fixture: TransactionFixture) -> None:
        fixture.set_state(TOPIC, _home(fixture), replicas=(NODE, 2), isr=(NODE, 2))
        waiting = PendingResult(fixture.transactions.initialize("x", 1000, None))
        fixture.time.advance(30)
        assert waiting.answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert fixture.transactions.describe("x") == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class TestFailover:
    @pytest.mark.parametrize("commit", [True, False])
    def test_a_decided_transaction_is_ended_by_the_next_coordinator(
        self, fixture: TransactionFixture, commit: bool
    ) -> None:
        producer = fixture.ready()
        fixture.add(producer, 0, 1)
        fixture.leaders.hold = True
        after = fixture.end(producer, commit, 2)
        fixture.leaders = type(fixture.leaders)()
        fixture.restart()
        assert {marker[:4] for marker in fixture.leaders.markers} == {
            (("t", index), producer.producer_id, 1, commit) for index in (0, 1)
        }
        assert fixture.state() == ("COMPLETE_COMMIT" if commit else "COMPLETE_ABORT")
        assert fixture.end(producer, commit, 2) == after

    def test_no_marker_is_sent_before_the_decision_is_in_the_in_sync_set(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.add(producer)
        fixture.leaders.hold = True
        fixture.end(producer)
        home = fixture.set_state(TOPIC, _home(fixture), leader=2, leader_epoch=1, replicas=(NODE, 2), isr=(NODE, 2))
        fixture.leaders.release()
        fixture.leaders.markers.clear()
        home.high_watermark = home.log.log_start_offset
        fixture.set_state(TOPIC, home.index, leader=NODE, leader_epoch=2, replicas=(NODE, 2), isr=(NODE, 2))
        assert fixture.leaders.markers == []
        assert fixture.init().error == CONCURRENT
        fixture.time.advance(31)  # a first wait is over
        assert fixture.leaders.markers == []
        home.high_watermark = home.log.log_end_offset
        fixture.replicas.append_waits.check(home.key)
        fixture.time.advance(1)
        assert [marker[4] for marker in fixture.leaders.markers] == [2]  # the coordinator's epoch

    def test_the_former_coordinator_refuses_and_sends_no_markers(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.add(producer)
        fixture.leaders.errors["t", 0] = ErrorCode.NOT_ENOUGH_REPLICAS
        fixture.end(producer)
        fixture.set_state(TOPIC, _home(fixture), leader=2, leader_epoch=1, replicas=(NODE, 2), isr=(NODE, 2))
        fixture.leaders.errors.clear()
        fixture.time.advance(100)
        assert fixture.leaders.markers == []
        assert fixture.add(producer) == fixture.end(producer).error == ErrorCode.NOT_COORDINATOR
        assert fixture.init().error == ErrorCode.NOT_COORDINATOR
        assert fixture.transactions.coordinator_of("x") in (NODE, 2)

    def test_requests_are_refused_while_ids_are_loading(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.threads.hold = True
        home = fixture.partitions.by_name[TOPIC, _home(fixture)]
        shards = fixture.transactions._shards
        shards._leadership(home, False)
        shards._leadership(home, True)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert fixture.add(producer) == fixture.init().error == fixture.transactions.transactions()[0] == loading
        fixture.threads.hold = False
        fixture.threads.release()
        assert fixture.add(producer) == NONE

    def test_a_broker_that_stops_says_so(self, fixture: TransactionFixture) -> None:
        producer = fixture.ready()
        fixture.transactions.stop()
        assert fixture.add(producer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert fixture.transactions.transactions()[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        fixture.transactions.start()


class TestTime:
    def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(
        self, fixture: TransactionFixture
    ) -> None:
        producer = fixture.init(timeout_ms=15_000)
        fixture.add(producer)
        fixture.time.pump([10])
        assert fixture.leaders.markers == []
        fixture.time.pump([10])
        assert [marker[2:4] for marker in fixture.leaders.markers] == [(1, False)]
        assert fixture.state() == "COMPLETE_ABORT"
        assert fixture.add(producer) == fixture.end(producer).error == FENCED

    def test_a_slow_producer_with_an_epoch_per_transaction_may_go_on(self, fixture: TransactionFixture) -> None:
        producer = fixture.init(timeout_ms=5_000)
        fixture.add(producer, version=2)
        fixture.time.pump([10])
        assert fixture.end(producer, True, 2).error == INVALID  # it was aborted
        assert fixture.init((producer.producer_id, 0)) == producer._replace(epoch=1)

    def test_ids_expire_without_changes_but_not_while_a_transaction_is_open(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        opened = fixture.ready("open")
        fixture.add(opened, name="open")
        fixture.wall_step_ms = 7 * DAY_MS
        fixture.transactions._sweeps._remove_expired()
        assert fixture.transactions.describe("x") == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert fixture.state("open") == "ONGOING"
        fixture.restart()
        assert fixture.transactions.describe("x") == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert fixture.ready().epoch == 0

    def test_expired_ids_are_looked_for_every_hour(self, fixture: TransactionFixture) -> None:
        fixture.ready()
        fixture.wall_step_ms = 7 * DAY_MS
        fixture.time.pump([10] * 361)
        assert fixture.transactions.describe("x") == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_the_topic_has_kafkas_settings(fixture: TransactionFixture) -> None:
    topic = fixture.topics.get(TOPIC)
    assert topic is not None
    assert len(topic.partitions) == 4
    assert topic.configs == {
        "cleanup.policy": "compact", "compression.type": "uncompressed", "min.insync.replicas": "2",
        "segment.bytes": "104857600", "unclean.leader.election.enable": "false",
    }  # fmt: skip
    result_of(fixture.topic_admin.set_topic_configs(TOPIC, dict(topic.configs)))
