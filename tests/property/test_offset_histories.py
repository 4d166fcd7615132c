"""Random histories of a group's offsets: what the coordinator has that wrote them, and each that reads its log.

The model knows the log only: of the records of a partition, the last one counts that is no part of an open or aborted
transaction, in whatever order the markers came. A record for a deleted topic counts for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.records import OffsetKey, read_key, read_offset_value
from pylogd.wire.records import control_type, decode_batch, iter_batches
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE, Parts
from tests.unit.broker.groups.test_group_coordinator import TOPIC, commit, offsets, restart
from tests.unit.broker.groups.test_transactional_offsets import compact_log, end, in_transaction, make

PRODUCERS = (1, 2)
TOPICS = ("t", "u")
_COMMIT = 1


class Entry(NamedTuple):
    """A record of the log that has an offset, with its topic's id, or deletes one."""

    at: int
    partition: tuple[str, int]
    value: int | None
    topic_id: bytes
    producer: int | None  # of a transactional one


def entries_of(parts: Parts) -> tuple[list[Entry], list[tuple[int, int, bool]]]:
    """Return the records of the group `g` in the log, and the markers: offset, producer id, whether it commits."""
    entries: list[Entry] = []
    markers: list[tuple[int, int, bool]] = []
    log = parts.partitions.by_name[TOPIC, 0].log
    position = log.log_start_offset
    while position < log.log_end_offset and (found := log.read(position, 1 << 20, allow_cold=True)) is not None:
        for header, batch in iter_batches(found.read(), allow_partial=True):
            position = header.next_offset
            for record in decode_batch(batch, header):
                if header.is_control:
                    markers.append((record.offset, header.producer_id, control_type(record) == _COMMIT))
                    continue
                key = read_key(record.key or b"")
                if isinstance(key, OffsetKey) and key.group_id == "g":
                    value = None if record.value is None else read_offset_value(record.value)
                    entries.append(
                        Entry(
                            record.offset, (key.topic, key.partition), None if value is None else value.offset,
                            b"" if value is None else value.topic_id,
                            header.producer_id if header.is_transactional else None,
                        )
                    )  # fmt: skip
    return entries, markers


def expected(parts: Parts) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
    """Return the offsets that count by what is committed in the log, and the partitions that are not stable.

    Offsets are pending as soon as they are in the log; all else takes effect once it is committed.
    """
    committed = parts.partitions.by_name[TOPIC, 0].high_watermark
    entries, markers = entries_of(parts)

    def outcome(entry: Entry) -> bool | None:
        """Return whether an entry counts; None if its transaction is open."""
        if entry.producer is None:
            return True
        ends = (done for at, producer, done in markers if producer == entry.producer and entry.at < at < committed)
        return next(ends, None)

    last: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        if entry.at < committed and outcome(entry):
            last[entry.partition] = entry
    unstable = {
        entry.partition
        for entry in entries
        if entry.producer is not None and outcome(entry) is None
        and not any(
            other.value is None and other.partition == entry.partition and entry.at < other.at < committed
            for other in entries
        )
    }  # fmt: skip
    known = {name: topic.topic_id for name in TOPICS if (topic := parts.topics.get(name)) is not None}
    counted = {
        partition: entry.value
        for partition, entry in last.items()
        if entry.value is not None and known.get(partition[0]) == entry.topic_id
    }
    return counted, unstable


class History:
    """A coordinator, whose records are committed at once or later, in any order of the answers."""

    def __init__(self, parts: Parts, seed: int) -> None:
        self.parts = parts
        self.random = Random(seed)
        self.answers: list[Any] = []

    @property
    def partition(self) -> Any:
        return self.parts.partitions.by_name[TOPIC, 0]

    def replicas(self, *others: int) -> None:
        """Have records wait for other replicas from now on, or commit all."""
        self.parts.set_state(TOPIC, 0, replicas=(NODE, *others), isr=(NODE, *others))
        if not others:
            self.advance(self.partition.log.log_end_offset)

    def advance(self, to: int) -> None:
        """Have the other replicas fetch up to an offset. Requests are answered in any order."""
        partition, waits = self.partition, self.parts.replicas.append_waits
        partition.high_watermark = max(partition.high_watermark, min(to, partition.log.log_end_offset))
        waits.check(partition.key)

    def hand_over(self) -> None:
        """Let another broker coordinate the groups for a while; nothing is lost."""
        self.replicas()
        epoch = self.partition.state.leader_epoch
        self.parts.set_state(TOPIC, 0, leader=2, leader_epoch=epoch + 1)
        self.parts.set_state(TOPIC, 0, leader=NODE, leader_epoch=epoch + 2)
        self.parts.time.advance(0)

    def recreate(self, name: str) -> None:
        """Delete a topic, or create it if there is none."""
        if self.parts.topics.get(name) is None:
            self.parts.create(name, 3)
        else:
            result_of(self.parts.topic_admin.delete_topic(name))

    def step(self, what: str, number: int, producer: int, index: int, name: str) -> None:
        """Make one step. Number is what a commit commits."""
        parts = self.parts
        there = parts.topics.get(name) is not None
        if what == "plain" and there:
            commit(parts, number, name, index=index)
        elif what == "transaction" and there:
            in_transaction(parts, number, producer, topic=name, index=index)
        elif what == "delete":
            parts.groups.delete_offsets("g", [(name, index)])
        elif what == "wait":
            self.replicas(2)
        elif what == "replicate":
            self.advance(self.partition.high_watermark + self.random.randint(0, 3))
        elif what == "restart":
            self.replicas()
            restart(parts)
        elif what == "hand over":
            self.hand_over()
        elif what == "compact":
            self.replicas()
            compact_log(parts)
        elif what == "recreate":
            self.recreate(name)
        elif what == "turn":
            parts.time.advance(0)
        elif what in ("commit", "abort"):
            end(parts, producer, committed=what == "commit")

    def check(self, when: str) -> None:
        counted, unstable = expected(self.parts)
        assert offsets(self.parts) == counted, when
        known = {name for name in TOPICS if self.parts.topics.get(name) is not None}
        seen = self.parts.groups.unstable("g")
        assert seen <= unstable, when
        assert {one for one in unstable if one[0] in known and self.is_current(one)} <= seen, when

    def is_current(self, partition: tuple[str, int]) -> bool:
        """Return whether all of a partition's records are of the topic that has the name now."""
        topic = self.parts.topics.get(partition[0])
        entries, _ = entries_of(self.parts)
        ids = {entry.topic_id for entry in entries if entry.partition == partition and entry.value is not None}
        return topic is not None and ids == {topic.topic_id}


#: How often each step is made.
STEPS = {
    "plain": 10, "transaction": 20, "commit": 12, "abort": 4, "delete": 4, "wait": 4, "replicate": 8, "restart": 1,
    "hand over": 2, "compact": 2, "recreate": 3, "turn": 4,
}  # fmt: skip


def random_steps(seed: int) -> list[tuple[str, int, int, str]]:
    random = Random(seed)
    kinds = random.choices(list(STEPS), list(STEPS.values()), k=50)
    return [(what, random.choice(PRODUCERS), int(random.random() < 0.2), random.choice(TOPICS)) for what in kinds]


def run(tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, int, int, str]], seed: int) -> None:
    making = make(tmp_path_factory.mktemp("parts"))
    parts = next(making)
    commit(parts, 0, "u", group_id="other")  # the log is there
    history = History(parts, seed)
    for number, (what, producer, index, name) in enumerate(steps, 1):
        history.step(what, number, producer, index, name)
        if history.random.random() < 0.5:  # a look has all changes that are committed applied
            history.check(f"seed {seed}, after step {number}, {what}")
    history.replicas()
    history.check("when all was committed")
    before = offsets(parts), parts.groups.unstable("g")
    for way in ("hand over", "restart", "compact", "restart"):
        history.step(way, 0, 0, 0, "t")
        assert (offsets(parts), parts.groups.unstable("g")) == before, way
        history.check(f"seed {seed}, in the end, {way}")
    assert next(making, None) is None


@pytest.mark.parametrize("part", range(4))
def test_writer_reader_and_compaction_agree(tmp_path_factory: pytest.TempPathFactory, part: int) -> None:
    for seed in range(part * 10, part * 10 + 10):
        run(tmp_path_factory, random_steps(seed), seed)


@pytest.mark.parametrize(
    "text",
    [
        # Two transactions stage an offset of one partition, and the one with the earlier record commits last.
        "transaction 1, transaction 2, commit 2, commit 1",
        # The same after a deletion, which removes what lies before it.
        "transaction 1, delete 1, transaction 2, commit 2, commit 1",
        # A deletion takes effect behind an offset that was staged meanwhile, and keeps it.
        "plain 1, wait 1, delete 1, transaction 1, commit 1",
        # A commit and a marker behind it become committed at once.
        "transaction 1, wait 1, plain 1, commit 1",
        # An offset of a topic that was deleted, and of the next one of that name.
        "transaction 1, recreate 1, recreate 1, commit 1",
        "plain 1, recreate 1, recreate 1, restart 1",
        # A producer goes on while the marker of its last transaction is not committed.
        "transaction 1, wait 1, commit 1, transaction 1, replicate 1, abort 1",
    ],
)
def test_histories_that_once_differed(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    steps = [step.rsplit(" ", 1) for step in text.split(", ")]
    run(tmp_path_factory, [(what, int(producer), 0, "t") for what, producer in steps], 0)


def test_the_order_of_the_answers_does_not_matter(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A commit and a marker behind it are committed at the same moment, and the marker is noticed first."""
    making = make(tmp_path_factory.mktemp("parts"))
    parts = next(making)
    commit(parts, 0, "u", group_id="other")
    history = History(parts, 0)
    history.replicas(2)
    waiting, staged = commit(parts, 7), in_transaction(parts, 5)
    history.partition.high_watermark = history.partition.log.log_end_offset + 1  # its marker too
    end(parts)
    assert offsets(parts) == {("t", 0): 5}
    history.replicas()
    assert (result_of(waiting), result_of(staged)) == (ErrorCode.NONE, ErrorCode.NONE)
    history.check("after both")
    assert next(making, None) is None
