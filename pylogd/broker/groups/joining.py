"""Decide which requests to join a classic group are refused, whatever its members are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pylogd.base.errors import ErrorCode
from pylogd.base.limits.names import MAX_INSTANCE_ID
from pylogd.broker.groups.values import JoinRequest
from pylogd.config import Settings

#: If a member's metadata has this many bytes, the total of all members is checked.
_LARGE_METADATA: Final = 1 << 14


def why_not_join(request: JoinRequest, settings: Settings, kept: Callable[[], int]) -> ErrorCode:
    """Return the error code for a request to join; NONE if the request must be handled.

    kept: returns how many bytes of metadata the broker keeps for all members.
    """
    low = settings.integer("group.min.session.timeout.ms")
    high = settings.integer("group.max.session.timeout.ms")
    if not low <= round(request.session * 1000) <= high:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    names = [request.protocol_type, *(name for name, _ in request.protocols)]
    if any(len(name) > MAX_INSTANCE_ID for name in (request.instance_id or "", *names)):
        return ErrorCode.INVALID_REQUEST
    return _check_metadata(sum(len(metadata) for _, metadata in request.protocols), settings, kept)


def _check_metadata(size: int, settings: Settings, kept: Callable[[], int]) -> ErrorCode:
    """Return why a member may not have `size` bytes of metadata."""
    if size > settings.integer("message.max.bytes"):
        return ErrorCode.INVALID_REQUEST  # it would not fit into a record of the offsets topic
    if size > _LARGE_METADATA and kept() + size > settings.integer("group.metadata.max.bytes"):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE
