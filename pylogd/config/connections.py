"""The settings of connections: their number, their rate, their timeouts, and their memory.

Strategy: a table, and the checks that concern several of its values. Settings marked `per_listener` can also be given
for one listener, as `listener.name.<listener>.<setting>`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from pylogd.config.storage import MIB, MINUTE_MS
from pylogd.config.values import INT_MAX, ConfigError, ConfigType, Mode, Setting

_BOOLEAN, _INT, _LONG, _LIST = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG, ConfigType.LIST
_DYNAMIC: Final = Mode.DYNAMIC
_GROUP: Final = "Connections"

PER_IP: Final = "max.connections.per.ip"
OVERRIDES: Final = "max.connections.per.ip.overrides"
NETWORKS: Final = "proxy.protocol.networks"

#: The least value at run time of limits that could lock operators out: a client needs several connections.
LEAST_AT_RUN_TIME: Final = 10

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

CONNECTION_SETTINGS: Final = [
    Setting(
        "max.connections",
        _INT,
        INT_MAX,
        "Most client connections of the broker at a time; further connections wait, in order, until others end. "
        "`listener.name.<listener>.max.connections` is an additional limit for a single listener. If there are other "
        "listeners, the inter-broker listener is exempt from the broker's limit: for its connections, those "
        "connections of the other listeners are closed that have been idle for longest. If there are no other "
        "listeners, a value set at run time must be at least 10. (Kafka accepts 0, after which no client can connect "
        "to change it back. If a value set at run time locks operators out, start the broker with `--set "
        "ignored.dynamic.settings=max.connections`.)",
        _GROUP,
        minimum=1,
        mode=_DYNAMIC,
        per_listener=True,
    ),
    Setting(
        PER_IP,
        _INT,
        INT_MAX,
        "Most client connections at a time from one address; further connections are closed at once. 0 refuses all "
        "addresses that `max.connections.per.ip.overrides` does not name. A value set at run time must be at least "
        "10. (Only in pylogd.)",
        _GROUP,
        minimum=0,
        mode=_DYNAMIC,
    ),
    Setting(
        OVERRIDES,
        _LIST,
        (),
        "Other limits for single addresses: `address:connections`, separated by commas. Write IPv6 addresses in "
        "brackets. (Kafka also takes host names.)",
        _GROUP,
        mode=_DYNAMIC,
    ),
    Setting(
        "max.connection.creation.rate",
        _INT,
        INT_MAX,
        "Most connections accepted in a second, on all listeners together; further connections wait, most of them in "
        "the kernel's queue (`socket.listen.backlog.size`). `listener.name.<listener>.max.connection.creation.rate` "
        "is an additional limit for a single listener. The inter-broker listener is exempt from the broker's limit.",
        _GROUP,
        minimum=1,
        mode=_DYNAMIC,
        per_listener=True,
    ),
    Setting(
        "connections.max.idle.ms",
        _LONG,
        10 * MINUTE_MS,
        "Idle time after which a connection is closed; -1 for never.",
        _GROUP,
        minimum=-1,
    ),
    Setting(
        "connection.handshake.timeout.ms",
        _INT,
        15_000,
        "How long a new connection may take for the header of the PROXY protocol, the TLS handshake and SASL "
        "authentication together before it is closed. (Only in pylogd.)",
        _GROUP,
        minimum=1,
        mode=_DYNAMIC,
        per_listener=True,
    ),
    Setting(
        "max.connections.handshaking",
        _INT,
        1000,
        "Most connections of a listener that have not finished their handshake (see "
        "`connection.handshake.timeout.ms`). If there is one more, one of the address with most is closed: the oldest "
        "that has said nothing. Addresses from which a client has authenticated go last. (Only in pylogd.)",
        _GROUP,
        minimum=1,
        mode=_DYNAMIC,
        per_listener=True,
    ),
    Setting(
        "request.receive.timeout.ms",
        _INT,
        30_000,
        "In each period of this length, the broker must receive at least 32 KiB of an unfinished request, or the "
        "rest of it; otherwise the connection is closed. (Only in pylogd.)",
        _GROUP,
        minimum=1000,
        mode=_DYNAMIC,
    ),
    Setting(
        "queued.max.request.bytes",
        _LONG,
        100 * MIB,
        "Memory, over all connections, for large requests (64 KiB and more) that have arrived in part or wait for "
        "earlier requests of their connection. When it is used up, the broker stops reading from connections that "
        "are in the middle of a large request; they continue in the order in which they arrived. One of them always "
        "continues; the others read at most 16 KiB at a time. One long request (1/32 of this memory or more) gets "
        "memory for its full length. The other long requests together get at most 3/16, and all other requests share "
        "the rest, at least a quarter. With `Q` for this setting and `S` for `socket.request.max.bytes`, requests "
        "use at most the larger of `Q` and `Q/4 + S`, plus `Q/32`. -1: no limit. (Kafka's default is -1, and it "
        "can't be changed at run time.)",
        _GROUP,
        minimum=-1,
        mode=_DYNAMIC,
    ),
    Setting(
        "socket.reuse.port",
        _BOOLEAN,
        False,
        "Whether other processes of this user may listen on the same port (SO_REUSEPORT), over which the kernel then "
        "spreads new connections. `pylogd broker --workers` sets it for the port that workers share. (Only in "
        "pylogd.)",
        _GROUP,
        per_listener=True,
    ),
    Setting(
        "proxy.protocol",
        _BOOLEAN,
        False,
        "Whether connections begin with a header of the PROXY protocol, version 1 or 2, in which a load balancer "
        "names the client's address. Connections without this header are closed. Set it for single listeners: "
        "`listener.name.<listener>.proxy.protocol`. Whoever can connect to such a listener may claim any address, so "
        "set `proxy.protocol.networks` too. (Only in pylogd.)",
        _GROUP,
        per_listener=True,
    ),
    Setting(
        "proxy.protocol.networks",
        _LIST,
        (),
        "The addresses and networks of the load balancers, such as `10.1.0.7,10.2.0.0/16`. A listener with "
        "`proxy.protocol` closes connections from other addresses at once. Empty: it accepts connections from all "
        "addresses. (Only in pylogd.)",
        _GROUP,
        per_listener=True,
    ),
    Setting(
        "sasl.server.max.receive.size",
        _INT,
        524_288,
        "Largest request in bytes before a client has authenticated with SASL.",
        _GROUP,
        minimum=1,
        per_listener=True,
    ),
    Setting(
        "ignored.dynamic.settings",
        _LIST,
        (),
        "Names of settings whose run-time values this broker ignores. Use it to connect again after a change that "
        "locked operators out. (Only in pylogd.)",
        _GROUP,
    ),
]


def check_way_in(dynamic: Mapping[str, str], listeners: int) -> None:
    """Raise ConfigError if limits that are set at run time could lock out the operator who wants to change them back.

    listeners: the number of listeners. With several, the one between brokers is exempt from `max.connections`.
    """
    for name in ("max.connections", PER_IP):
        exempt = listeners > 1 and name != PER_IP
        if not exempt and int(dynamic.get(name, INT_MAX)) < LEAST_AT_RUN_TIME:
            raise ConfigError(
                f"{name} has to be at least {LEAST_AT_RUN_TIME} where it is set at run time, or nobody might get in to "
                "change it back; a smaller one can be set in the configuration file",
                name,
            )


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
                f'{OVERRIDES}: "{text[:100]}" is not allowed; write address:connections', OVERRIDES
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
                f'{NETWORKS}: "{text[:100]}" is not allowed; write an address or a network such as 10.2.0.0/16',
                NETWORKS,
            ) from None
    return tuple(found)


def check_connections(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if settings of connections are malformed or contradict each other."""
    overrides = parse_overrides(values[OVERRIDES])
    for name, value in values.items():
        if name.endswith(NETWORKS):
            parse_networks(value or ())
    if values[PER_IP] == 0 and not any(overrides.values()):
        raise ConfigError(f"{PER_IP} = 0 refuses everybody: set {OVERRIDES} too", PER_IP)
