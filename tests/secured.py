"""A secured cluster for the tests, as `pylogd cluster up --secure` makes it, with every mechanism.

Three brokers with a real ZooKeeper; TLS between brokers, certificates or passwords for clients, ACLs, and nodes in
ZooKeeper that only brokers may change.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from pylogd.client import Admin, Cluster
from pylogd.client.properties import parse_properties, security_from
from pylogd.credentials.jaas import parse_jaas
from pylogd.local.secure import ADMIN, SecureCluster

#: The password of bob by PLAIN, which is in the brokers' settings.
PLAIN_PASSWORD: Final = "plain-bob-hush"
#: Ways to authenticate, each as a user who owns what begins with its name.
WAYS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "SSL")
_SETTINGS: Final = {
    "zookeeper.session.timeout.ms": "30000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": f'x.PlainLoginModule required user_bob="{PLAIN_PASSWORD}";',
    "sasl.oauthbearer.unsecured.tokens.enable": "true",
}


class Secured(SecureCluster):
    """A running cluster, and how clients reach it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 3, settings=_SETTINGS)
        self._token = folder / "token"
        self._token.write_text(unsecured_token("bob"))

    def __enter__(self) -> Secured:
        super().__enter__()
        with Cluster(self.bootstrap, security=self.security(ADMIN)) as connection, Admin(connection) as admin:
            admin.set_password("bob", self.password("bob"), ("SCRAM-SHA-256",))
        return self

    def password(self, user: str) -> str:
        """Return the SCRAM password of a user."""
        options = parse_jaas(parse_properties(self.properties(user).read_text())["sasl.jaas.config"]).options
        return options["password"]

    def way(self, way: str) -> tuple[str, str, dict[str, str]]:
        """Return (user, bootstrap servers, Kafka's properties) for one of `WAYS`."""
        if way == "SSL":
            return "alice", self.bootstrap, parse_properties(self.properties("alice").read_text())
        properties = parse_properties(self.properties("bob").read_text())
        properties["sasl.mechanism"] = way
        if way == "PLAIN":
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            properties["sasl.jaas.config"] = f'{module} required username="bob" password="{PLAIN_PASSWORD}";'
        elif way == "OAUTHBEARER":
            del properties["sasl.jaas.config"]
            properties["sasl.oauthbearer.token.endpoint.url"] = self._token.as_uri()
        return "bob", self.sasl_bootstrap, properties

    def client(self, way: str) -> tuple[str, str, Any]:
        """Return (user, bootstrap servers, security options) for one of `WAYS`."""
        user, servers, properties = self.way(way)
        return user, servers, security_from(properties)

    @property
    def secrets(self) -> list[str]:
        """What must not be found anywhere: passwords, and the beginning of each private key."""
        keys = [path.read_text().splitlines()[1] for path in self.tls.glob("*.pem") if "PRIVATE" in path.read_text()]
        digest = (self.tls / "brokers.toml").read_text().split('"')[3].partition(":")[2]
        return [self.password("bob"), self.password("carol"), PLAIN_PASSWORD, digest, *keys]


def unsecured_token(user: str) -> str:
    """Return an access token without a signature."""
    now = time.time()

    def encode(part: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    return f"{encode({'alg': 'none'})}.{encode({'sub': user, 'iat': now - 1, 'exp': now + 36_000})}."


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A cluster for all tests that leave it as it is."""
    cluster = Secured(tmp_path_factory.mktemp("secured"))
    with cluster:
        yield cluster
        assert not cluster.close()
        for node in cluster.ports:
            assert not [secret for secret in cluster.secrets if secret in cluster.log(node)]
