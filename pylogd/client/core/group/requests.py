"""The requests of a group member, each made for the version that was negotiated. Plain functions, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

GROUP_KEY = 0  # the key type of groups in FindCoordinator
_MANY_KEYS_FROM = 4  # of FindCoordinator
_STATIC_FROM = 5  # of JoinGroup
_MEMBERS_FROM = 3  # of LeaveGroup
_CAN_ASK_NOT_TO_CREATE = 4  # of Metadata
_ALL_IS_NULL = 1  # of Metadata


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
    """Return the request for the member's assignment; the leader's has the assignments of all members."""
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
