"""Parse listener addresses, and make Twisted's endpoint descriptions from them.

Three spellings of a listener: Kafka's `NAME://host:port`, plain `host:port`, and a Twisted endpoint string
(`tcp:9092:interface=127.0.0.1`, `systemd:domain=INET:index=0`). IPv6 hosts stand in brackets. Must not know: Twisted
(the endpoint string is only text here), name resolution.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pylogd.config.values import ConfigError

DEFAULT_NAME: Final = "PLAINTEXT"

_ENDPOINT: Final = re.compile(r"(?P<kind>tcp6?|unix|systemd):(?!//)(?P<rest>.+)")
_TCP: Final = re.compile(r"(?P<port>[0-9]{1,5})(?::.*)?")
_INTERFACE: Final = re.compile(r":interface=(?P<host>(?:\\.|[^:\\])*)")
_ADDRESS: Final = re.compile(
    r"(?:(?P<name>[A-Za-z][A-Za-z0-9_.-]*)://)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9_.-]*)):(?P<port>[0-9]{1,5})"
)
_UNSUPPORTED: Final = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL"})
_MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Listener:
    """One address: where to listen or, with an empty `endpoint`, what to tell clients.

    `host` is without brackets, empty for every interface or for one that only the endpoint knows; `port` 0 is chosen
    when the endpoint is bound. `endpoint` is a Twisted server endpoint description.
    """

    name: str
    host: str
    port: int
    endpoint: str = ""

    @property
    def wildcard(self) -> bool:
        """Whether the host stands for all interfaces, and so is no address for clients."""
        return self.host in ("", "0.0.0.0", "::")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(texts: Iterable[str], setting: str = "listeners") -> tuple[Listener, ...]:
    """Parse addresses to listen on. Unnamed ones are called PLAINTEXT, PLAINTEXT2 and so on.

    Raises `ConfigError` for a malformed address, an unsupported protocol, a name or a port used twice.
    """
    listeners: list[Listener] = []
    for text in texts:
        endpoint = _ENDPOINT.fullmatch(text)
        parsed = _parse_endpoint(text, endpoint, setting) if endpoint else _parse_address(text, setting)
        name = parsed.name or _free_name({listener.name for listener in listeners})
        description = parsed.endpoint or _endpoint(parsed.host, parsed.port)
        listeners.append(Listener(name, parsed.host, parsed.port, description))
    if not listeners:
        raise ConfigError(f"{setting} is empty: name at least one address", setting)
    _check_distinct([listener.name for listener in listeners], "name", setting)
    _check_distinct([listener.endpoint for listener in listeners if listener.port], "address", setting)
    return tuple(listeners)


def parse_advertised(
    texts: Iterable[str], listeners: tuple[Listener, ...], setting: str = "advertised.listeners"
) -> tuple[Listener, ...]:
    """Parse the addresses that clients are told. Each has the name of a listener, by default the first one's.

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


def _parse_address(text: str, setting: str) -> Listener:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > _MAX_PORT:
        raise ConfigError(
            f'{setting}: "{text}" is no address; write NAME://host:port, host:port or a Twisted endpoint', setting
        )
    name = (match["name"] or "").upper()
    if name in _UNSUPPORTED:
        raise ConfigError(f'{setting}: "{text}": {name} listeners are not supported, only plain text ones', setting)
    return Listener(name, match["v6"] or match["host"], int(match["port"]))


def _parse_endpoint(text: str, match: re.Match[str], setting: str) -> Listener:
    if not match["kind"].startswith("tcp"):
        return Listener("", "", 0, text)
    tcp = _TCP.fullmatch(match["rest"])
    if tcp is None or int(tcp["port"]) > _MAX_PORT:
        raise ConfigError(
            f'{setting}: "{text}" is no endpoint; write for example tcp:9092:interface=127.0.0.1', setting
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
