"""Listeners and their clients: addresses, endpoint descriptions, the listener between brokers, limits by address.

Three spellings of a listener: Kafka's `NAME://host:port`, plain `host:port`, and a Twisted endpoint string
(`tcp:9092:interface=127.0.0.1`, `systemd:domain=INET:index=0`). IPv6 hosts are in brackets. Must not know: Twisted (the
endpoint string is only text here), name resolution.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from pylogd.config.values import INT_MAX, ConfigError

DEFAULT_NAME: Final = "PLAINTEXT"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
METRICS_LISTENER: Final = "metrics.listener"
_PER_IP: Final = "max.connections.per.ip"
_OVERRIDES: Final = "max.connections.per.ip.overrides"
_NETWORKS: Final = "proxy.protocol.networks"

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_ENDPOINT: Final = re.compile(r"(?P<kind>tcp6?|unix|systemd):(?!//)(?P<rest>.+)")
_TCP: Final = re.compile(r"(?P<port>[0-9]{1,5})(?::.*)?")
_INTERFACE: Final = re.compile(r":interface=(?P<host>(?:\\.|[^:\\])*)")
_ADDRESS: Final = re.compile(
    r"(?:(?P<name>[A-Za-z][A-Za-z0-9_.-]*)://)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9_.-]*)):(?P<port>[0-9]{1,5})"
)
_UNNAMED: Final = re.compile(rf"{DEFAULT_NAME}[0-9]*")
_MAX_PORT: Final = 65535


class SecurityProtocol(Enum):
    """How the connections of a listener are protected, and how their clients authenticate."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        """Whether clients authenticate with SASL before anything else."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Listener(NamedTuple):
    """An address to listen on or, with an empty `endpoint`, to advertise.

    host: the host without brackets. Empty means all interfaces, or one that only the endpoint knows.
    port: the port; 0 means that the system chooses one when the endpoint is bound.
    endpoint: a Twisted server endpoint description.
    """

    name: str
    host: str
    port: int
    endpoint: str = ""
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def wildcard(self) -> bool:
        """Whether the host means all interfaces, so that clients can't use it as an address."""
        return self.host in ("", "0.0.0.0", "::")

    @property
    def exposed(self) -> bool:
        """Whether the address lets other machines connect."""
        if self.host in ("", "localhost"):
            return not self.host and self.endpoint.startswith("tcp")
        try:
            return not ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return True  # the host is a name

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocols(texts: Iterable[str]) -> dict[str, SecurityProtocol]:
    """Parse `NAME:PROTOCOL` words of `listener.security.protocol.map`. Names are in capitals. Raises ConfigError."""
    found: dict[str, SecurityProtocol] = {}
    for text in texts:
        name, colon, protocol = text.partition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not (name and colon) or protocol not in SecurityProtocol.__members__:
            allowed = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(
                f'{PROTOCOL_MAP}: "{text}" is not allowed; write NAME:PROTOCOL with one of {allowed}', PROTOCOL_MAP
            )
        if name in found:
            raise ConfigError(f'{PROTOCOL_MAP}: the listener "{name}" is named twice', PROTOCOL_MAP)
        found[name] = SecurityProtocol[protocol]
    return found


def parse_listeners(
    texts: Iterable[str], protocols: Mapping[str, SecurityProtocol] | None = None, setting: str = "listeners"
) -> tuple[Listener, ...]:
    """Parse addresses to listen on. Unnamed listeners get the names PLAINTEXT, PLAINTEXT2 and so on.

    protocols: the security protocol by the name of the listener, from `parse_protocols`; by default each protocol has a
    listener of its own name.

    Raises ConfigError for a malformed address, for a name without a protocol, and for a name or a port that is used
    twice.
    """
    protocols = SecurityProtocol.__members__ if protocols is None else protocols
    listeners: list[Listener] = []
    for text in texts:
        endpoint = _ENDPOINT.fullmatch(text)
        parsed = _parse_endpoint(text, endpoint, setting) if endpoint else _parse_address(text, setting)
        name = parsed.name or _free_name({listener.name for listener in listeners})
        description = parsed.endpoint or _endpoint(parsed.host, parsed.port)
        protocol = protocols.get(name)
        if protocol is None:
            if not _UNNAMED.fullmatch(name):
                raise ConfigError(f'{setting}: "{text}": {PROTOCOL_MAP} has no protocol for {name}', setting)
            protocol = SecurityProtocol.PLAINTEXT
        listeners.append(Listener(name, parsed.host, parsed.port, description, protocol))
    if not listeners:
        raise ConfigError(f"{setting} is empty: name at least one address", setting)
    _check_distinct([listener.name for listener in listeners], "name", setting)
    _check_distinct([listener.endpoint for listener in listeners if listener.port], "address", setting)
    return tuple(listeners)


def listeners_of(values: Mapping[str, Any]) -> tuple[Listener, ...]:
    """Return the listeners in the settings. Raises ConfigError.

    values: the settings by name.
    """
    return parse_listeners(values["listeners"], parse_protocols(values[PROTOCOL_MAP]))


def check_change(
    listeners: tuple[Listener, ...], between: Listener, now: tuple[Listener, ...], between_now: Listener
) -> None:
    """Raise ConfigError if listeners can't become these at run time.

    between, between_now: the listener between brokers: the future and the present one.
    now: the present listeners.
    """
    present = {listener.name: listener.protocol for listener in now}
    for listener in listeners:
        if present.get(listener.name, listener.protocol) is not listener.protocol:
            raise ConfigError(
                f"listener {listener.name} is a listener of {present[listener.name].value}, which can't be changed at "
                "run time: add a listener of another name, and remove this one when no client uses it",
                PROTOCOL_MAP,
            )
    if between.name != between_now.name:
        raise ConfigError(
            f"listener {between_now.name} is that between brokers, which can't be removed at run time", "listeners"
        )


def parse_advertised(
    texts: Iterable[str], listeners: tuple[Listener, ...], setting: str = "advertised.listeners"
) -> tuple[Listener, ...]:
    """Parse the advertised addresses. Each has the name of a listener; the default is the first listener.

    Raises ConfigError.
    """
    advertised: list[Listener] = []
    names = [listener.name for listener in listeners]
    for text in texts:
        parsed = _parse_address(text, setting)
        name = parsed.name or names[min(len(advertised), len(names) - 1)]
        if name not in names:
            raise ConfigError(f'{setting}: "{text}" names no listener; listeners are {", ".join(names)}', setting)
        if parsed.wildcard:
            raise ConfigError(f'{setting}: "{text}" is not an address for clients', setting)
        advertised.append(Listener(name, parsed.host, parsed.port))
    _check_distinct([listener.name for listener in advertised], "name", setting)
    return tuple(advertised)


def inter_broker_listener(values: Mapping[str, Any], listeners: tuple[Listener, ...]) -> Listener:
    """Return the listener to which other brokers connect. Raises ConfigError if it does not exist.

    values: the settings by name. Without a name or a protocol it is the first listener.
    """
    by_name, by_protocol = values["inter.broker.listener.name"], values["security.inter.broker.protocol"]
    if by_name and by_protocol:
        raise ConfigError(
            "inter.broker.listener.name and security.inter.broker.protocol can't both be set",
            "security.inter.broker.protocol",
        )
    wanted = (by_name or by_protocol or listeners[0].name).upper()
    for listener in listeners:
        if listener.name == wanted:
            return listener
    setting = "inter.broker.listener.name" if by_name else "security.inter.broker.protocol"
    names = ", ".join(listener.name for listener in listeners)
    raise ConfigError(f'{setting}: there is no listener "{wanted}"; listeners are {names}', setting)


def metrics_listener(text: str | None) -> Listener | None:
    """Return the address for metrics in the value of the setting. Raises ConfigError for a malformed address."""
    return None if text is None else parse_listeners([text], setting=METRICS_LISTENER)[0]


def parse_overrides(texts: Iterable[str]) -> dict[str, int]:
    """Return the connections allowed by address, from `address:connections` words. Raises ConfigError."""
    found: dict[str, int] = {}
    for text in texts:
        host, _, number = text.rpartition(":")
        try:
            parsed = ipaddress.ip_address(host.strip().removeprefix("[").removesuffix("]"))
            address = str(getattr(parsed, "ipv4_mapped", None) or parsed)  # the form of clients' addresses
            if not number.strip().isascii() or not number.strip().isdigit():
                raise ValueError(number)
            found[address] = min(int(number), INT_MAX)
        except ValueError:
            raise ConfigError(
                f'{_OVERRIDES}: "{text[:100]}" is not allowed; write address:connections', _OVERRIDES
            ) from None
    return found


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of `proxy.protocol.networks`; an address is a network of one. Raises ConfigError."""
    found: list[Network] = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            raise ConfigError(
                f'{_NETWORKS}: "{text[:100]}" is not allowed; write an address or a network such as 10.2.0.0/16',
                _NETWORKS,
            ) from None
    return tuple(found)


def check_connections(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if settings of connections are malformed or contradict each other."""
    overrides = parse_overrides(values[_OVERRIDES])
    for name, value in values.items():
        if name.endswith(_NETWORKS):
            parse_networks(value or ())
    if values[_PER_IP] == 0 and not any(overrides.values()):
        raise ConfigError(f"{_PER_IP} = 0 refuses everybody: set {_OVERRIDES} too", _PER_IP)


def _parse_address(text: str, setting: str) -> Listener:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > _MAX_PORT:
        raise ConfigError(
            f'{setting}: "{text}" is not an address; write NAME://host:port, host:port or a Twisted endpoint', setting
        )
    name = (match["name"] or "").upper()
    return Listener(name, match["v6"] or match["host"], int(match["port"]))


def _parse_endpoint(text: str, match: re.Match[str], setting: str) -> Listener:
    if not match["kind"].startswith("tcp"):
        return Listener("", "", 0, text)
    tcp = _TCP.fullmatch(match["rest"])
    if tcp is None or int(tcp["port"]) > _MAX_PORT:
        raise ConfigError(
            f'{setting}: "{text}" is not an endpoint; write for example tcp:9092:interface=127.0.0.1', setting
        )
    interface = _INTERFACE.search(text)
    host = re.sub(r"\\(.)", r"\1", interface["host"]) if interface else ""
    return Listener("", host, int(tcp["port"]), text)


def _endpoint(host: str, port: int) -> str:
    if not host:
        return f"tcp:{port}"
    kind = "tcp6" if ":" in host else "tcp"
    escaped = host.replace(":", "\\:")
    return f"{kind}:{port}:interface={escaped}"


def _free_name(taken: set[str]) -> str:
    if DEFAULT_NAME not in taken:
        return DEFAULT_NAME
    number = 2
    while f"{DEFAULT_NAME}{number}" in taken:
        number += 1
    return f"{DEFAULT_NAME}{number}"


def _check_distinct(values: list[str], what: str, setting: str) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ConfigError(f'{setting}: the {what} "{value}" is used twice', setting)
