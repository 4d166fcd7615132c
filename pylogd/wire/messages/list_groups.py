"""ListGroups, API key 16, versions 0-5. Lists the groups that a broker coordinates.

Generated from protocol/apis/list_groups.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class ListedGroup:
    """A group."""

    #: The group id.
    group_id: str = ""
    #: What kind of group it is; empty where nobody has joined.
    protocol_type: str = ""
    #: The state by its name. Versions 4+.
    group_state: str = ""
    #: Which protocol coordinates it: classic or consumer. Versions 5+.
    group_type: str = ""


@dataclass(slots=True)
class ListGroupsRequest:
    """The request of ListGroups."""

    API_KEY: ClassVar[int] = 16
    API_NAME: ClassVar[str] = "ListGroups"

    #: The states of the groups to list; none for all. Versions 4+.
    states_filter: list[str] = field(default_factory=list)
    #: The types of the groups to list, classic or consumer; none for all. Versions 5+.
    types_filter: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ListGroupsResponse:
    """The response of ListGroups."""

    API_KEY: ClassVar[int] = 16
    API_NAME: ClassVar[str] = "ListGroups"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not. Versions 1+.
    throttle_time_ms: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The groups.
    groups: list[ListedGroup] = field(default_factory=list)
