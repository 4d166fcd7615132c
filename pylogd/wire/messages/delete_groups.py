"""DeleteGroups, API key 42, versions 0-2. Deletes groups without members, with their offsets.

Generated from protocol/apis/delete_groups.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class DeletableGroupResult(Message):
    """The result for a group."""

    __slots__ = ("group_id", "error_code")

    #: The group id.
    group_id: str
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, group_id: str = "", error_code: int = 0) -> None:
        self.group_id = group_id
        self.error_code = error_code


class DeleteGroupsRequest(Message):
    """The request of DeleteGroups."""

    __slots__ = ("groups_names",)

    API_KEY: ClassVar[int] = 42
    API_NAME: ClassVar[str] = "DeleteGroups"

    #: The ids of the groups.
    groups_names: list[str]

    def __init__(self, groups_names: list[str] = UNSET) -> None:
        self.groups_names = [] if groups_names is UNSET else groups_names


class DeleteGroupsResponse(Message):
    """The response of DeleteGroups."""

    __slots__ = ("throttle_time_ms", "results")

    API_KEY: ClassVar[int] = 42
    API_NAME: ClassVar[str] = "DeleteGroups"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The result for each group.
    results: list[DeletableGroupResult]

    def __init__(self, throttle_time_ms: int = 0, results: list[DeletableGroupResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = [] if results is UNSET else results
