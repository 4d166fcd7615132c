"""The requests of a group member, each made for the version that was negotiated. Plain functions, without I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pylogd.client.core.errors import UnsupportedByBroker
from pylogd.client.core.group.assignors import Assignor
from pylogd.client.core.group.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from pylogd.client.core.group.member_model import MemberSettings
from pylogd.client.core.model import TopicPartition
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

GROUP_KEY = 0  # the key type of groups in FindCoordinator
_MANY_KEYS_FROM = 4  # a version of FindCoordinator
_STATIC_FROM = 5  # a version of JoinGroup
_MEMBERS_FROM = 3  # a version of LeaveGroup
_CAN_ASK_NOT_TO_CREATE = 4  # a version of Metadata
_ALL_IS_NULL = 1  # a version of Metadata
_TOPIC_IDS_FROM = 12  # a version of Metadata
_REGEX_FROM = 1  # a version of ConsumerGroupHeartbeat

#: Values in place of a member epoch in a heartbeat (KIP-848).
JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2

#: A partition by topic id and index.
TopicIdPartition = tuple[bytes, int]
#: Flags of `re` with RE2's letters. Flags that make no difference for topic names have no letter.
_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
_NO_FLAGS = re.UNICODE | re.ASCII


class PatternUnsupported(UnsupportedByBroker):
    """The coordinator supports the newer protocol, but not patterns."""


class MemberReport(NamedTuple):
    """The fields of a heartbeat that describe a member of the newer protocol, besides its epoch.

    regex: a regular expression (RE2) for further topics; None if there never was one, "" if there is none any more.
    """

    topics: tuple[str, ...]
    regex: str | None
    owned: frozenset[TopicIdPartition]


def find_coordinator(group_id: str, version: int) -> FindCoordinatorRequest:
    """Return the request for the coordinator of a group."""
    if version < _MANY_KEYS_FROM:
        return FindCoordinatorRequest(key=group_id, key_type=GROUP_KEY)
    return FindCoordinatorRequest(coordinator_keys=[group_id], key_type=GROUP_KEY)


def join(
    settings: MemberSettings,
    member_id: str,
    subscription: Callable[[Assignor], Subscription],
    reason: str | None,
    version: int,
) -> JoinGroupRequest:
    """Return the request to join a group. Raises UnsupportedByBroker if the broker does not know static members."""
    if settings.instance_id is not None and version < _STATIC_FROM:
        raise UnsupportedByBroker(f"the coordinator knows no static members: group {settings.group_id}")
    return JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=int(settings.session_timeout * 1000),
        rebalance_timeout_ms=int(settings.max_poll_interval * 1000),
        member_id=member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[
            JoinGroupRequestProtocol(assignor.name, encode_subscription(subscription(assignor)))
            for assignor in settings.assignors
        ],
        reason=reason,
    )


def sync(
    settings: MemberSettings,
    generation: int,
    member_id: str,
    protocol: str | None,
    shares: Mapping[str, Iterable[TopicPartition]],
) -> SyncGroupRequest:
    """Return the request for the member's assignment; the leader's request has the assignments of all members."""
    return SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol,
        assignments=[SyncGroupRequestAssignment(member, encode_assignment(share)) for member, share in shares.items()],
    )


def heartbeat(settings: MemberSettings, generation: int, member_id: str) -> HeartbeatRequest:
    """Return the request that keeps the member in its group."""
    return HeartbeatRequest(settings.group_id, generation, member_id, group_instance_id=settings.instance_id)


def leave(settings: MemberSettings, member_id: str, reason: str | None, version: int) -> LeaveGroupRequest:
    """Return the request to leave the group."""
    if version < _MEMBERS_FROM:
        return LeaveGroupRequest(group_id=settings.group_id, member_id=member_id)
    return LeaveGroupRequest(
        group_id=settings.group_id, members=[MemberIdentity(member_id, settings.instance_id, reason)]
    )


def metadata(topics: Sequence[str], create: bool, version: int) -> MetadataRequest:
    """Return the request for the partitions of topics, or of all topics if none is named."""
    asked = [MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(
        topics=asked if topics or version < _ALL_IS_NULL else None,
        allow_auto_topic_creation=create or version < _CAN_ASK_NOT_TO_CREATE,
    )


# The newer protocol (KIP-848)


def consumer_heartbeat(
    settings: MemberSettings,
    member_id: str,
    epoch: int,
    report: MemberReport,
    known: MemberReport | None,
    version: int,
) -> ConsumerGroupHeartbeatRequest:
    """Return a member's heartbeat, with the fields that differ from the `known` state of the coordinator, or with all
    fields.

    Raises PatternUnsupported if the broker does not know regular expressions.
    """
    request = ConsumerGroupHeartbeatRequest(settings.group_id, member_id, epoch, settings.instance_id)
    if known is None:
        request.rebalance_timeout_ms = int(settings.max_poll_interval * 1000)
        request.rack_id = settings.rack
        request.server_assignor = settings.remote_assignor
    elif report == known:
        return request
    if known is None or report.topics != known.topics:
        request.subscribed_topic_names = list(report.topics)
    if known is None or report.regex != known.regex:
        if report.regex and version < _REGEX_FROM:
            raise PatternUnsupported("the coordinator knows no regular expressions: subscribe to topics by name")
        request.subscribed_topic_regex = report.regex
    if known is None or report.owned != known.owned:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(report.owned):
            by_topic.setdefault(topic_id, []).append(index)
        request.topic_partitions = [OwnedTopicPartitions(topic_id, found) for topic_id, found in by_topic.items()]
    return request


def farewell(settings: MemberSettings, member_id: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
    """Return the last heartbeat of a member, with LEAVING or LEAVING_FOR_A_WHILE as its epoch."""
    return ConsumerGroupHeartbeatRequest(settings.group_id, member_id, epoch, settings.instance_id)


def topic_names(topic_ids: Sequence[bytes], version: int) -> MetadataRequest:
    """Return the request for the names of topics. Raises UnsupportedByBroker if the broker can't be asked by id."""
    if version < _TOPIC_IDS_FROM:
        raise UnsupportedByBroker("a broker can't tell the names of topics by their ids: upgrade all brokers")
    return MetadataRequest(
        topics=[MetadataRequestTopic(topic_id, None) for topic_id in topic_ids], allow_auto_topic_creation=False
    )


def re2_text(pattern: re.Pattern[str]) -> str:
    """Return a pattern of `re` as RE2 writes it. Raises ValueError for flags that RE2 does not have.

    The broker refuses constructs that RE2 does not know, such as look-around and back-references.
    """
    flags = re.RegexFlag(pattern.flags) & ~_NO_FLAGS
    unknown = [flag for flag in flags if flag not in _FLAGS]
    if unknown:
        names = ", ".join(str(flag.name) for flag in unknown)
        raise ValueError(f"brokers match patterns by RE2, which does not have the flag {names}")
    letters = "".join(_FLAGS[flag] for flag in flags)
    return f"(?{letters}){pattern.pattern}" if letters else pattern.pattern
