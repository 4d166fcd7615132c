"""Elect one leader among the registries of a group, through the group protocol of the brokers.

Strategy: join the group, take the leader from the assignment, send heartbeats, and join again when
the coordinator says so. A leader that can't reach the coordinator within the session timeout no longer leads: the
others choose a new one after the same time.

Rules: `on_change` is called before callers that wait for a leader are told of it; it must read all changes of the
previous leader. `store` protects a leader's writes in addition. Not thread-safe.
Source: KIP-394 (member ids); Confluent Schema Registry (group protocol type `sr`,
protocol `v0`).

Formats and rule are those of Confluent's registries. Each member has its address in its group metadata. The member that
the coordinator asks to assign names the leader, and every member gets this as its assignment. A leader stays the leader
as long as it is in the group; otherwise the eligible member with the smallest URL becomes the leader.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.task import deferLater
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.client.core.admin.calls import Question, refresh
from pylogd.client.core.call import Endpoint
from pylogd.client.deferred import Cluster
from pylogd.services.registry.errors import UnknownLeader
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

log = Logger()

PROTOCOL_TYPE: Final = "sr"
PROTOCOL: Final = "v0"
_VERSION: Final = 1
_NO_ERROR, _SAME_URLS = 0, 1


class BadAssignment(PylogdError):
    """The name of the leader can't be read, or members of the group have the same URL."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The address at which other registries reach a registry.

    eligible: whether it may lead.
    leads: whether it leads already.
    """

    host: str
    port: int
    scheme: str = "http"
    eligible: bool = True
    leads: bool = False

    @property
    def url(self) -> str:
        """The registry's URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def as_json(self) -> dict[str, object]:
        """Return the identity as JSON."""
        return {
            "version": _VERSION, "host": self.host, "port": self.port, "master_eligibility": self.eligible,
            "scheme": self.scheme, "leader": self.leads,
        }  # fmt: skip

    def encoded(self) -> bytes:
        """Return the metadata of a member."""
        return json.dumps(self.as_json()).encode()

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Identity:
        """Return the identity in a JSON object. Raises KeyError, TypeError or ValueError."""
        return cls(
            str(document["host"]), int(str(document["port"])), str(document.get("scheme") or "http"),
            bool(document.get("master_eligibility", True)), bool(document.get("leader", False)),
        )  # fmt: skip


def assignment(members: Mapping[str, bytes]) -> bytes:
    """Return the assignment of all members.

    members: the members' metadata by member id.
    """
    known = {name: _identity(metadata) for name, metadata in members.items()}
    able = sorted((each.url, name) for name, each in known.items() if each is not None and each.eligible)
    leading = [name for _, name in able if (each := known[name]) is not None and each.leads]
    chosen = leading[0] if len(leading) == 1 else able[0][1] if able else None
    urls = [each.url for each in known.values() if each is not None]
    document: dict[str, object] = {
        "version": _VERSION,
        "error": _NO_ERROR if len(set(urls)) == len(urls) else _SAME_URLS,
    }
    leader = None if chosen is None else known[chosen]
    if leader is not None:
        document |= {"master": chosen, "master_identity": leader.as_json()}
    return json.dumps(document).encode()


def leader_of(encoded: bytes) -> tuple[str, Identity] | None:
    """Return the member id and the identity of the leader in an assignment; None if no member is eligible.

    Raises BadAssignment.
    """
    try:
        document = json.loads(encoded)
        if document.get("error", _NO_ERROR) == _SAME_URLS:
            raise BadAssignment(
                "two registries of the group have the same URL: give each its own with --advertise HOST:PORT"
            )
        name, identity = document.get("master"), document.get("master_identity")
        return None if name is None or identity is None else (str(name), replace(Identity.of(identity), leads=True))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadAssignment(f"the registry group's leader can't be read from {encoded!r:.200}") from error


def _identity(metadata: bytes) -> Identity | None:
    try:
        return Identity.of(json.loads(metadata))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


_RETRY_SECONDS: Final = 1.0
_GROUP_KEY: Final = 0
_MANY_KEYS_FROM: Final = 4  # a version of FindCoordinator
_MEMBERS_FROM: Final = 3  # a version of LeaveGroup
#: Errors after which the member joins again at once, and its leader stays.
_REBALANCE: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
#: Errors after which the member joins as a new member.
_FORGOTTEN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.FENCED_INSTANCE_ID})


class LeaderElection:
    """A member of the group.

    leader: the leader's address; None while there is no leader.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        identity: Identity,
        on_change: Callable[[], Awaitable[None]],
        session_timeout: float = 10.0,
    ) -> None:
        """`cluster` is used only by this election. `on_change` is called when this registry becomes the leader."""
        self.leader: Identity | None = None
        self._cluster = cluster
        self._reactor = cluster.reactor
        self._group = group
        self._identity = identity
        self._on_change = on_change
        self._session = session_timeout
        self._member = ""
        self._generation = -1
        self._coordinator: Endpoint | None = None
        self._leads = False
        self._heard = 0.0  # when the coordinator last answered a heartbeat
        self._waits: list[Deferred[None]] = []
        self._running: Deferred[None] | None = None
        self._stopped = False
        self._troubled = False  # whether a failure was logged since the last success

    @property
    def is_leader(self) -> bool:
        """Whether this registry leads."""
        return self._leads and self._reactor.seconds() - self._heard < self._session

    def start(self) -> None:
        """Begin to take part."""
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._failed)

    async def stop(self) -> None:
        """Leave the group, and close the connections."""
        self._stopped = True
        self._settle(None, False)
        if self._running is not None:
            self._running.cancel()
        if self._member:
            with suppress(PylogdError, TimeoutError):
                await Deferred.fromCoroutine(self._leave()).addTimeout(_RETRY_SECONDS, self._reactor)
        self._cluster.close()

    async def wait(self, seconds: float) -> Identity:
        """Return the leader once it is known. Raises UnknownLeader after `seconds` seconds."""
        if self.leader is None or (self._leads and not self.is_leader):
            done: Deferred[None] = Deferred()
            self._waits.append(done)
            try:
                await done.addTimeout(seconds, self._reactor)
            except TimeoutError:
                raise UnknownLeader("Leader not known.") from None
            finally:
                if done in self._waits:
                    self._waits.remove(done)
        if self.leader is None:
            raise UnknownLeader("Leader not known.")
        return self.leader

    # Participation ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopped:
            try:
                await self._join()
                await self._beat()
            except KafkaError as error:
                if error.code in _FORGOTTEN:
                    self._member = self._member if error.code == ErrorCode.MEMBER_ID_REQUIRED else ""
                    self._settle(None, False)
                elif error.code not in _REBALANCE:
                    await self._trouble(error)
            except PylogdError as error:
                await self._trouble(error)

    async def _trouble(self, error: PylogdError) -> None:
        """Log a failure, and wait before the next try."""
        self._coordinator = None
        if self._leads and not self.is_leader:
            self._settle(None, False)
        level, self._troubled = (LogLevel.debug if self._troubled else LogLevel.warn), True
        log.emit(
            level, "Can't take part in the election of a leader in group {group}, trying again: {error}",
            group=self._group, error=str(error),
        )  # fmt: skip
        await deferLater(self._reactor, _RETRY_SECONDS, lambda: None)

    async def _join(self) -> None:
        metadata = replace(self._identity, leads=self._leads).encoded()
        request = JoinGroupRequest(
            group_id=self._group, session_timeout_ms=round(self._session * 1000),
            rebalance_timeout_ms=round(self._session * 1000), member_id=self._member, protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(PROTOCOL, metadata)],
        )  # fmt: skip
        joined = await self._ask(request)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member = joined.member_id
            request.member_id = joined.member_id
            joined = await self._ask(request)
        _check(joined.error_code)
        self._member, self._generation = joined.member_id, joined.generation_id
        shares = []
        if joined.leader == joined.member_id:
            chosen = assignment({each.member_id: bytes(each.metadata) for each in joined.members})
            shares = [SyncGroupRequestAssignment(each.member_id, chosen) for each in joined.members]
        synced = await self._ask(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._member,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=PROTOCOL,
                assignments=shares,
            )
        )
        _check(synced.error_code)
        self._heard = self._reactor.seconds()
        self._troubled = False
        await self._take(bytes(synced.assignment))

    async def _take(self, encoded: bytes) -> None:
        """Accept an assignment. Raises BadAssignment."""
        found = leader_of(encoded)
        if found is None:
            log.warn("No registry of group {group} may lead: changes are refused", group=self._group)
            self._settle(None, False)
            return
        name, identity = found
        leads = name == self._member
        if leads and not self._leads:
            await self._on_change()
        if self.leader is None or identity.url != self.leader.url:
            log.info("The leader of the registries in group {group} is {url}", group=self._group, url=identity.url)
        self._settle(identity, leads)

    async def _beat(self) -> None:
        """Send heartbeats until the member has to join again. Raises KafkaError."""
        while True:
            await deferLater(self._reactor, self._session / 3, lambda: None)
            asked = self._reactor.seconds()
            answer = await self._ask(
                HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._member)
            )
            if answer.error_code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
                self._heard = asked
            _check(answer.error_code)

    async def _leave(self) -> None:
        def build(version: int) -> LeaveGroupRequest:
            if version < _MEMBERS_FROM:
                return LeaveGroupRequest(group_id=self._group, member_id=self._member)
            return LeaveGroupRequest(group_id=self._group, members=[MemberIdentity(self._member)])

        await self._cluster.send(Question(LeaveGroupRequest, build, self._coordinator))

    # Requests ------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Any) -> Any:
        """Return the coordinator's response. Raises PylogdError."""
        if self._coordinator is None:
            self._coordinator = await self._find()
        return await self._cluster.send(Question(type(request), lambda _: request, self._coordinator))

    async def _find(self) -> Endpoint:
        def build(version: int) -> FindCoordinatorRequest:
            if version < _MANY_KEYS_FROM:
                return FindCoordinatorRequest(key=self._group, key_type=_GROUP_KEY)
            return FindCoordinatorRequest(coordinator_keys=[self._group], key_type=_GROUP_KEY)

        await refresh(self._cluster)
        answer = await self._cluster.send(Question(FindCoordinatorRequest, build))
        found = answer.coordinators[0] if answer.coordinators else answer
        _check(found.error_code)
        return Endpoint(found.node_id, found.host, found.port)

    def _failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            log.failure("Unexpected error in the election of a leader in group {group}", failure, group=self._group)

    def _settle(self, leader: Identity | None, leads: bool) -> None:
        self.leader, self._leads = leader, leads
        if leader is not None:
            waits, self._waits = self._waits, []
            for done in waits:
                done.callback(None)


def _check(code: int) -> None:
    if code:
        raise KafkaError(error_for(code))


__all__ = ["BadAssignment", "LeaderElection"]
