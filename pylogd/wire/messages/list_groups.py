"""ListGroups, API key 16, versions 0-5. Lists the groups that a broker coordinates.

Generated from protocol/apis/list_groups.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class ListedGroup(Message):
    """A group."""

    __slots__ = ("group_id", "protocol_type", "group_state", "group_type")

    #: The group id.
    group_id: str
    #: What kind of group it is; empty where nobody has joined.
    protocol_type: str
    #: The state by its name. Versions 4+.
    group_state: str
    #: Which protocol coordinates it: classic or consumer. Versions 5+.
    group_type: str

    def __init__(
        self, group_id: str = "", protocol_type: str = "", group_state: str = "", group_type: str = ""
    ) -> None:
        self.group_id = group_id
        self.protocol_type = protocol_type
        self.group_state = group_state
        self.group_type = group_type


class ListGroupsRequest(Message):
    """The request of ListGroups."""

    __slots__ = ("states_filter", "types_filter")

    API_KEY: ClassVar[int] = 16
    API_NAME: ClassVar[str] = "ListGroups"

    #: The states of the groups to list; none for all. Versions 4+.
    states_filter: list[str]
    #: The types of the groups to list, classic or consumer; none for all. Versions 5+.
    types_filter: list[str]

    def __init__(self, states_filter: list[str] = UNSET, types_filter: list[str] = UNSET) -> None:
        self.states_filter = [] if states_filter is UNSET else states_filter
        self.types_filter = [] if types_filter is UNSET else types_filter


class ListGroupsResponse(Message):
    """The response of ListGroups."""

    __slots__ = ("throttle_time_ms", "error_code", "groups")

    API_KEY: ClassVar[int] = 16
    API_NAME: ClassVar[str] = "ListGroups"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The groups.
    groups: list[ListedGroup]

    def __init__(self, throttle_time_ms: int = 0, error_code: int = 0, groups: list[ListedGroup] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.groups = [] if groups is UNSET else groups
