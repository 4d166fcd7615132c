"""A pipeline offers what repeats its last request batch without looking at the requests, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.wire.session import BatchReply, RepeatedBatch
from tests.unit.broker.net.test_pipeline import Rig


@pytest.fixture
def rig() -> Any:
    made = Rig()
    yield made
    made.close()


@pytest.fixture
def repeating(rig: Rig) -> Rig:
    """A pipeline that has answered a batch which may repeat."""
    rig.answer_batch = lambda count: BatchReply(b"r" * count, count - 1, 0, True)
    rig.pipeline.receive(b"a=")
    assert rig.transport.pump() == b"ar"
    return rig


def test_what_repeats_a_batch_is_answered_without_a_look_at_its_requests(repeating: Rig) -> None:
    for data in (b"=", b"==", b"="):
        repeating.pipeline.receive(data)
    assert repeating.transport.pump() == b"RRRR"
    assert (repeating.offered, repeating.batches, repeating.started) == ([b"=", b"==", b"="], [1], "a")


def test_a_batch_is_not_repeated_unless_its_handler_says_so(rig: Rig) -> None:
    for data in (b"a=", b"=", b"="):
        rig.pipeline.receive(data)
    assert rig.transport.pump() == b"arrr"
    assert not rig.offered


def test_the_rest_behind_a_repeated_batch_goes_the_usual_way(repeating: Rig) -> None:
    repeating.pipeline.receive(b"==bX=")
    assert repeating.transport.pump() == b"RRb"
    repeating.waiting["X"].callback(b"x")
    assert repeating.transport.pump() == b"x="
    assert repeating.offered == [b"==bX="]


def test_the_rest_of_a_repeated_batch_may_be_another(repeating: Rig) -> None:
    repeating.answer_again = lambda count: (b"R", 1)
    repeating.pipeline.receive(b"===")
    assert repeating.transport.pump() == b"Rrr"
    repeating.pipeline.receive(b"=")
    assert repeating.transport.pump() == b"R"
    assert (repeating.offered, repeating.batches) == ([b"===", b"="], [1, 2])


def test_a_repeated_batch_that_is_left_goes_the_usual_way(repeating: Rig) -> None:
    for data in (b"b=", b"="):
        repeating.pipeline.receive(data)
    assert repeating.transport.pump() == b"brR"
    assert repeating.offered == [b"b=", b"="]


def test_a_handler_that_fails_on_a_repeated_batch_closes_and_logs(repeating: Rig, logged: list[dict[str, Any]]) -> None:
    repeating.answer_again = lambda count: (b"", count // 0)
    repeating.pipeline.receive(b"==")
    assert repeating.transport.pump() == b""
    assert repeating.transport.disconnecting or repeating.transport.disconnected
    assert any("log_failure" in event for event in logged)


def test_a_repeated_batch_waits_for_nothing_that_is_left_to_send(repeating: Rig) -> None:
    repeating.answer_again = lambda count: (b"R" * (8 << 20), count)
    repeating.pipeline.receive(b"=")  # more than the socket takes, and than may be unsent
    for _ in range(3):
        repeating.pipeline.receive(b"=")
    assert repeating.offered == [b"="]
    assert not repeating.pipeline._sender.idle
    assert repeating.transport.pump() == b"R" * (8 << 20) + b"rrr"


def test_a_pipeline_that_is_muted_by_a_repeated_batch_keeps_the_rest(repeating: Rig) -> None:
    def answer(count: int) -> RepeatedBatch:
        repeating.pipeline.mute(1, repeating.reactor)
        return b"R", 1

    repeating.answer_again = answer
    repeating.pipeline.receive(b"==")
    assert repeating.transport.pump() == b"R"  # the rest waits, as for a client over its quota
    repeating.reactor.advance(1)
    assert repeating.transport.pump() == b"r"
