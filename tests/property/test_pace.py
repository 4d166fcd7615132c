"""Whenever disks become slow and quick again, clients get the same answers, and the disk the same files."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.workers import HeldWorkers, set_pace
from tests.property.test_request_batches import CLIENTS, Side

_SHAPES = st.builds(
    lambda topic, acks: (topic, 0, 9, acks, None, CLIENTS[0]),
    st.sampled_from(["usual", "aging", "aging", "rolls", "index", "stamp", "small", "twain"]),
    st.sampled_from([1, 1, -1]),
)
_NUMBERED = st.builds(
    lambda producer, first, count: [(producer, first + step) for step in range(count)],
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(1, 4),
)
_CONTENTS = st.lists(
    st.sampled_from([20, 20, 20, 200, 5000, "several", "two batches", "bad CRC", "zstd", "two of zstd"]),
    min_size=1,
    max_size=4,
)
#: What happens: requests on one of two connections, a switch, or threads that have got somewhere.
_STEPS = st.lists(
    st.one_of(
        *[st.tuples(st.integers(0, 1), _SHAPES, st.one_of(_CONTENTS, _NUMBERED))] * 4,
        st.sampled_from(["slow", "quick", "write one", "write all"]),
        st.sampled_from(["slow", "quick"]),
    ),
    max_size=25,
)


class Paced(Side):
    """A broker whose disk becomes slow and quick when the test says so.

    staged: how many writes were made in threads. switches: how often the disk has changed.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory, fast=True, log_write_queues="slow", log_write_queue_max_requests=1000,
            log_write_queue_max_bytes=1 << 30,
        )  # fmt: skip
        self.staged = self.switches = 0
        for writer in self.writers():
            writer.hold = True
        self.parts.threads.hold = True

    def writers(self) -> list[HeldWorkers]:
        assert self.parts.disks is not None
        return [queue.writer for disk in self.parts.disks for queue in disk.queues]  # type: ignore[misc]

    @property
    def busy(self) -> bool:
        """Whether anything waits for a thread."""
        return bool(self.parts.threads.held) or any(map(len, self.writers()))

    def step(self, name: str) -> None:
        assert self.parts.disks is not None
        if name in ("slow", "quick"):
            self.switches += self.parts.disks.any_queued is (name == "quick")
            set_pace(self.parts.disks, slow=name == "slow")
            return
        self.parts.threads.release()  # inspections
        for writer in self.writers():
            self.staged += len(writer)
            if name == "write all":
                writer.release()
            elif len(writer):
                writer._make(writer._queue.get_nowait())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Paced]]:
    folder = tmp_path_factory.mktemp("sides")
    made: list[Any] = []
    for name in ("off", "paced"):
        chance = random.Random(1)  # so that both give the same ids to their topics
        with patch.object(uuid, "uuid4", lambda chance=chance: uuid.UUID(int=chance.getrandbits(128), version=4)):
            made.append(Side(folder / name, fast=True) if name == "off" else Paced(folder / name))
    off, paced = made
    yield off, paced
    paced.parts.threads.hold = False
    assert paced.staged > 20 and paced.switches > 20, "the histories don't test anything"
    for side in made:
        side.parts.time.advance(0)
        side.parts.close()


@settings(max_examples=200, deadline=None)
@given(steps=_STEPS)
def test_switches_change_neither_answers_nor_files(sides: tuple[Side, Paced], steps: list[Any]) -> None:
    off, paced = sides
    connections = [[side.connect() for _ in range(2)] for side in sides]
    for step in steps:
        if isinstance(step, str):
            paced.step(step)
            continue
        number, shape, contents = step
        for side, mine in zip(sides, connections, strict=True):
            mine[number][1].deliver(b"".join(side.frames([(shape, contents)])))
    while paced.busy:  # what was inspected may have to be written, and then the next one inspected
        paced.step("write all")
    answers = []
    for side, mine in zip(sides, connections, strict=True):
        got = [transport.pump() for _, transport in mine]
        for _ in range(10):  # turns that connections with many requests have asked for
            side.parts.time.advance(0)
            got = [before + transport.pump() for before, (_, transport) in zip(got, mine, strict=True)]
        answers.append(got)
        for protocol, transport in mine:
            transport.loseConnection()
            transport.pump()
            protocol.connectionLost()
            transport.peer.close()
    assert answers[0] == answers[1]
    assert off.state() == paced.state()
