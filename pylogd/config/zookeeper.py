"""The ZooKeeper connection that the settings describe, and its arguments for kazoo.

Strategy: the connect string and the security settings become plain values here, so that the broker's store and the
command line connect in the same way. Must not know: kazoo (its arguments are only a dict here), the tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pylogd.config.tables import SETTINGS
from pylogd.config.values import ConfigError

_PREFIX: Final = "zookeeper."

_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?")
_CHROOT: Final = re.compile(r"(?:/[^/\x00-\x20\x7f]+)+")
_MAX_PORT: Final = 65535


class Connect(NamedTuple):
    """The parts of a connect string: `hosts` is `host:port,...`; `chroot` starts with a slash, or is empty."""

    hosts: str
    chroot: str


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """Credentials, TLS and ACLs of a connection. Files are PEM; see the settings with the same names."""

    digest: str | None = field(default=None, repr=False)
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    tls: bool = False
    truststore: str | None = None
    keystore: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    set_acl: bool = False

    def kazoo_arguments(self) -> dict[str, Any]:
        """Return the arguments for `KazooClient` that credentials and TLS need, without ACLs."""
        arguments: dict[str, Any] = {}
        if self.digest is not None:
            arguments["auth_data"] = [("digest", self.digest)]
        if self.sasl_mechanism is not None:
            options = {"mechanism": self.sasl_mechanism}
            if self.sasl_mechanism == "GSSAPI":
                options |= {"principal": self.sasl_username} if self.sasl_username else {}
            else:
                options |= {"username": self.sasl_username or "", "password": self.sasl_password or ""}
            arguments["sasl_options"] = options
        if self.tls:
            arguments |= {
                "use_ssl": True,
                "verify_certs": True,
                "check_hostname": self.check_hostname,
                "ca": self.truststore,
                "certfile": self.keystore,
                "keyfile": self.keystore,
                "keyfile_password": self.keystore_password,
            }
        return arguments


def parse_connect(text: str) -> Connect:
    """Split a connect string into its parts. Raises ConfigError."""
    hosts, slash, rest = text.partition("/")
    chroot = (slash + rest).rstrip("/")
    found = [_HOST.fullmatch(host.strip()) for host in hosts.split(",")]
    if not all(match and int(match["port"] or 0) <= _MAX_PORT for match in found):
        raise _malformed(text, "write host:port,host:port/chroot")
    if chroot and (not _CHROOT.fullmatch(chroot) or {".", ".."} & set(chroot.split("/"))):
        raise _malformed(text, "the chroot is not a plain path")
    return Connect(",".join(host.strip() for host in hosts.split(",")), chroot)


def zookeeper_security(values: Mapping[str, Any]) -> ZooKeeperSecurity:
    """Return the security part of the settings. Raises ConfigError if it is incomplete or contradictory."""

    def value(name: str) -> Any:
        return values[_PREFIX + name]

    digest, mechanism = value("auth.digest"), value("sasl.mechanism")
    if digest is not None and ":" not in digest:
        raise ConfigError("zookeeper.auth.digest must be user:password", _PREFIX + "auth.digest")
    if mechanism == "DIGEST-MD5" and not (value("sasl.username") and value("sasl.password")):
        raise ConfigError("zookeeper.sasl.mechanism needs zookeeper.sasl.username and zookeeper.sasl.password")
    certificate = value("ssl.client.enable") and value("ssl.keystore.location")
    if value("set.acl") and digest is None and mechanism is None and not certificate:
        raise ConfigError(
            "zookeeper.set.acl needs zookeeper.auth.digest, zookeeper.sasl.mechanism or zookeeper.ssl.keystore.location"
        )
    return ZooKeeperSecurity(
        digest=digest,
        sasl_mechanism=mechanism,
        sasl_username=value("sasl.username"),
        sasl_password=value("sasl.password"),
        tls=value("ssl.client.enable"),
        truststore=value("ssl.truststore.location"),
        keystore=value("ssl.keystore.location"),
        keystore_password=value("ssl.keystore.password"),
        check_hostname=value("ssl.endpoint.identification.algorithm") != "",
        set_acl=value("set.acl"),
    )


def parse_security(texts: Mapping[str, object]) -> ZooKeeperSecurity:
    """Return the security of a client's connection from settings by name, as text. Raises ConfigError.

    Missing settings have the broker's defaults.
    """
    known = {name: setting for name, setting in SETTINGS.items() if name.startswith(_PREFIX)}
    if unknown := sorted(texts.keys() - known.keys()):
        raise ConfigError(f"ZooKeeper's connection has no setting {unknown[0]!r:.200}", unknown[0])
    values = {name: known[name].parse(text) for name, text in texts.items()}
    return zookeeper_security({name: setting.default for name, setting in known.items()} | values)


def check_zookeeper(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the settings contradict each other."""
    zookeeper_security(values)
    if values["zookeeper.connect"]:
        parse_connect(values["zookeeper.connect"])
        if values["metadata.store"] is not None:
            raise ConfigError("zookeeper.connect and metadata.store contradict each other: set one", "metadata.store")


def _malformed(text: str, why: str) -> ConfigError:
    return ConfigError(f'zookeeper.connect = "{text[:200]}" is not allowed: {why}', "zookeeper.connect")
