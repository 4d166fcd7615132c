"""The brokers that extreme requests go to: an open one, and one with TLS, SASL, ACLs and quotas.

Users of the secured broker have passwords as `access.password_of` gives. `admin` is a super user. `extreme` may do
everything by ACLs, and `neighbour` what it needs; `stranger` may do nothing. All have quotas, and some delegation
tokens exist. The plain listener of the secured broker is for clients that do not authenticate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pylogd.base.ports import free_ports
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import HOST, BrokerProcess
from pylogd.wire.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from pylogd.wire.messages.create_acls import AclCreation, CreateAclsRequest
from tests.extreme.access import Access, password_of
from tests.extreme.neighbour import TOPIC as NEIGHBOURS
from tests.extreme.state import SETTINGS
from tests.rawclient import RawClient, create_topic

USERS: Final = ("admin", "extreme", "neighbour", "stranger")
_ALL, _ALLOW, _LITERAL = 2, 3, 3
_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID, _TOKEN, _USER = 2, 3, 4, 5, 6, 7
_FAST: Final = {
    "producer_byte_rate": 1e9, "consumer_byte_rate": 1e9, "request_percentage": 1000.0,
    "controller_mutation_rate": 1000.0,
}  # fmt: skip
_SLOW: Final = {"producer_byte_rate": 1e6, "consumer_byte_rate": 1e6, "request_percentage": 50.0}


class OpenBroker(BrokerProcess):
    """A broker where everyone may do everything. attackers: how they connect. neighbour: how the other client does."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(folder / "data", folder / "log", {**SETTINGS, **(settings or {})}, arguments, prefix=prefix)
        self.admin = self.neighbour = Access(self.address)
        self.attackers: tuple[tuple[Access, float], ...] = ((self.admin, 1.0),)  # with their share of the requests
        self.slowed: tuple[Access, ...] = ()  # those whose quota lets them wait

    def prepare(self, client: RawClient) -> None:
        """Make what the neighbour needs. `client`: the administrator's."""
        create_topic(client, NEIGHBOURS)

    def repair(self, client: RawClient) -> None:
        """Undo what an attacker with all permissions may have done to permissions."""


class SecuredBroker(OpenBroker):
    """A broker with TLS, SASL, ACLs and quotas."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        authority = Authority()
        self.authority = folder / "authority.pem"
        self.authority.write_text(authority.certificate)
        write_secret(folder / "broker.pem", authority.issue("broker", (HOST,)).pem)
        secured = f"{HOST}:{free_ports(1)[0]}"
        words = " ".join(f'user_{name}="{password_of(name)}"' for name in USERS)
        security = {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.clients.plain.sasl.jaas.config":
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {words};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "delegation.token.secret.key": "a secret of the tests",
            "audit.log.path": str(folder / "audit.jsonl"),
        }  # fmt: skip
        super().__init__(
            folder, {**security, **(settings or {})}, ["--listen", f"CLIENTS://{secured}", *arguments], prefix
        )
        pem = str(self.authority)
        self.admin = Access(secured, pem, "admin")
        self.neighbour = Access(secured, pem, "neighbour")
        self.attackers = (
            (Access(secured, pem, "extreme"), 0.8),
            (Access(secured, pem, "stranger"), 0.1),
            (Access(self.address), 0.1),
        )
        self.slowed = tuple(access for access, _ in self.attackers[1:])

    def prepare(self, client: RawClient) -> None:
        """Make what the neighbour needs, and permissions and quotas."""
        super().prepare(client)
        self.repair(client)
        entries = [
            EntryData(
                [EntityData("user", name)],
                [OpData(key, value, remove=False) for key, value in (_SLOW if name is None else _FAST).items()],
            )
            for name in ("extreme", "neighbour", None)
        ]
        answer = client.request(AlterClientQuotasRequest(entries, validate_only=False), 1)
        assert not any(entry.error_code for entry in answer.entries), answer

    def repair(self, client: RawClient) -> None:
        """Create the ACLs, which may have been deleted."""
        acls = [
            AclCreation(kind, "kafka-cluster" if kind == _CLUSTER else "*", _LITERAL, "User:extreme", "*", _ALL, _ALLOW)
            for kind in (_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID, _TOKEN)
        ]
        acls.append(AclCreation(_TOPIC, NEIGHBOURS, _LITERAL, "User:neighbour", "*", _ALL, _ALLOW))
        answer = client.request(CreateAclsRequest(acls), 3)
        assert not any(result.error_code for result in answer.results), answer
