"""What a heartbeat costs a member that has nothing to tell: by the newer protocol no more than by the classic one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from pylogd.client.core.call import Call
from pylogd.client.core.group.assignors import find_assignors
from pylogd.client.core.group.member_model import GroupProtocol, MemberSettings
from pylogd.client.core.group.participation import Participation
from pylogd.wire.messages import ApiKey, metadata
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.schema import request_codec, response_codec
from tests.fakes.consumer_coordinator import FakeConsumerGroups, fake_topic
from tests.fakes.group_coordinator import FakeGroups
from tests.hotpath import cost
from tests.unit.client.test_consumer_member import NAMES, T

PARTITIONS = 10
VERSIONS = {ApiKey.HEARTBEAT: 4, ApiKey.CONSUMER_GROUP_HEARTBEAT: 1, ApiKey.METADATA: 12}


class Settled:
    """A member that has its partitions, and the coordinator's answer to its next heartbeats."""

    def __init__(self, protocol: GroupProtocol) -> None:
        self.now = 100.0
        self.classic = FakeGroups()
        self.newer = FakeConsumerGroups({"t": fake_topic("t", PARTITIONS, T)}, interval=1.0)
        settings = MemberSettings(
            "g", find_assignors(["range"]), heartbeat_interval=1.0, max_poll_interval=1e9, protocol=protocol
        )
        self.part = Participation(
            settings, stable=False, request_timeout=30.0, on_event=lambda: None, unheard=lambda _, __: None
        )
        self.part.subscribe(["t"], self.now)
        for _ in range(20):
            self.now += 0.5
            self.turn()
            if (event := self.part.next_event()) is not None:
                self.part.done(event, self.now)
        assert len(self.part.member.owned) == PARTITIONS
        self.now += 2.0
        [call] = self.part.due(self.now)
        self.request, self.version = type(call.build(4)), VERSIONS[call.api.API_KEY]
        answers: list[bytes] = []
        self.answer(call, lambda response: answers.append(self.encode(response)))
        self.frame = memoryview(answers[0])
        call.answered(self.decode(), self.now)

    def encode(self, response: Any) -> bytes:
        parts = response_codec(self.request.API_KEY, self.version).encode(response)
        return b"".join(cast("list[bytes]", parts))

    def decode(self) -> Any:
        return response_codec(self.request.API_KEY, self.version).decode(self.frame)

    def turn(self) -> None:
        for call in self.part.due(self.now):
            self.answer(call, partial(self.deliver, call))

    def deliver(self, call: Call, response: Any) -> None:
        call.answered(response, self.now)

    def answer(self, call: Call, then: Callable[[Any], None]) -> None:
        request = call.build(VERSIONS.get(call.api.API_KEY, 4))
        if call.api.API_KEY == ApiKey.FIND_COORDINATOR:
            then(self.classic.find(request, 1, "here", 1))
        elif call.api.API_KEY == ApiKey.METADATA:
            partitions = [metadata.MetadataResponsePartition(0, index, 1) for index in range(PARTITIONS)]
            then(metadata.MetadataResponse(topics=[metadata.MetadataResponseTopic(0, NAMES[T], T, False, partitions)]))
        elif call.api.API_KEY == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            then(self.newer.handle(request, self.now))
        else:
            self.classic.handle(request, then, self.now)

    def beat(self) -> None:
        """One heartbeat: the turn in which it is due, its bytes, its answer, and the turn behind it."""
        self.now += 2.0
        [call] = self.part.due(self.now)
        request_codec(self.request.API_KEY, self.version).encode(call.build(self.version))
        call.answered(self.decode(), self.now)
        assert not self.part.due(self.now)
        self.part.next_time(self.now)


def test_a_heartbeat_costs_no_more_than_a_classic_one() -> None:
    classic, newer = Settled("classic"), Settled("consumer")
    assert classic.request is HeartbeatRequest
    for member in (classic, newer):
        member.beat()  # builds codecs
    one, other = cost(classic.beat), cost(newer.beat)
    assert other.instructions <= one.instructions * 1.1
