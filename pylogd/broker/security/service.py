"""The parts of the security package together, as a broker creates, starts and stops them."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from pylogd.broker.metadata.service import Metadata
from pylogd.broker.security.acl_store import AclStore
from pylogd.broker.security.audit import AuditLog, make_audit_log
from pylogd.broker.security.authorizer import Authorizer
from pylogd.broker.security.delegation_tokens import make_tokens
from pylogd.broker.security.peers import BrokerSecret, Peers
from pylogd.broker.security.plugins import make_authorizer
from pylogd.broker.security.rules import AclAuthorizer
from pylogd.broker.security.scram_users import StoredUsers
from pylogd.config import Settings


class Security:
    """Who the clients of a broker are, and what they may do.

    authorizer: None if every operation is allowed.
    acls: the ACLs in the metadata store; None without ACLs, or if an operator's class authorizes.
    audit: the audit log; None without one. The broker starts and stops it.
    delegation_tokens: makes and finds delegation tokens.
    scram_users: the SCRAM credentials of users.
    peers: the brokers of the cluster, and how they prove their identity.
    secret: the proof of this broker's own identity.
    """

    def __init__(self, settings: Settings, metadata: Metadata, clock: IReactorTime, now_ms: Callable[[], int]) -> None:
        """Make the parts. `now_ms` is the wall clock. Raises ConfigError."""
        self.authorizer: Authorizer | None = make_authorizer(settings)
        self.acls: AclStore | None = None
        if isinstance(self.authorizer, AclAuthorizer):
            self.acls = AclStore(metadata.store, metadata.feed, self.authorizer)
        self.audit: AuditLog | None = make_audit_log(settings, now_ms, clock.seconds)
        self.delegation_tokens = make_tokens(settings, metadata.delegation_tokens, now_ms)
        self.scram_users = StoredUsers(metadata.entity_configs, self.delegation_tokens.find)
        self.peers = Peers(lambda: metadata.cluster.known)
        self.secret = BrokerSecret()
        self._store = metadata.store
        self._clock = clock

    async def start(self) -> None:
        """Read the users, and begin to delete expired delegation tokens. The metadata must have been started."""
        await self.scram_users.start(self._store)
        self.delegation_tokens.start(self._clock)

    def stop(self) -> None:
        """Stop deleting delegation tokens."""
        self.delegation_tokens.stop()
