"""DescribeAcls, API key 29, versions 1-3. Lists the ACLs that a filter selects.

Generated from protocol/apis/describe_acls.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class AclDescription(Message):
    """An ACL."""

    __slots__ = ("principal", "host", "operation", "permission_type")

    #: Whom the ACL is about, as Type:name; User:* for everybody.
    principal: str
    #: The client's address, a network as 10.0.0.0/8 (pylogd's own), or * for any.
    host: str
    #: What may be done or not: 2 all, 3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action, 10
    #: describe configs, 11 alter configs, 12 idempotent write, 13 create tokens, 14 describe tokens, 15 two-phase
    #: commit.
    operation: int
    #: 2 deny, 3 allow.
    permission_type: int

    def __init__(self, principal: str = "", host: str = "", operation: int = 0, permission_type: int = 0) -> None:
        self.principal = principal
        self.host = host
        self.operation = operation
        self.permission_type = permission_type


class DescribeAclsResource(Message):
    """A resource pattern that has ACLs."""

    __slots__ = ("resource_type", "resource_name", "pattern_type", "acls")

    #: The type: 2 a topic, 3 a group, 4 the cluster, 5 a transactional id, 6 a delegation token, 7 a user (version 3
    #: on).
    resource_type: int
    #: The name, or the beginning of names; the cluster is called kafka-cluster.
    resource_name: str
    #: How the name selects resources: 3 literal (the name itself, or * for all), 4 prefixed (all that begin with it).
    pattern_type: int
    #: The ACLs of the pattern.
    acls: list[AclDescription]

    def __init__(
        self, resource_type: int = 0, resource_name: str = "", pattern_type: int = 3, acls: list[AclDescription] = UNSET
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.pattern_type = pattern_type
        self.acls = [] if acls is UNSET else acls


class DescribeAclsRequest(Message):
    """The request of DescribeAcls."""

    __slots__ = (
        "resource_type_filter",
        "resource_name_filter",
        "pattern_type_filter",
        "principal_filter",
        "host_filter",
        "operation",
        "permission_type",
    )

    API_KEY: ClassVar[int] = 29
    API_NAME: ClassVar[str] = "DescribeAcls"

    #: The resource type, by the numbers of CreateAcls; 1 matches any.
    resource_type_filter: int
    #: The name; null matches any.
    resource_name_filter: str | None
    #: 3 literal and 4 prefixed match patterns of that type with this name, 1 of either type; 2 matches every pattern
    #: that covers a resource of this name.
    pattern_type_filter: int
    #: The principal as Type:name; null matches any.
    principal_filter: str | None
    #: The host of the ACL; null matches any.
    host_filter: str | None
    #: The operation, by the numbers of CreateAcls; 1 matches any.
    operation: int
    #: 2 deny, 3 allow; 1 matches any.
    permission_type: int

    def __init__(
        self,
        resource_type_filter: int = 0,
        resource_name_filter: str | None = "",
        pattern_type_filter: int = 3,
        principal_filter: str | None = "",
        host_filter: str | None = "",
        operation: int = 0,
        permission_type: int = 0,
    ) -> None:
        self.resource_type_filter = resource_type_filter
        self.resource_name_filter = resource_name_filter
        self.pattern_type_filter = pattern_type_filter
        self.principal_filter = principal_filter
        self.host_filter = host_filter
        self.operation = operation
        self.permission_type = permission_type


class DescribeAclsResponse(Message):
    """The response of DescribeAcls."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "resources")

    API_KEY: ClassVar[int] = 29
    API_NAME: ClassVar[str] = "DescribeAcls"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None
    #: The ACLs, by resource pattern.
    resources: list[DescribeAclsResource]

    def __init__(
        self,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        resources: list[DescribeAclsResource] = UNSET,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.resources = [] if resources is UNSET else resources
