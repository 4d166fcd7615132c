"""Check the consumer of each face against a model of positions, while iterations are left, interrupted and continued.

Whatever the application does, the next record of a partition is the one after the last that it got, unless it moved the
position itself. What is committed is what it got, without the record that it has in hand when the consumer is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pylogd import client
from pylogd.client import Record, TopicPartition, aio, deferred
from pylogd.client.core.group.member_model import Assign, Revoke
from pylogd.wire.messages import fetch
from pylogd.wire.records import CONTROL, NewRecord, encode_batch
from tests.faces import FACES
from tests.fakes.broker import FakeBroker
from tests.fakes.scripted_group import ScriptedGroup

PARTITIONS = [TopicPartition("t", index) for index in range(3)]
SECONDS = 60.0
GIVEN_UP = 0.005  # seconds after which a wait is cancelled
SIZES = ([3, 7, 0, 1, 12, 2], [1, 1, 0, 0, 25], [30, 5])  # of the batches of each partition; 0 is a control batch
ONE = st.sampled_from(PARTITIONS)
SOME = st.sets(ONE, min_size=1)
OFFSETS = st.integers(0, 25)


class PatientBroker(FakeBroker):
    """A broker that does not answer at once if there is nothing to read."""

    def __init__(self) -> None:
        super().__init__(partitions=len(PARTITIONS))
        self._ended = threading.Event()

    def _fetch(self, request: fetch.FetchRequest) -> fetch.FetchResponse:
        response = super()._fetch(request)
        if not any(partition.records for topic in response.responses for partition in topic.partitions):
            self._ended.wait(request.max_wait_ms / 1000)
        return response

    def __exit__(self, *args: object) -> None:
        self._ended.set()
        super().__exit__(*args)


def fill(server: FakeBroker) -> dict[TopicPartition, list[int]]:
    """Write batches; return the offsets that consumers get."""
    offsets: dict[TopicPartition, list[int]] = {}
    for partition, sizes in zip(PARTITIONS, SIZES, strict=True):
        found = offsets[partition] = []
        for size in sizes:
            base = server.ends[partition.partition]
            found += range(base, base + size)
            records = [NewRecord(None, b"%d" % (base + n), 0) for n in range(size)] or [
                NewRecord(bytes(4), bytes(6), 0)
            ]
            control = [NewRecord(bytes(4), bytes(6), 0)]
            server.append(partition.partition, encode_batch(records or control, attributes=0 if size else CONTROL))
    return offsets


class Applications(RuleBasedStateMachine):
    """An application, and where it should be."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.server = PatientBroker()
        self.server.__enter__()
        self.offsets = fill(self.server)
        self.face = FACES[self.kind](self.server.address)
        self.group: ScriptedGroup | None = None
        self.iterations: list[Any] = []
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.current: tuple[TopicPartition, int] | None = None  # the record that an iteration has returned last
        self.count = 0
        self.closing = False

    @initialize(
        mode=st.sampled_from(["", "after", "before", "off", "transaction"]), most=st.sampled_from([1, 4, 500]),
        size=st.sampled_from([100, 1 << 20]),
    )  # fmt: skip
    def begin(self, mode: str, most: int, size: int) -> None:
        options: dict[str, Any] = {"max_poll_records": most, "partition_max_bytes": size, "fetch_max_wait_ms": 5}
        self.mode = mode
        if mode:
            options |= {"group_id": "g", "auto_commit": mode, "auto_commit_interval": 3600.0}
            self.group = group = ScriptedGroup()
            with pytest.MonkeyPatch.context() as patch:
                for kind in (client.Consumer, deferred.Consumer, aio.Consumer):
                    patch.setattr(kind, "_make_group", lambda *_: group)
                self.consumer = self.face.consumer(**options)
            self.consumer.subscribe("t", on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.lost)
            group.events.append(Assign(frozenset(PARTITIONS), frozenset(PARTITIONS)))
            self.consumer.poll(0.0, 0)
        else:
            self.consumer = self.face.consumer(**options)
            self.consumer.assign(dict.fromkeys(PARTITIONS, 0))
            self.positions = dict.fromkeys(PARTITIONS, 0)

    def teardown(self) -> None:
        try:
            if hasattr(self, "consumer"):
                self.closing = True
                self.consumer.close()  # calls `revoked`
        finally:
            for iteration in self.iterations:
                self.face.leave(iteration)
            self.face.close()
            self.server.__exit__()

    def check_processed(self, partitions: Iterable[TopicPartition]) -> None:
        """What is committed of partitions that are given up."""
        for partition in partitions:
            position = self.positions[partition]
            if self.mode == "after" and self.current is not None and self.current[0] == partition:
                assert self.committed(partition) == self.current[1], "the record in hand is committed"
            elif self.mode in ("after", "before"):
                self.check_position(partition, position, self.committed(partition))

    def committed(self, partition: TopicPartition) -> int:
        assert self.group is not None
        found = self.group.committed.get(partition)
        return 0 if found is None else found.offset

    # The model

    def after(self, partition: TopicPartition, position: int) -> list[int]:
        """The offsets that a partition has from a position on."""
        return [offset for offset in self.offsets[partition] if offset >= position]

    def check_position(self, partition: TopicPartition, expected: int, found: int) -> None:
        """A position may have moved past control records."""
        assert found >= expected
        assert self.after(partition, found) == self.after(partition, expected), f"{partition}: {found}, not {expected}"

    @property
    def readable(self) -> bool:
        """Whether a record must come: also after the events that the group has, which may be noticed or not."""
        there = set(self.positions)
        if self.group is not None:
            for event in self.group.events:
                if isinstance(event, Revoke):
                    there -= event.partitions
        return any(self.after(p, self.positions[p]) for p in there - self.paused)

    def got(self, records: Iterable[tuple[TopicPartition, int]]) -> None:
        for partition, offset in records:
            assert partition in self.positions and partition not in self.paused
            assert offset == self.after(partition, self.positions[partition])[0]
            self.positions[partition] = offset + 1
            self.count += 1
            if self.mode == "before":
                assert self.group is not None and self.group.committed[partition].offset > offset

    def moved(self, partition: TopicPartition, offset: int) -> None:
        self.positions[partition] = offset
        if self.current is not None and self.current[0] == partition:
            self.current = None

    # What the group does

    def assigned(self, partitions: list[TopicPartition]) -> None:
        assert self.group is not None
        for partition in partitions:
            self.positions[partition] = self.committed(partition)

    def revoked(self, partitions: list[TopicPartition]) -> None:
        if not self.closing:
            self.current = None  # the application has called `poll`, or asks for the next record
        self.check_processed(partitions)
        self.lost(partitions)

    def lost(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.moved(partition, 0)
            del self.positions[partition]
            self.paused.discard(partition)

    @rule(partitions=SOME, lost=st.booleans(), back=SOME)
    def rebalance(self, partitions: set[TopicPartition], lost: bool, back: set[TopicPartition]) -> None:
        if self.group is None or self.group.events:
            return
        gone = frozenset(partitions & self.positions.keys())
        if gone:
            self.group.events.append(Revoke(gone, lost=lost))
        added = frozenset(back - (self.positions.keys() - gone))
        if added:
            self.group.events.append(Assign(frozenset(self.positions.keys() - gone | added), added))

    # What the application does

    @rule(which=st.integers(0, 1), steps=st.integers(1, 9))
    def iterate(self, which: int, steps: int) -> None:
        """Continue one of two iterations, or begin it."""
        if which >= len(self.iterations):
            self.iterations.append(self.face.iterate(self.consumer))
            which = len(self.iterations) - 1
        for _ in range(steps):
            if self.readable:
                self.step(self.face.step(self.iterations[which]))

    def step(self, record: Record) -> None:
        partition = TopicPartition(record.topic, record.partition)
        self.got([(partition, record.offset)])
        self.current = partition, record.offset

    @rule()
    def leave(self) -> None:
        """Break out of an iteration, or raise in its body, which is the same for the consumer."""
        if self.iterations:
            self.face.leave(self.iterations.pop())

    @rule()
    def give_up(self) -> None:
        """Wait for a record, and cancel that."""
        records = self.face.iterate(self.consumer)
        record = self.face.give_up_step(self.consumer, records, GIVEN_UP)
        self.current = None
        if record is not None:
            self.step(record)
        self.face.leave(records)

    @rule(most=st.sampled_from([None, 1, 3]))
    def poll(self, most: int | None) -> None:
        must = self.readable
        records = self.consumer.poll(SECONDS if must else 0.0, most)
        assert records or not must
        self.current = None
        self.got((TopicPartition(record.topic, record.partition), record.offset) for record in records)

    @rule()
    def poll_columns(self) -> None:
        if self.readable:
            for partition, columns in self.consumer.poll_columns(SECONDS, max_bytes=1):
                self.got((partition, offset) for offset in columns.column("offset").to_pylist())
            self.current = None

    @rule(partition=ONE, offset=OFFSETS)
    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition in self.positions:
            self.consumer.seek(partition, offset)
            self.moved(partition, offset)

    @rule(partition=ONE, paused=st.booleans())
    def pause(self, partition: TopicPartition, paused: bool) -> None:
        if partition in self.positions:
            (self.consumer.pause if paused else self.consumer.resume)(partition)
            (self.paused.add if paused else self.paused.discard)(partition)
            assert set(self.consumer.paused) == self.paused

    @precondition(lambda self: self.mode == "")
    @rule(partitions=SOME, offset=st.none() | OFFSETS)
    def assign(self, partitions: set[TopicPartition], offset: int | None) -> None:
        chosen = sorted(partitions)
        self.consumer.assign(chosen if offset is None else dict.fromkeys(chosen, offset))
        self.paused &= partitions
        before = self.positions
        self.positions = {p: before.get(p, 0) for p in chosen}
        for partition in chosen:
            if offset is not None and offset != before.get(partition):
                self.moved(partition, offset)

    @precondition(lambda self: self.mode in ("after", "off"))
    @rule()
    def commit(self) -> None:
        self.consumer.commit()
        for partition, position in self.positions.items():
            self.check_position(partition, position, self.committed(partition))

    @precondition(lambda self: self.mode == "transaction")
    @rule(abort=st.booleans())
    def transaction(self, abort: bool) -> None:
        assert self.group is not None
        if abort:
            self.consumer.seek_to_committed()
            for partition in self.positions:
                self.moved(partition, self.committed(partition))
            return
        offsets, _ = self.consumer.offsets_to_send()
        for partition, position in self.positions.items():
            if partition in offsets:  # one that has no position yet has nothing to commit
                self.check_position(partition, position, offsets[partition].offset)
        self.group.committed.update(offsets)

    @invariant()
    def where_it_is(self) -> None:
        if hasattr(self, "consumer"):
            assert set(self.consumer.assignment) == set(self.positions)
            for partition, position in self.positions.items():
                self.check_position(partition, position, self.consumer.position(partition))
            assert self.consumer.metrics().records_consumed_total == self.count


@pytest.mark.parametrize("face", list(FACES))
def test_a_consumer_continues_where_the_application_is(face: str) -> None:
    pytest.importorskip("pyarrow")
    run_state_machine_as_test(
        type("Applications", (Applications,), {"kind": face}),
        settings=settings(max_examples=60, stateful_step_count=30, deadline=None),
    )
