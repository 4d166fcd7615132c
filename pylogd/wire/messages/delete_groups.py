"""DeleteGroups, API key 42, versions 0-2. Deletes groups without members, with their offsets.

Generated from protocol/apis/delete_groups.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class DeletableGroupResult:
    """What became of a group."""

    #: The group id.
    group_id: str = ""
    #: The error code; 0 if all went well.
    error_code: int = 0


@dataclass(slots=True)
class DeleteGroupsRequest:
    """The request of DeleteGroups."""

    API_KEY: ClassVar[int] = 42
    API_NAME: ClassVar[str] = "DeleteGroups"

    #: The ids of the groups.
    groups_names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DeleteGroupsResponse:
    """The response of DeleteGroups."""

    API_KEY: ClassVar[int] = 42
    API_NAME: ClassVar[str] = "DeleteGroups"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: What became of each group.
    results: list[DeletableGroupResult] = field(default_factory=list)
