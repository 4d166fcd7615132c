"""The group coordinator on real logs and metadata: commits, leadership changes, restarts, expiry, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.records import NEVER, Committed, group_key, offset_key, read_key
from pylogd.broker.groups.values import JoinAnswer, JoinRequest, LeavingMember, SyncRequest
from pylogd.broker.log.errors import StorageFailure
from pylogd.broker.replica.partition import Partition
from pylogd.store.errors import StoreFailure
from pylogd.wire.records import Record, encode_batch
from tests.fakes.groups import PendingResult
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE, Parts, records_in

NONE = ErrorCode.NONE
TOPIC = "__consumer_offsets"
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, offsets_topic_num_partitions=4, group_initial_rebalance_delay_ms=0)
    made.create("t", 3)
    made.create("u")
    assert result_of(made.groups.coordinator_of("g")) == NODE  # type: ignore[arg-type]
    yield made
    made.close()


def request(member_id: str = "", topics: str = "t", **fields: Any) -> JoinRequest:
    name = topics.encode()
    metadata = b"\0\1\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"
    wanted = {
        "instance_id": None, "client_id": "c", "client_host": "/h", "session": 10.0, "rebalance": 60.0,
        "protocol_type": "consumer", "protocols": (("range", metadata),), "needs_known_id": False, "can_skip": True,
    }  # fmt: skip
    return JoinRequest(member_id, **{**wanted, **fields})


def form(parts: Parts, group_id: str = "g", **fields: Any) -> JoinAnswer:
    """Form a Stable group of one member."""
    answer: JoinAnswer = PendingResult(parts.groups.join(group_id, request(**fields))).answer
    sync = parts.groups.sync(
        group_id, SyncRequest(answer.member_id, None, answer.generation, None, None, {answer.member_id: b"share"})
    )
    assert PendingResult(sync).answer.assignment == b"share"
    return answer


def commit(
    parts: Parts, offset: int, topic: str = "t", group_id: str = "g", joined: JoinAnswer | None = None, index: int = 0
) -> Any:
    member, generation = (joined.member_id, joined.generation) if joined else ("", -1)
    committed = Committed(offset, -1, "note", parts.groups.now_ms, topic_id=topic_id(parts, topic))
    return parts.groups.commit(group_id, member, None, generation, [((topic, index), committed)])


def topic_id(parts: Parts, name: str) -> bytes:
    topic = parts.topics.get(name)
    assert topic is not None
    return topic.topic_id


def offsets(parts: Parts, group_id: str = "g") -> dict[tuple[str, int], int] | ErrorCode:
    found = parts.groups.fetch(group_id)
    return found if isinstance(found, ErrorCode) else {place: one.offset for place, one in found.items()}


def restart(parts: Parts) -> None:
    """Stop the broker and start it again on the same disk."""
    parts.groups.stop()
    result_of(parts.replica_parts.stop())
    parts.logs.close()
    parts.boot()
    result_of(parts.replica_parts.start())


def home(parts: Parts, group_id: str = "g") -> Partition:
    """Return the partition that stores a group."""
    return next(
        parts.partitions.by_name[TOPIC, index]
        for index in range(4)
        if (found := parts.groups.describe(group_id)) and getattr(found, "partition_index", None) == index
    )


def stored(partition: Partition) -> dict[Any, bytes | None]:
    """Return the last value of each key in a partition of the offsets topic."""
    records: list[Record] = []
    while found := partition.read(records[-1].offset + 1 if records else 0, 1 << 20, min_one=True, allow_cold=True):
        records += records_in(found)
    return {read_key(record.key or b""): record.value for record in records}


class TestOffsets:
    def test_a_client_without_a_group_commits_and_fetches(self, parts: Parts) -> None:
        assert commit(parts, 7) == NONE
        found = parts.groups.fetch("g")
        assert found == {("t", 0): Committed(7, -1, "note", parts.groups.now_ms, NEVER, topic_id(parts, "t"))}
        assert offsets(parts, "other") == {}

    def test_a_member_commits_in_its_generation_only(self, parts: Parts) -> None:
        joined = form(parts)
        assert commit(parts, 7, joined=joined) == NONE
        assert commit(parts, 8, joined=joined._replace(generation=0)) == ErrorCode.ILLEGAL_GENERATION
        assert commit(parts, 8, joined=joined._replace(member_id="x")) == ErrorCode.UNKNOWN_MEMBER_ID
        assert commit(parts, 8) == ErrorCode.UNKNOWN_MEMBER_ID
        assert commit(parts, 8, group_id="none", joined=joined) == ErrorCode.GROUP_ID_NOT_FOUND
        assert offsets(parts) == {("t", 0): 7}

    def test_commits_are_refused_before_the_assignment_is_stored(self, parts: Parts) -> None:
        joined = PendingResult(parts.groups.join("g", request())).answer
        assert commit(parts, 7, joined=joined) == ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_commit_renews_the_session(self, parts: Parts) -> None:
        joined = form(parts)
        parts.time.advance(9)
        commit(parts, 7, joined=joined)
        parts.time.advance(9)
        assert parts.groups.heartbeat("g", joined.member_id, None, 1) == NONE

    def test_a_commit_waits_for_the_replicas_even_if_the_client_disconnects(self, parts: Parts) -> None:
        joined = form(parts)
        partition = home(parts)
        parts.set_state(TOPIC, partition.index, replicas=(NODE, 2), isr=(NODE, 2))
        waiting = PendingResult(commit(parts, 7, joined=joined))
        assert waiting.waits
        assert offsets(parts) == {}
        waiting.disconnect()
        partition.high_watermark = partition.log.log_end_offset
        parts.replicas.append_waits.check(partition.key)
        assert offsets(parts) == {("t", 0): 7}

    def test_a_commit_times_out_if_replicas_do_not_follow(self, parts: Parts) -> None:
        joined = form(parts)
        partition = home(parts)
        parts.set_state(TOPIC, partition.index, replicas=(NODE, 2), isr=(NODE, 2))
        waiting = PendingResult(commit(parts, 7, joined=joined))
        parts.time.advance(5)
        assert waiting.answer == ErrorCode.COORDINATOR_NOT_AVAILABLE
        parts.set_state(TOPIC, partition.index, replicas=(NODE, 2, 3), isr=(NODE, 2))
        partition.configure(3)
        assert commit(parts, 7, joined=joined) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition.configure(1)

    def test_a_commit_that_timed_out_counts_once_it_is_committed_unless_a_later_one_does(self, parts: Parts) -> None:
        joined = form(parts)
        partition = home(parts)
        parts.set_state(TOPIC, partition.index, replicas=(NODE, 2), isr=(NODE, 2))
        late = [PendingResult(commit(parts, offset, joined=joined)) for offset in (7, 8)]
        other = PendingResult(commit(parts, 5, joined=joined, index=1))
        parts.time.advance(5)
        assert {one.answer for one in (*late, other)} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert offsets(parts) == {}
        later = PendingResult(commit(parts, 9, joined=joined))
        partition.high_watermark = partition.log.log_end_offset - 1
        assert offsets(parts) == {("t", 0): 8, ("t", 1): 5}
        partition.high_watermark += 1
        parts.replicas.append_waits.check(partition.key)
        assert later.answer == NONE
        assert offsets(parts) == {("t", 0): 9, ("t", 1): 5}

    def test_a_commit_too_large_for_one_batch_is_refused(self, parts: Parts) -> None:
        result_of(parts.topic_admin.set_topic_configs(TOPIC, {"cleanup.policy": "compact", "max.message.bytes": "100"}))
        result_of(parts.hosting.settled(TOPIC))
        assert commit(parts, 7) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE


class TestLoading:
    def test_groups_and_offsets_survive_a_restart(self, parts: Parts) -> None:
        joined = form(parts)
        commit(parts, 7, joined=joined)
        commit(parts, 9, joined=joined)
        commit(parts, 3, "u", "simple")
        restart(parts)
        assert offsets(parts) == {("t", 0): 9}
        assert offsets(parts, "simple") == {("u", 0): 3}
        assert parts.groups.heartbeat("g", joined.member_id, None, 1) == NONE
        again = PendingResult(parts.groups.sync("g", SyncRequest(joined.member_id, None, 1, None, None, {}))).answer
        assert again.assignment == b"share"
        parts.time.advance(11)
        assert parts.groups.heartbeat("g", joined.member_id, None, 1) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_requests_are_refused_while_groups_are_loading(self, parts: Parts) -> None:
        joined = form(parts)
        commit(parts, 7, joined=joined)
        partition = home(parts)
        parts.threads.hold = True
        parts.groups._led._leadership(partition, False)
        parts.groups._led._leadership(partition, True)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        groups = parts.groups
        assert PendingResult(groups.join("g", request())).answer.error == loading
        assert (
            PendingResult(groups.sync("g", SyncRequest("m", None, 1, None, None, {}))).answer.error
            == ErrorCode.REBALANCE_IN_PROGRESS
        )
        assert groups.heartbeat("g", "m", None, 1) == NONE
        assert PendingResult(groups.leave("g", [LeavingMember("m", None)])).answer[0] == loading
        assert commit(parts, 8) == offsets(parts) == groups.describe("g") == result_of(groups.delete("g")) == loading
        assert groups.groups()[0] == loading
        parts.threads.hold = False
        parts.threads.release()
        assert offsets(parts) == {("t", 0): 7}

    def test_what_is_not_committed_is_not_served_after_a_load(self, parts: Parts) -> None:
        joined = form(parts)
        partition = home(parts)
        parts.set_state(TOPIC, partition.index, replicas=(NODE, 2), isr=(NODE, 2))
        waiting = PendingResult(commit(parts, 7, joined=joined))
        parts.groups._led._leadership(partition, False)
        parts.groups._led._leadership(partition, True)
        assert offsets(parts) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        parts.time.advance(5)  # until the load has waited for so long as a commit does
        assert offsets(parts) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert waiting.answer == ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition.high_watermark = partition.log.log_end_offset
        parts.time.advance(0.2)
        assert offsets(parts) == {("t", 0): 7}

    def test_losing_the_leadership_answers_waiting_requests_and_regaining_it_loads_the_groups(
        self, parts: Parts
    ) -> None:
        joined = form(parts)
        commit(parts, 7, joined=joined)
        partition = home(parts)
        waiting = PendingResult(parts.groups.join("g", request()))
        assert waiting.waits
        for leads in (False, True):
            parts.groups._led._leadership(partition, leads)
            if not leads:
                assert waiting.answer.error == ErrorCode.NOT_COORDINATOR
                assert commit(parts, 8, joined=joined) == offsets(parts) == ErrorCode.NOT_COORDINATOR
                assert parts.groups.heartbeat("g", "m", None, 1) == ErrorCode.NOT_COORDINATOR
                assert parts.groups.groups() == (NONE, [])
        assert offsets(parts) == {("t", 0): 7}
        assert parts.groups.heartbeat("g", joined.member_id, None, 1) == NONE

    def test_a_load_that_is_superseded_by_another_has_no_effect(self, parts: Parts) -> None:
        commit(parts, 7)
        partition = home(parts)
        parts.threads.hold = True
        for leads in (False, True, False):
            parts.groups._led._leadership(partition, leads)
        parts.threads.hold = False
        parts.threads.release()
        assert offsets(parts) == ErrorCode.NOT_COORDINATOR
        parts.groups._led._leadership(partition, True)
        assert offsets(parts) == {("t", 0): 7}

    def test_a_partition_is_loaded_in_slices(self, tmp_path: Path) -> None:
        parts = Parts(tmp_path, offsets_topic_num_partitions=1, offsets_load_buffer_size=1024)
        parts.create("t")
        result_of(parts.groups.coordinator_of("g"))  # type: ignore[arg-type]
        for number in range(100):
            commit(parts, number, group_id=f"g{number % 30}")
        restart(parts)
        assert {group_id: offsets(parts, group_id) for group_id in ("g0", "g9", "g10", "g29")} == {
            "g0": {("t", 0): 90}, "g9": {("t", 0): 99}, "g10": {("t", 0): 70}, "g29": {("t", 0): 89},
        }  # fmt: skip
        parts.close()

    def test_records_that_can_not_be_decoded_are_skipped(self, parts: Parts) -> None:
        commit(parts, 7)
        partition = home(parts)
        junk: list[tuple[bytes, bytes | None]] = [
            (b"\0\1\0", b""), (offset_key("g", "t", 1), b"\0\x09"), (b"\0\3\0\0", b""), (group_key("x"), b"\0\3"),
        ]  # fmt: skip
        for key, value in junk:
            batch = encode_batch([(key, value, parts.now_ms(), ())])
            parts.replicas.append(partition, batch, False)
        commit(parts, 8, index=2)
        restart(parts)
        assert offsets(parts) == {("t", 0): 7, ("t", 2): 8}

    def test_a_failing_disk_ends_the_load(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        commit(parts, 7)
        partition = home(parts)
        parts.groups._led._leadership(partition, False)

        def fail(*_args: object, **_named: object) -> None:
            raise StorageFailure("/data", OSError(5, "broken"))

        monkeypatch.setattr(type(partition.log), "read", fail)
        parts.groups._led._leadership(partition, True)
        assert offsets(parts) == ErrorCode.NOT_COORDINATOR


class TestOldOffsets:
    """The retention is seven days by default, and checked every ten minutes."""

    def wait(self, parts: Parts, days: float) -> None:
        parts.time.advance(days * 24 * 3600)
        parts.time.advance(600)

    def test_offsets_of_an_empty_group_expire_with_the_group(self, parts: Parts) -> None:
        commit(parts, 7)
        partition = home(parts)
        self.wait(parts, 6.9)
        assert offsets(parts) == {("t", 0): 7}
        self.wait(parts, 0.1)
        assert parts.groups.describe("g") == ErrorCode.GROUP_ID_NOT_FOUND
        assert set(stored(partition).values()) == {None}
        restart(parts)
        assert offsets(parts) == {}

    def test_retention_begins_when_the_last_member_leaves(self, parts: Parts) -> None:
        joined = form(parts)
        commit(parts, 7, joined=joined)
        for _ in range(8):
            parts.time.advance(24 * 3600 - 5)
            joined = form(parts)
        parts.groups.leave("g", [LeavingMember(joined.member_id, None)])
        self.wait(parts, 6.9)
        assert offsets(parts) == {("t", 0): 7}
        self.wait(parts, 0.2)
        assert offsets(parts) == {}

    def test_offsets_of_topics_without_subscription_expire(self, parts: Parts) -> None:
        joined = form(parts, topics="t", session=1800.0)
        commit(parts, 7, joined=joined)
        commit(parts, 3, "u", joined=joined)
        for _ in range(7 * 24 * 6 + 2):
            parts.groups.heartbeat("g", joined.member_id, None, 1)
            parts.time.advance(600)
        assert offsets(parts) == {("t", 0): 7}

    def test_an_expiry_time_of_the_client_takes_precedence(self, parts: Parts) -> None:
        early = Committed(7, -1, "", parts.groups.now_ms, parts.groups.now_ms + 1000)
        late = early._replace(expires_ms=NEVER)
        assert parts.groups.commit("g", "", None, -1, [(("t", 0), early), (("t", 1), late)]) == NONE
        self.wait(parts, 0)
        assert offsets(parts) == {("t", 1): 7}

    def test_offsets_of_a_deleted_topic_are_deleted_at_once(self, parts: Parts) -> None:
        for number in range(250):
            commit(parts, 7, group_id=f"g{number}")
            commit(parts, 8, "u", f"g{number}")
        result_of(parts.topic_admin.delete_topic("t"))
        for _ in range(4):
            parts.time.advance(0)
        assert all(offsets(parts, f"g{number}") == {("u", 0): 8} for number in range(250))

    def test_an_empty_group_without_offsets_is_deleted(self, parts: Parts) -> None:
        commit(parts, 7)
        parts.groups.delete_offsets("g", [("t", 0)])
        assert len(parts.groups.groups()[1]) == 1
        self.wait(parts, 0)
        assert parts.groups.groups() == (NONE, [])


class TestDeleting:
    def test_an_offset_that_is_committed_behind_a_deletion_stays(self, parts: Parts) -> None:
        commit(parts, 7)
        partition = home(parts)
        parts.set_state(TOPIC, partition.index, replicas=(NODE, 2), isr=(NODE, 2))
        deleted, committed = PendingResult(parts.groups.delete("g")), PendingResult(commit(parts, 8))
        partition.high_watermark = partition.log.log_end_offset
        parts.replicas.append_waits.check(partition.key)
        assert (deleted.answer, committed.answer) == (NONE, NONE)
        assert offsets(parts) == {("t", 0): 8}
        restart(parts)
        assert offsets(parts) == {("t", 0): 8}

    def test_a_group_without_members(self, parts: Parts) -> None:
        commit(parts, 7)
        partition = home(parts)
        assert result_of(parts.groups.delete("g")) == NONE
        assert set(stored(partition).values()) == {None}
        assert result_of(parts.groups.delete("g")) == ErrorCode.GROUP_ID_NOT_FOUND
        restart(parts)
        assert parts.groups.groups() == (NONE, [])

    def test_a_group_with_members_stays(self, parts: Parts) -> None:
        form(parts)
        assert result_of(parts.groups.delete("g")) == ErrorCode.NON_EMPTY_GROUP

    def test_offsets(self, parts: Parts) -> None:
        joined = form(parts, topics="t")
        for topic in "tu":
            commit(parts, 7, topic, joined=joined)
        error, answers = result_of(parts.groups.delete_offsets("g", [("t", 0), ("u", 0), ("u", 1)]))
        assert error == NONE
        assert answers == {("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ("u", 0): NONE, ("u", 1): NONE}
        assert offsets(parts) == {("t", 0): 7}

    def test_offsets_of_groups_of_other_protocol_types_stay(self, parts: Parts) -> None:
        form(parts, protocol_type="connect")
        assert result_of(parts.groups.delete_offsets("g", [("t", 0)]))[0] == ErrorCode.NON_EMPTY_GROUP
        assert result_of(parts.groups.delete_offsets("none", [("t", 0)]))[0] == ErrorCode.GROUP_ID_NOT_FOUND


class TestRefusals:
    def test_group_ids(self, parts: Parts) -> None:
        groups, refused = parts.groups, ErrorCode.INVALID_GROUP_ID
        assert PendingResult(groups.join("", request())).answer.error == refused
        assert PendingResult(groups.sync("", SyncRequest("m", None, 1, None, None, {}))).answer.error == refused
        assert groups.heartbeat("", "m", None, 1) == refused
        assert PendingResult(groups.leave("", [])).answer[0] == refused
        assert commit(parts, 7, group_id="x" * 40_000) == refused
        # As in Kafka, a group with an empty name can store offsets, for consumers without a group.
        assert commit(parts, 7, group_id="") == NONE
        assert offsets(parts, "") == {("t", 0): 7}

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"session": 5.999}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"session": 1800.001}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"instance_id": "i" * 1025}, ErrorCode.INVALID_REQUEST),
            ({"protocol_type": "p" * 40_000}, ErrorCode.INVALID_REQUEST),
            ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ],
    )
    def test_joins(self, parts: Parts, fields: dict[str, Any], code: ErrorCode) -> None:
        assert PendingResult(parts.groups.join("g", request(**fields))).answer.error == code
        assert parts.groups.groups() == (NONE, [])

    def test_unknown_groups(self, parts: Parts) -> None:
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert parts.groups.heartbeat("none", "m", None, 1) == unknown
        assert parts.groups.leave("none", [LeavingMember("m", None)]) == (NONE, [unknown])
        assert (
            PendingResult(parts.groups.sync("none", SyncRequest("m", None, 1, None, None, {}))).answer.error == unknown
        )

    def test_a_stopping_coordinator_refuses_requests(self, parts: Parts) -> None:
        form(parts)
        waiting = PendingResult(parts.groups.join("g", request()))
        parts.groups.stop()
        assert waiting.answer.error == ErrorCode.NOT_COORDINATOR
        assert commit(parts, 7) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert parts.groups.groups() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])


class TestTheTopic:
    def test_the_topic_is_created_once_with_as_many_replicas_as_brokers(self, parts: Parts) -> None:
        topic = parts.topics.get(TOPIC)
        assert topic is not None
        assert topic.internal
        assert [state.replicas for state in topic.partitions] == [(NODE,)] * 4
        assert topic.configs == {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}
        assert parts.groups.coordinator_of("h") == NODE

    def test_the_size_limit_of_produce_requests_does_not_apply(self, tmp_path: Path) -> None:
        parts = Parts(tmp_path, offsets_topic_num_partitions=5, max_partitions_per_request=2)
        assert result_of(parts.groups.coordinator_of("g")) == NODE  # type: ignore[arg-type]
        parts.close()

    def test_concurrent_first_requests_create_one_topic(self, tmp_path: Path) -> None:
        parts = Parts(tmp_path, offsets_topic_num_partitions=2)
        parts.threads.hold = True
        waits = [parts.groups.coordinator_of(name) for name in "abc"]
        assert all(isinstance(wait, Deferred) and not wait.called for wait in waits)
        gone = PendingResult(waits.pop())
        gone.disconnect()
        parts.threads.hold = False
        parts.threads.release()
        assert [result_of(wait) for wait in waits] == [NODE, NODE]  # type: ignore[arg-type]
        parts.close()

    @pytest.mark.parametrize("why", [StoreFailure("out of reach"), RuntimeError("nobody foresaw this")])
    def test_a_topic_that_can_not_be_created_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: Exception
    ) -> None:
        parts = Parts(tmp_path)
        monkeypatch.setattr(parts.topic_admin, "create_topic", lambda *_, **__: fail(why))
        assert result_of(parts.groups.coordinator_of("g")) == ErrorCode.COORDINATOR_NOT_AVAILABLE  # type: ignore[arg-type]
        parts.close()

    def test_deleting_the_offsets_topic_unloads_its_groups(self, parts: Parts) -> None:
        commit(parts, 7)
        result_of(parts.topic_admin.delete_topic(TOPIC))
        result_of(parts.hosting.settled(TOPIC))
        assert parts.groups.groups() == (NONE, [])
        assert commit(parts, 7) == ErrorCode.NOT_COORDINATOR
        assert result_of(parts.groups.coordinator_of("g")) == NODE  # type: ignore[arg-type]
        assert commit(parts, 7) == NONE
