"""A secured test cluster: certificates or passwords for brokers and clients, and example ACLs.

Strategy: the cluster has its own authority in its directory, which issues a certificate for each broker and for some
users. All connections are encrypted, also those between brokers. Each broker has two listeners: on one a client
authenticates with its certificate, on the other with a password (SASL_SSL, SCRAM-SHA-512). `admin` may do everything.
Each other user owns the topics and groups whose names begin with the user's name and a dash, and `carol` may read those
of `bob`. Only the brokers' credentials allow changes of nodes in ZooKeeper, and reads of secret nodes.

The directory `tls` has: `authority.pem` (the certificate to trust); `broker<N>.pem`; `<user>.pem` for each user with a
certificate; for each user `<user>.properties`, a client configuration with Kafka's property names, and
`<user>.librdkafka`, the same for kcat; `brokers.toml`, the settings that only the brokers may know; and `try.py`, a
producer and a consumer in Python.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pylogd.base.ports import free_ports
from pylogd.client import Acl, Admin, Cluster, SecurityOptions
from pylogd.client.properties import parse_properties, security_from
from pylogd.credentials.jaas import parse_jaas
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import HOST, BrokerProcess
from pylogd.local.cluster import LocalCluster

ADMIN: Final = "admin"
#: The users that may connect with a certificate.
USERS: Final = (ADMIN, "alice")
#: The users that may connect with a password.
SCRAM_USERS: Final = ("bob", "carol")
_PASSWORD_BYTES: Final = 16
_MECHANISM: Final = "SCRAM-SHA-512"
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
_TRY: Final = '''\
"""Produce to the test cluster, or consume from it: python try.py produce|consume USER BOOTSTRAP_SERVERS."""

import sys
from pathlib import Path

from pylogd.client import Consumer, Producer
from pylogd.client.properties import parse_properties, security_from

what, user, servers = sys.argv[1:]
properties = parse_properties((Path(__file__).parent / f"{user}.properties").read_text())
security = security_from(properties)
if what == "produce":
    with Producer(servers, security=security) as producer:
        producer.send(f"{user}-demo", b"hello from Python").result()
else:
    with Consumer(servers, security=security, group_id=f"{user}-group") as consumer:
        consumer.subscribe([f"{user}-demo"])
        for record in consumer.poll(30):
            print(record.value.decode())
'''


class SecureCluster(LocalCluster):
    """Brokers that accept only TLS connections, with certificates or passwords. A context manager."""

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        port: int = 0,
        zookeeper_port: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Pass the arguments of `LocalCluster`. The certificates are made, unless an earlier run has made them."""
        super().__init__(folder, count, port=port, zookeeper_port=zookeeper_port, settings=settings)
        self.tls = self.folder / "tls"
        ports = range(port + count, port + 2 * count) if port else free_ports(count)
        self.sasl_ports = dict(enumerate(ports, 1))
        self._authority = Authority.open(self.tls)
        self.authority = self.tls / "authority.pem"
        for user in USERS:
            self._make(user, ())
            text = _CLIENT.format(
                folder=self.folder, user=user, authority=self.authority, keystore=self.tls / f"{user}.pem"
            )
            self.properties(user).write_text(text)
        (self.tls / "try.py").write_text(_TRY)
        if not self._brokers_file.exists():
            digest = f"brokers:{secrets.token_urlsafe(_PASSWORD_BYTES)}"
            text = f'"zookeeper.auth.digest" = "{digest}"\n"zookeeper.set.acl" = true\n'
            write_secret(self._brokers_file, text)

    def __enter__(self) -> SecureCluster:
        """Start ZooKeeper and the brokers, then add the users with passwords. Also raises KafkaError."""
        super().__enter__()
        try:
            self._add_users()
            for user in (*USERS, *SCRAM_USERS):
                write_secret(self.tls / f"{user}.librdkafka", self._librdkafka(user))
        except BaseException:
            self.close()
            raise
        return self

    def security(self, user: str) -> SecurityOptions | None:
        """Return the security options of a user's connections."""
        return security_from(parse_properties(self.properties(user).read_text()))

    def _add_users(self) -> None:
        """Give each user of `SCRAM_USERS` a password, unless an earlier run has done it, and all users their ACLs."""
        wanted = [user for user in SCRAM_USERS if not self.properties(user).exists()]
        if not wanted:
            return
        with Cluster(self.bootstrap, security=self.security(ADMIN)) as connection, Admin(connection) as admin:
            for user in wanted:
                password = secrets.token_urlsafe(_PASSWORD_BYTES)
                admin.set_password(user, password, (_MECHANISM,))
                text = _SCRAM_CLIENT.format(folder=self.folder, user=user, authority=self.authority, password=password)
                write_secret(self.properties(user), text)
            for error in admin.create_acls(_acls()).values():
                if error is not None:
                    raise error

    def _librdkafka(self, user: str) -> str:
        """Return a user's configuration for kcat."""
        properties = parse_properties(self.properties(user).read_text())
        own = {
            "bootstrap.servers": self.servers(user), "security.protocol": properties["security.protocol"],
            "ssl.ca.location": str(self.authority),
        }  # fmt: skip
        if user in SCRAM_USERS:
            options = parse_jaas(properties["sasl.jaas.config"]).options
            own |= {
                "sasl.mechanism": _MECHANISM, "sasl.username": options["username"],
                "sasl.password": options["password"],
            }  # fmt: skip
        else:
            keystore = str(self.tls / f"{user}.pem")
            own |= {"ssl.certificate.location": keystore, "ssl.key.location": keystore}
        return "".join(f"{name}={value}\n" for name, value in own.items())

    @property
    def sasl_bootstrap(self) -> str:
        """The addresses for clients that have a password."""
        return ",".join(f"{HOST}:{port}" for port in self.sasl_ports.values())

    def servers(self, user: str) -> str:
        """Return the bootstrap servers for a user."""
        return self.sasl_bootstrap if user in SCRAM_USERS else self.bootstrap

    def properties(self, user: str) -> Path:
        """Return the file with a user's client configuration."""
        return self.tls / f"{user}.properties"

    def hints(self, user: str = SCRAM_USERS[0]) -> list[str]:
        """Return commands to try the cluster as a user."""
        where = f"-b {self.servers(user)} --command-config {self.properties(user)}"
        topic, kcat = f"{user}-demo", f"kcat -F {self.tls / user}.librdkafka -t {user}-demo"
        script = f"python {self.tls / 'try.py'}"
        return [
            f"echo hello | pylogd produce {topic} --create {where}",
            f"pylogd consume {topic} --until-end {where}",
            f"echo hello | {kcat} -P",
            f"{kcat} -C -e",
            f"{script} produce {user} {self.servers(user)}",
            f"{script} consume {user} {self.servers(user)}",
        ]

    @property
    def _brokers_file(self) -> Path:
        return self.tls / "brokers.toml"

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker's process, without waiting."""
        if node not in self.sasl_ports:
            self.sasl_ports[node] = free_ports(1)[0]
        keystore = self._make(f"broker{node}", (HOST, "localhost"))
        secure = {
            "ssl.keystore.location": str(keystore), "ssl.truststore.location": str(self.authority),
            "ssl.client.auth": "required", "listener.name.sasl_ssl.ssl.client.auth": "none",
            "sasl.enabled.mechanisms": _MECHANISM, "inter.broker.listener.name": "SSL",
            "ssl.principal.mapping.rules": "RULE:^CN=broker[0-9]+,.*$/broker/,RULE:^CN=([^,]*).*$/$1/,DEFAULT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:broker",
        }  # fmt: skip
        return BrokerProcess(
            self.folder / f"broker{node}", self.folder / f"broker{node}.log", {**secure, **settings},
            ["--config", str(self._brokers_file), *self.listen(node)],
            port=self.ports[node], prefix=self.prefix, host=f"SSL://{HOST}", wait=False,
        )  # fmt: skip

    def listen(self, node: int) -> list[str]:
        """Return the arguments for the listeners of a broker besides its first one. A subclass may add listeners."""
        return ["--listen", f"SASL_SSL://{HOST}:{self.sasl_ports[node]}"]

    def _make(self, name: str, hosts: tuple[str, ...]) -> Path:
        path = self.tls / f"{name}.pem"
        if not path.exists():
            write_secret(path, self._authority.issue(name, hosts).pem)
        return path


def _acls() -> list[Acl]:
    """Return the ACLs of users: everything in topics and groups of their own names; `carol` reads topics of `bob`."""
    owned = [
        Acl(kind, f"{user}-", "PREFIXED", f"User:{user}", "*", "ALL", "ALLOW")
        for user in (*USERS[1:], *SCRAM_USERS)
        for kind in ("TOPIC", "GROUP")
    ]
    bob, carol = SCRAM_USERS
    return [*owned, Acl("TOPIC", f"{bob}-", "PREFIXED", f"User:{carol}", "*", "READ", "ALLOW")]
