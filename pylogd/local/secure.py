"""A test cluster whose brokers and clients show each other certificates, or have passwords.

Strategy: an authority of the cluster's own, kept in its directory, issues a certificate for each broker and for some
users. All connections, those between brokers too, are encrypted. Each broker has two listeners: on one a client is who
its certificate says, on the other it authenticates with a password (SASL_SSL, SCRAM-SHA-512).

In the directory `tls`: `authority.pem` (what to trust), `broker<N>.pem`, `<user>.pem` for each user with a certificate,
and for each user `<user>.properties`, a client configuration with Kafka's property names.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pylogd.client import Cluster
from pylogd.client.properties import parse_properties, security_from
from pylogd.errors import KafkaError, error_for
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import HOST, BrokerProcess, free_ports
from pylogd.local.cluster import LocalCluster
from pylogd.security.sasl.scram import MIN_ITERATIONS, SCRAM_SHA_512, new_salt, salted_password
from pylogd.wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest, ScramCredentialUpsertion

#: Who may connect with a certificate.
USERS: Final = ("admin", "alice")
#: Who may connect with a password.
SCRAM_USERS: Final = ("bob", "carol")
_PASSWORD_BYTES: Final = 16
_CLIENT: Final = """\
# A client of the test cluster in {folder}, as {user}.
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location={authority}
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""
_SCRAM_CLIENT: Final = """\
# A client of the test cluster in {folder}, as {user}. Its bootstrap servers are those for SASL_SSL.
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location={authority}
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" \
password="{password}";
"""


class SecureCluster(LocalCluster):
    """Brokers that take connections with TLS only, with certificates or passwords. A context manager."""

    def __init__(self, folder: Path, count: int, *, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        """As `LocalCluster`; the certificates are made here, unless an earlier run has made them."""
        super().__init__(folder, count, port=port, settings=settings)
        self.tls = self.folder / "tls"
        ports = range(port + count, port + 2 * count) if port else free_ports(count)
        self.sasl_ports = dict(enumerate(ports, 1))
        self._authority = Authority.open(self.tls)
        for user in USERS:
            self._make(user, ())
            text = _CLIENT.format(
                folder=self.folder, user=user, authority=self.tls / "authority.pem", keystore=self.tls / f"{user}.pem"
            )
            self.properties(user).write_text(text)

    def __enter__(self) -> SecureCluster:
        """Start everything, as `LocalCluster` does, and make the users with passwords. Raises KafkaError too."""
        super().__enter__()
        try:
            self._add_users()
        except BaseException:
            self.close()
            raise
        return self

    def _add_users(self) -> None:
        """Give each user of `SCRAM_USERS` a password, unless an earlier run has, and a client configuration."""
        security = security_from(parse_properties(self.properties(USERS[0]).read_text()))
        for user in SCRAM_USERS:
            if self.properties(user).exists():
                continue
            password, salt = secrets.token_urlsafe(_PASSWORD_BYTES), new_salt()
            salted = salted_password(SCRAM_SHA_512, password, salt, MIN_ITERATIONS)
            change = ScramCredentialUpsertion(user, SCRAM_SHA_512.code, MIN_ITERATIONS, salt, salted)
            with Cluster(self.bootstrap, security=security) as connection:
                response = connection.request(AlterUserScramCredentialsRequest(upsertions=[change]))
            for result in response.results:
                if result.error_code:
                    raise KafkaError(error_for(result.error_code), result.error_message)
            text = _SCRAM_CLIENT.format(
                folder=self.folder, user=user, authority=self.tls / "authority.pem", password=password
            )
            write_secret(self.properties(user), text)

    @property
    def sasl_bootstrap(self) -> str:
        """The addresses for clients that have a password."""
        return ",".join(f"{HOST}:{port}" for port in self.sasl_ports.values())

    def properties(self, user: str) -> Path:
        """Return the file with a user's client configuration."""
        return self.tls / f"{user}.properties"

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker's process, without waiting."""
        if node not in self.sasl_ports:
            self.sasl_ports[node] = free_ports(1)[0]
        keystore = self._make(f"broker{node}", (HOST, "localhost"))
        secure = {
            "ssl.keystore.location": str(keystore), "ssl.truststore.location": str(self.tls / "authority.pem"),
            "ssl.client.auth": "required", "listener.name.sasl_ssl.ssl.client.auth": "none",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512", "inter.broker.listener.name": "SSL",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
        }  # fmt: skip
        return BrokerProcess(
            self.folder / f"broker{node}", self.folder / f"broker{node}.log", {**secure, **settings},
            ["--listen", f"SASL_SSL://{HOST}:{self.sasl_ports[node]}"],
            port=self.ports[node], prefix=self.prefix, host=f"SSL://{HOST}", wait=False,
        )  # fmt: skip

    def _make(self, name: str, hosts: tuple[str, ...]) -> Path:
        path = self.tls / f"{name}.pem"
        if not path.exists():
            write_secret(path, self._authority.issue(name, hosts).pem)
        return path
