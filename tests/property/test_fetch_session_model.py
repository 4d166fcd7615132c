"""A client in a fetch session learns what one without a session would: the same records, offsets and errors.

The client here does what the Java client does: it remembers what it was told of each partition, says only what has
changed, and takes silence to mean that nothing has.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pylogd.errors import ErrorCode
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
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
        self.positions: dict[tuple[Any, int], int] = {}  # what the client wants, by (name or id, index)
        self.told: dict[tuple[Any, int], tuple[int, int, int]] = {}
        self.sent: dict[tuple[Any, int], int] = {}  # positions that the session knows
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

    # -- what happens on the broker

    @rule(name=NAMES, partitions=st.integers(1, 3))
    def create(self, name: str, partitions: int) -> None:
        if self.parts.topics.get(name) is None:
            self.parts.create(name, partitions)

    @rule(name=NAMES, seldom=st.integers(0, 3))
    def delete(self, name: str, seldom: int) -> None:
        if not seldom and self.parts.topics.get(name) is not None:
            result_of(self.parts.topics.delete_topic(name))

    @rule(name=NAMES, index=INDEXES, count=st.integers(1, 3))
    def append(self, name: str, index: int, count: int) -> None:
        if (name, index) in self.parts.replicas.partitions:
            self.parts.append(name, *[b"v"] * count, partition=index)

    @rule(name=NAMES, index=INDEXES)
    def move_the_start(self, name: str, index: int) -> None:
        partition = self.parts.replicas.partitions.get((name, index))
        if partition is not None:
            partition.log.delete_records_before(partition.high_watermark)

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
        replicas = self.parts.replicas
        return replicas.partitions_by_id.get(key) if self.by_id else replicas.partitions.get(key)

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
        """What the client believes is what is so, for each partition that it wants."""
        for key in self.positions:
            partition = self._partition(key)
            error, high_watermark, start = self.told[key]
            if partition is None:
                assert error
            elif error != ErrorCode.OFFSET_OUT_OF_RANGE:
                assert (error, high_watermark, start) == (0, partition.high_watermark, partition.log.log_start_offset)


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestFetchSessions = Sessions.TestCase
