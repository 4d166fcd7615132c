"""CreateAcls, API key 30, versions 1-3. Creates ACLs; one that exists is no error.

Generated from protocol/apis/create_acls.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class AclCreation(Message):
    """An ACL to create."""

    __slots__ = (
        "resource_type",
        "resource_name",
        "resource_pattern_type",
        "principal",
        "host",
        "operation",
        "permission_type",
    )

    #: The type: 2 a topic, 3 a group, 4 the cluster, 5 a transactional id, 6 a delegation token, 7 a user (version 3
    #: on).
    resource_type: int
    #: The name, or the beginning of names; the cluster is called kafka-cluster.
    resource_name: str
    #: How the name selects resources: 3 literal (the name itself, or * for all), 4 prefixed (all that begin with it).
    resource_pattern_type: int
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

    def __init__(
        self,
        resource_type: int = 0,
        resource_name: str = "",
        resource_pattern_type: int = 3,
        principal: str = "",
        host: str = "",
        operation: int = 0,
        permission_type: int = 0,
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.resource_pattern_type = resource_pattern_type
        self.principal = principal
        self.host = host
        self.operation = operation
        self.permission_type = permission_type


class AclCreationResult(Message):
    """The result for one ACL."""

    __slots__ = ("error_code", "error_message")

    #: The error code; 0 if all went well.
    error_code: int
    #: The error message, for people; null if there is no error.
    error_message: str | None

    def __init__(self, error_code: int = 0, error_message: str | None = "") -> None:
        self.error_code = error_code
        self.error_message = error_message


class CreateAclsRequest(Message):
    """The request of CreateAcls."""

    __slots__ = ("creations",)

    API_KEY: ClassVar[int] = 30
    API_NAME: ClassVar[str] = "CreateAcls"

    #: The ACLs to create.
    creations: list[AclCreation]

    def __init__(self, creations: list[AclCreation] = UNSET) -> None:
        self.creations = [] if creations is UNSET else creations


class CreateAclsResponse(Message):
    """The response of CreateAcls."""

    __slots__ = ("throttle_time_ms", "results")

    API_KEY: ClassVar[int] = 30
    API_NAME: ClassVar[str] = "CreateAcls"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The results, in the order of the request.
    results: list[AclCreationResult]

    def __init__(self, throttle_time_ms: int = 0, results: list[AclCreationResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = [] if results is UNSET else results
