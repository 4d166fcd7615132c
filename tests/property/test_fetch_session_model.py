"""A client in a fetch session learns what one without a session would: the same records, offsets and errors.

The client of `Sessions` behaves like the Java client: it remembers what it was told of each partition, sends only what
has changed, and takes a partition that is missing in a response as unchanged. `Twins` compares a session that checks
only changed partitions with one that checks all its partitions in every fetch: their responses are the same, in the
same order and at the same time, and the leader draws the same conclusions about its followers.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tests.fakes.indexes import check_fetch_sessions, check_partitions
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts, records_in

NAMES = st.sampled_from(["a", "b"])
INDEXES = st.integers(0, 2)
MIB = 1 << 20
NAME_VERSION, ID_VERSION = 12, 16


class Sessions(RuleBasedStateMachine):
    @initialize(by_id=st.booleans())
    def start(self, by_id: bool) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.parts = Parts(Path(self.directory.name))
        self.by_id = by_id
        self.version = ID_VERSION if by_id else NAME_VERSION
        self.positions: dict[tuple[Any, int], int] = {}  # what the client wants to read, by (name or id, index)
        self.told: dict[tuple[Any, int], tuple[int, int, int]] = {}
        self.sent: dict[tuple[Any, int], int] = {}  # the positions that the session knows
        self.session_id = 0
        self.epoch = 0
        for name in ("a", "b"):
            self.parts.create(name, 2)
            for index in (0, 1, 2):
                self.want(name, index)

    def teardown(self) -> None:
        if hasattr(self, "parts"):
            self.parts.close()
            self.directory.cleanup()

    @invariant()
    def indexes_are_in_step(self) -> None:
        if hasattr(self, "parts"):
            check_fetch_sessions(self.parts.fetch_sessions)
            check_partitions(self.parts.partitions)

    # -- what happens on the broker

    @rule(name=NAMES, partitions=st.integers(1, 3))
    def create(self, name: str, partitions: int) -> None:
        if self.parts.topics.get(name) is None:
            self.parts.create(name, partitions)

    @rule(name=NAMES, seldom=st.integers(0, 3))
    def delete(self, name: str, seldom: int) -> None:
        if not seldom and self.parts.topics.get(name) is not None:
            result_of(self.parts.topic_admin.delete_topic(name))

    @rule(name=NAMES, index=INDEXES, count=st.integers(1, 3))
    def append(self, name: str, index: int, count: int) -> None:
        if (name, index) in self.parts.partitions.by_name:
            self.parts.append(name, *[b"v"] * count, partition=index)

    @rule(name=NAMES, index=INDEXES)
    def move_the_start(self, name: str, index: int) -> None:
        partition = self.parts.partitions.by_name.get((name, index))
        if partition is not None:
            wanted = [DeleteRecordsTopic(name, [DeleteRecordsPartition(index, partition.high_watermark)])]
            self.parts.call(DeleteRecordsRequest(wanted))

    # -- what the client does

    @rule(name=NAMES, index=INDEXES)
    def want(self, name: str, index: int) -> None:
        topic: Any = name
        if self.by_id:
            found = self.parts.topics.get(name)
            topic = b"x" * 16 if found is None else found.topic_id
        self.positions.setdefault((topic, index), 0)

    @rule(number=st.integers(0, 20))
    def want_no_longer(self, number: int) -> None:
        if self.positions:
            key = list(self.positions)[number % len(self.positions)]
            del self.positions[key]

    @rule(seldom=st.integers(0, 9))
    def lose_the_session(self, seldom: int) -> None:
        if not seldom:
            self.epoch = self.session_id = 0

    @rule(max_bytes=st.sampled_from([1, 100, MIB]))
    def fetch(self, max_bytes: int) -> None:
        if self.epoch == 0:
            self.sent = {}
            self.told = {}
        changed = {key: at for key, at in self.positions.items() if self.sent.get(key) != at}
        gone = [key for key in self.sent if key not in self.positions]
        answer = self.parts.call(
            FetchRequest(
                max_bytes=max_bytes,
                min_bytes=1,
                session_id=self.session_id,
                session_epoch=self.epoch,
                topics=[self._topic(FetchTopic, key, FetchPartition(key[1], fetch_offset=at, partition_max_bytes=MIB))
                        for key, at in changed.items()],
                forgotten_topics_data=[self._topic(ForgottenTopic, key, key[1]) for key in gone],
            ),
            self.version,
        )  # fmt: skip
        assert answer.error_code == 0
        self.sent = dict(self.positions)
        self.told = {key: told for key, told in self.told.items() if key in self.positions}
        self._hear(answer)
        self.epoch = self.epoch + 1 if answer.session_id else 0
        self.session_id = answer.session_id
        self._compare()

    def _topic(self, kind: Any, key: tuple[Any, int], entry: Any) -> Any:
        return kind(topic_id=key[0], partitions=[entry]) if self.by_id else kind(topic=key[0], partitions=[entry])

    def _partition(self, key: Any) -> Any:
        partitions = self.parts.partitions
        return partitions.by_id.get(key) if self.by_id else partitions.by_name.get(key)

    def _hear(self, answer: Any) -> None:
        for topic in answer.responses:
            for data in topic.partitions:
                key = (topic.topic_id if self.by_id else topic.topic, data.partition_index)
                assert key in self.positions
                self.told[key] = data.error_code, data.high_watermark, data.log_start_offset
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.positions[key] = self._partition(key).high_watermark  # as ListOffsets would tell it
                elif len(data.records):
                    records = records_in(data.records)
                    assert records[0].offset <= self.positions[key]
                    self.positions[key] = records[-1].offset + 1

    def _compare(self) -> None:
        """Check that what the client knows of each partition that it reads is true."""
        for key in self.positions:
            partition = self._partition(key)
            error, high_watermark, start = self.told[key]
            if partition is None:
                assert error
            elif error != ErrorCode.OFFSET_OUT_OF_RANGE:
                assert (error, high_watermark, start) == (0, partition.high_watermark, partition.log.log_start_offset)


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestFetchSessions = Sessions.TestCase


LEADER, FOLLOWER, OTHER = 1, 2, 3
MOST_LAG = 10.0


class Side:
    """The parts of one broker, and on it the session of one client, a consumer or broker 2.

    every: whether each fetch checks all partitions of the session.
    """

    def __init__(self, every: bool, follower: bool) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.parts = Parts(Path(self.directory.name))
        self.every = every
        self.follower = follower
        self.session_id = self.epoch = 0
        self.answers: list[Any] = []  # the responses to fetches, or Deferreds of them
        for name in ("a", "b"):
            self.create(name)

    def close(self) -> None:
        for answer in self.answers:
            if isinstance(answer, Deferred):
                answer.addErrback(lambda _: None)
                answer.cancel()
        self.parts.close()
        self.directory.cleanup()

    def create(self, name: str) -> None:
        self.parts.create(name, 3)
        if self.follower:
            for index in range(3):
                self.parts.set_state(name, index, replicas=(1, 2, 3), isr=(1, 2, 3))

    def partition(self, name: str, index: int) -> Any:
        return self.parts.partitions.by_name.get((name, index))

    def fetch(self, topics: list[Any], gone: list[Any], seed: int, **fields: Any) -> None:
        session = self.parts.fetch_sessions._sessions.get(self.session_id)
        if self.every and session is not None:
            session.see(object())
        random.seed(seed)  # the ids of sessions
        request = FetchRequest(
            replica_id=FOLLOWER if self.follower else -1,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic=name, partitions=[wanted]) for name, wanted in topics],
            forgotten_topics_data=[ForgottenTopic(topic=name, partitions=[index]) for name, index in gone],
            **fields,
        )
        self.answers.append(self.parts.ask(request, NAME_VERSION))
        self.epoch += 1
        assert all(answer.called for answer in self.answers[:-1])  # the next fetch of a session ends a wait

    def said(self) -> list[Any]:
        """Return the responses to fetches since the last call of this method."""
        return [self._said(answer) for answer in self._answered()]

    def _answered(self) -> Iterator[Any]:
        while self.answers and (not isinstance(self.answers[0], Deferred) or self.answers[0].called):
            answer = self.answers.pop(0)
            yield result_of(answer) if isinstance(answer, Deferred) else answer

    def _said(self, answer: Any) -> list[Any]:
        assert answer.error_code == 0
        self.session_id = answer.session_id
        self.epoch = self.epoch if answer.session_id else 0
        return [
            (
                topic.topic, data.partition_index, data.error_code, data.high_watermark, data.log_start_offset,
                data.preferred_read_replica, data.diverging_epoch,
                [record.offset for record in records_in(data.records)] if data.records else [],
            )
            for topic in answer.responses
            for data in topic.partitions
        ]  # fmt: skip

    def lagging(self) -> list[Any]:
        now = self.parts.time.seconds()
        return [
            (key, partition.lagging(now, MOST_LAG), partition.isr, partition.high_watermark)
            for key, partition in sorted(self.parts.partitions.by_name.items())
        ]

    def behind(self) -> list[Any]:
        """Return the followers that are out of sync once all partitions of the session have been marked as changed."""
        session = self.parts.fetch_sessions._sessions.get(self.session_id)
        if session is not None:
            session.see(object())
        return [
            (key, [(one.log_end, one.caught_up_at, one.fetched_at) for one in partition.followers.values()])
            for key, partition in sorted(self.parts.partitions.by_name.items())
        ]


class Twins(RuleBasedStateMachine):
    @initialize(follower=st.booleans())
    def start(self, follower: bool) -> None:
        self.follower = follower
        self.sides = [Side(False, follower), Side(True, follower)]
        self.positions = {(name, index): 0 for name in ("a", "b") for index in range(3)}
        self.sent: dict[tuple[str, int], int] = {}
        self.seed = 0

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            few, every = (side.behind() for side in self.sides)
            assert few == every
            for side in self.sides:
                side.close()

    # -- what happens on the brokers

    @rule(name=NAMES, index=INDEXES, count=st.integers(1, 3))
    def append(self, name: str, index: int, count: int) -> None:
        for side in self.sides:
            partition = side.partition(name, index)
            if partition is not None and partition.leading:
                side.parts.append(name, *[b"v"] * count, partition=index)

    @rule(name=NAMES, index=INDEXES)
    def move_the_start(self, name: str, index: int) -> None:
        for side in self.sides:
            partition = side.partition(name, index)
            if partition is not None:
                partition.log.delete_records_before(partition.high_watermark)
                side.parts.replica_parts.housekeeping.moved([(name, index)])

    @rule(name=NAMES, index=INDEXES, to=st.sampled_from([LEADER, LEADER, FOLLOWER]))
    def elect(self, name: str, index: int, to: int) -> None:
        for side in self.sides:
            partition = side.partition(name, index)
            if partition is not None:
                side.parts.set_state(name, index, leader=to, leader_epoch=partition.leader_epoch + 1)

    @rule(name=NAMES, index=INDEXES, isr=st.sampled_from([(1,), (1, 2), (1, 2, 3)]))
    def change_the_isr(self, name: str, index: int, isr: tuple[int, ...]) -> None:
        for side in self.sides:
            if self.follower and side.partition(name, index) is not None:
                side.parts.set_state(name, index, isr=isr)

    @rule(name=NAMES, seldom=st.integers(0, 3))
    def delete_or_create(self, name: str, seldom: int) -> None:
        for side in self.sides:
            if side.parts.topics.get(name) is None:
                side.create(name)
            elif not seldom:
                result_of(side.parts.topic_admin.delete_topic(name))

    @rule(name=NAMES, index=INDEXES, back=st.integers(0, 1))
    def another_follower_fetches(self, name: str, index: int, back: int) -> None:
        for side in self.sides:
            partition = side.partition(name, index)
            if self.follower and partition is not None and partition.leading:
                offset = max(partition.log.log_end_offset - back, 0)
                wanted = FetchPartition(index, partition.leader_epoch, offset, partition_max_bytes=MIB)
                topics = [FetchTopic(topic=name, partitions=[wanted])]
                side.parts.ask(FetchRequest(replica_id=OTHER, max_wait_ms=0, topics=topics), NAME_VERSION)

    @rule(seconds=st.sampled_from([0.1, 1, 6]))
    def time_goes_by(self, seconds: float) -> None:
        for side in self.sides:
            side.parts.time.advance(seconds)

    # -- what the client does

    @rule(number=st.integers(0, 20))
    def want_no_longer(self, number: int) -> None:
        if len(self.positions) > 1:
            del self.positions[list(self.positions)[number % len(self.positions)]]

    @rule(name=NAMES, index=INDEXES, offset=st.integers(0, 4))
    def want(self, name: str, index: int, offset: int) -> None:
        self.positions[name, index] = offset

    @rule(
        times=st.integers(1, 5),
        max_bytes=st.sampled_from([1, 100, MIB]),
        wait=st.sampled_from([0, 500]),
        least=st.sampled_from([1, 200]),
    )
    def fetch(self, times: int, max_bytes: int, wait: int, least: int) -> None:
        for _ in range(times):
            self._fetch(max_bytes, wait, least)
            self.they_say_the_same()
            self.time_goes_by(0.3)
            self.they_say_the_same()

    def _fetch(self, max_bytes: int, wait: int, least: int) -> None:
        assert self.sides[0].epoch == self.sides[1].epoch
        if self.sides[0].epoch == 0:
            self.sent = {}
        changed = {key: at for key, at in self.positions.items() if self.sent.get(key) != at}
        gone = [key for key in self.sent if key not in self.positions]
        self.sent = dict(self.positions)
        self.seed += 1
        wait = wait if self.sides[0].epoch else 0
        for side in self.sides:
            topics = []
            for (name, index), at in changed.items():
                partition = side.partition(name, index)
                epoch = partition.leader_epoch if partition is not None and self.follower else -1
                topics.append((name, FetchPartition(index, epoch, at, partition_max_bytes=MIB)))
            side.fetch(topics, gone, self.seed, max_bytes=max_bytes, max_wait_ms=wait, min_bytes=least)

    @rule()
    def fetch_for_the_new_epochs(self) -> None:
        """Fetch as a follower does that learned of a new leader epoch."""
        self.sent = dict.fromkeys(self.sent, -1)

    @invariant()
    def they_say_the_same(self) -> None:
        if not hasattr(self, "sides"):
            return
        few, every = (side.said() for side in self.sides)
        assert few == every
        for name, index, error, _hw, *_, offsets in [entry for answer in few for entry in answer]:
            if (name, index) in self.positions and offsets:
                self.positions[name, index] = offsets[-1] + 1
            elif (name, index) in self.positions and error == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.positions[name, index] = self.sides[0].partition(name, index).log.log_start_offset
        one, other = (side.lagging() for side in self.sides)
        assert one == other


Twins.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestTwins = Twins.TestCase


def test_an_offset_beyond_the_end_is_reported_in_a_later_fetch() -> None:
    """If another partition used up all bytes, the offset is not checked in that fetch, and must be checked in a later
    one.
    """
    state = Twins()
    state.start(follower=False)
    state.want_no_longer(number=0)
    state.append(count=1, index=0, name="b")
    state.append(count=1, index=1, name="a")
    state.want(index=0, name="a", offset=1)
    state.fetch(least=1, max_bytes=1, times=3, wait=0)
    state.teardown()
