"""Unexpected errors while a group changes: none leaves a group as if the change was still under way."""

from __future__ import annotations

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.answers import HeartbeatAnswer
from pylogd.broker.groups.consumer.heartbeats import Heartbeat
from pylogd.broker.groups.values import JoinAnswer, SyncRequest
from tests.fakes.groups import PendingResult
from tests.fakes.parts import Parts
from tests.unit.broker.groups.test_group_coordinator import NONE, commit, offsets, parts, request

__all__ = ["parts"]

#: What makes a batch of records, and what encodes those of groups: an error there is a bug, as a number too large is.
_ENCODERS = ["pylogd.broker.replica.internal_topic.encode_batch", "pylogd.broker.groups.led_groups.group_value"]


class Broken(Exception):
    pass


def _broken(*_: object, **__: object) -> bytes:
    raise Broken


class TestErrors:
    """An unexpected error leaves no group as if a change were under way."""

    @pytest.mark.parametrize("encoder", _ENCODERS)
    def test_of_a_classic_group(self, parts: Parts, encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
        joined: JoinAnswer = PendingResult(parts.groups.join("g", request())).answer

        def sync() -> PendingResult:
            shares = {joined.member_id: b"share"}
            wanted = SyncRequest(joined.member_id, None, joined.generation, None, None, shares)
            return PendingResult(parts.groups.sync("g", wanted))

        with monkeypatch.context() as patched:
            patched.setattr(encoder, _broken)
            assert sync().answer.error == ErrorCode.UNKNOWN_SERVER_ERROR
        assert sync().answer.error == ErrorCode.REBALANCE_IN_PROGRESS
        joined = PendingResult(parts.groups.join("g", request(joined.member_id))).answer
        assert sync().answer.assignment == b"share"

    def test_of_a_commit(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(_ENCODERS[0], _broken)
            assert commit(parts, 7) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert offsets(parts) == {}
        assert commit(parts, 8) == NONE

    @pytest.mark.parametrize("at", [_ENCODERS[0], "pylogd.broker.groups.consumer.service.ConsumerGroups._appended"])
    def test_of_a_group_of_the_newer_protocol(self, parts: Parts, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before the records are in the log, and behind that."""

        def join(member_id: str) -> HeartbeatAnswer:
            beat = Heartbeat(member_id, 0, rebalance_ms=1000, topics=frozenset("t"), owned=frozenset())
            answer: HeartbeatAnswer = PendingResult(
                parts.groups.consumer_heartbeat("g", beat, lambda _: frozenset())
            ).answer
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(at, _broken)
            assert join("a").error == ErrorCode.UNKNOWN_SERVER_ERROR
        assert join("b").error == NONE
        assert not parts.groups._consumers._held["g"].changing
