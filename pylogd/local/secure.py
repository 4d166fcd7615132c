"""A test cluster whose brokers and clients show each other certificates.

Strategy: an authority of the cluster's own, kept in its directory, issues a certificate for each broker and each user.
All connections, those between brokers too, are encrypted, and a client is who its certificate says.

In the directory `tls`: `authority.pem` (what to trust), `broker<N>.pem`, and for each user `<user>.pem` and
`<user>.properties`, a client configuration with Kafka's property names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import HOST, BrokerProcess
from pylogd.local.cluster import LocalCluster

#: Who may connect.
USERS: Final = ("admin", "alice")
_CLIENT: Final = """\
# A client of the test cluster in {folder}, as {user}.
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location={authority}
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""


class SecureCluster(LocalCluster):
    """Brokers that take connections with TLS and certificates of the cluster's authority only. A context manager."""

    def __init__(self, folder: Path, count: int, *, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        """As `LocalCluster`; the certificates are made here, unless an earlier run has made them."""
        super().__init__(folder, count, port=port, settings=settings)
        self.tls = self.folder / "tls"
        self._authority = Authority.open(self.tls)
        for user in USERS:
            self._make(user, ())
            text = _CLIENT.format(
                folder=self.folder, user=user, authority=self.tls / "authority.pem", keystore=self.tls / f"{user}.pem"
            )
            self.properties(user).write_text(text)

    def properties(self, user: str) -> Path:
        """Return the file with a user's client configuration."""
        return self.tls / f"{user}.properties"

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker's process, without waiting."""
        keystore = self._make(f"broker{node}", (HOST, "localhost"))
        secure = {
            "ssl.keystore.location": str(keystore), "ssl.truststore.location": str(self.tls / "authority.pem"),
            "ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
        }  # fmt: skip
        return BrokerProcess(
            self.folder / f"broker{node}", self.folder / f"broker{node}.log", {**secure, **settings},
            port=self.ports[node], prefix=self.prefix, host=f"SSL://{HOST}", wait=False,
        )  # fmt: skip

    def _make(self, name: str, hosts: tuple[str, ...]) -> Path:
        path = self.tls / f"{name}.pem"
        if not path.exists():
            write_secret(path, self._authority.issue(name, hosts).pem)
        return path
