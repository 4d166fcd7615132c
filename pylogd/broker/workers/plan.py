"""The settings of each worker of a machine, made from the settings of the command.

Worker K of N (from 1) has the node id `node.id` + K - 1, and `worker-K` in each of `log.dirs`. A listener on port P
becomes two listeners: the worker's own one, with the same name, on port P + K; and `BOOTSTRAP_<name>` on port P, which
all workers share (SO_REUSEPORT), and whose clients are told the worker's own ports. Advertised ports are counted up in
the same way.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

from pylogd.base.ports import free_row
from pylogd.broker.workers.directories import WORKER_FOLDER, left_out, refuse_directories_of_one
from pylogd.config import ConfigError, Listener, Settings
from pylogd.config.listeners import metrics_listener
from pylogd.config.lookup import listener_setting
from pylogd.config.metadata_store import UNIX_SCHEME, store_file

SOCKET_FILE: Final = "metadata.sock"
#: The most bytes of a Unix socket's path (unix(7)), without the final zero.
_LONGEST_PATH: Final = 107
_BOOTSTRAP: Final = "BOOTSTRAP_"
_LAST_PORT: Final = 65_535
_ALL_ADDRESSES: Final = frozenset({"", "0.0.0.0", "::"})


@dataclass(frozen=True)
class Plan:
    """The processes of one machine.

    workers: the settings of each worker.
    bootstrap: the shared addresses.
    store: the file of the embedded metadata store, and the path of the socket at which it is served; None with
    ZooKeeper.
    left_out: the directories of further workers that have partitions.
    """

    workers: tuple[Settings, ...]
    bootstrap: tuple[Listener, ...]
    store: tuple[Path, Path] | None
    left_out: tuple[Path, ...] = ()


def make_plan(settings: Settings, count: int) -> Plan:
    """Return the plan of `count` workers. Ports are chosen for those that are 0. Raises ConfigError, OSError."""
    refuse_directories_of_one(settings)
    shared = tuple(_with_port(listener, count) for listener in settings.listeners)
    _refuse_overlaps(settings, shared, count)
    store = _store(settings)
    workers = tuple(_worker(settings, shared, store, number) for number in range(1, count + 1))
    return Plan(workers, shared, store, left_out(settings, count))


def _store(settings: Settings) -> tuple[Path, Path] | None:
    if settings.text("zookeeper.connect"):
        return None
    file = store_file(settings)
    if file is None:
        raise ConfigError("metadata.store names a socket: with --workers, name a file", "metadata.store")
    path = Path(settings.words("log.dirs")[0]).absolute() / SOCKET_FILE
    if len(str(path).encode()) > _LONGEST_PATH:
        raise ConfigError(
            f"{path} is too long for a Unix socket, by which workers reach the metadata store "
            f"({_LONGEST_PATH} bytes): put the first of log.dirs at a shorter path", "log.dirs",
        )  # fmt: skip
    return file, path


def _worker(
    settings: Settings, shared: Sequence[Listener], store: tuple[Path, Path] | None, number: int
) -> Settings:  # fmt: skip
    """Return the settings of a worker; `number` counts from 1."""
    own = [listener._replace(port=listener.port + number) for listener in shared]
    common = [listener._replace(name=_BOOTSTRAP + listener.name) for listener in shared]
    addresses = {listener.name: listener for listener in settings.advertised_listeners}
    told = [_told(listener, addresses.get(listener.name), number) for listener in own]
    told += [listener._replace(name=_BOOTSTRAP + listener.name) for listener in told]
    directories = [Path(directory) / f"{WORKER_FOLDER}{number}" for directory in settings.words("log.dirs")]
    more = {
        "node.id": str(settings.integer("node.id") + number - 1),
        "log.dirs": ",".join(map(str, directories)),
        "listeners": ",".join(map(str, own + common)),
        "advertised.listeners": ",".join(map(str, told)),
        "listener.security.protocol.map": ",".join(f"{one.name}:{one.protocol.value}" for one in own + common),
        "host.id": settings.text("host.id") or socket.gethostname(),
        **_for_bootstrap(settings, shared),
    }
    if store is not None:
        more["metadata.store"] = f"{UNIX_SCHEME}{store[1]}"
    metrics = metrics_listener(settings.text("metrics.listener"))
    if metrics is not None and metrics.port:
        more["metrics.listener"] = str(metrics._replace(port=metrics.port + number - 1)).rpartition("//")[2]
    return settings.with_overrides(more)


def _for_bootstrap(settings: Settings, shared: Sequence[Listener]) -> dict[str, str]:
    """Return the settings of the shared listeners: the settings of the original listeners, on a shared port."""
    given = settings.given()
    found = {}
    for listener in shared:
        name = _BOOTSTRAP + listener.name
        own = listener_setting(listener.name, "")
        found.update(
            {listener_setting(name, key.removeprefix(own)): given[key] for key in given if key.startswith(own)}
        )
        found[listener_setting(name, "socket.reuse.port")] = "true"
    return found


def _with_port(listener: Listener, count: int) -> Listener:
    """Return a listener; if its port is 0, choose a port after which `count` ports are free.

    Raises ConfigError for a listener that is not a plain address, OSError if there are no free ports.
    """
    if not listener.endpoint.startswith("tcp"):
        raise ConfigError(f"with --workers a listener is an address, not {listener.endpoint}", "listeners")
    if listener.port + count > _LAST_PORT:
        raise ConfigError(
            f"{listener}: {count} workers need ports {listener.port} to {listener.port + count}, and the last one is "
            f"{_LAST_PORT}: choose a lower port", "listeners",
        )  # fmt: skip
    return listener if listener.port else listener._replace(port=free_row(count + 1))


def _refuse_overlaps(settings: Settings, shared: Sequence[Listener], count: int) -> None:
    """Raise ConfigError if two listeners, or a listener and the metrics, would use the same port of an address."""
    ranges = [(str(one), one.host, one.port, one.port + count) for one in shared]
    metrics = metrics_listener(settings.text("metrics.listener"))
    if metrics is not None and metrics.port:
        ranges.append(("metrics.listener", metrics.host, metrics.port, metrics.port + count - 1))
    for (name, host, first, last), (other, other_host, other_first, other_last) in combinations(ranges, 2):
        if _overlap(host, other_host) and first <= other_last and other_first <= last:
            raise ConfigError(
                f"with {count} workers {name} uses ports {first} to {last}, and {other} {other_first} to {other_last}: "
                "choose ports further apart", "listeners",
            )  # fmt: skip


def _overlap(host: str, other: str) -> bool:
    return host == other or bool({host, other} & _ALL_ADDRESSES)


def _told(own: Listener, advertised: Listener | None, number: int) -> Listener:
    """Return the advertised address of a worker's own listener. Its port is counted up like the listener's port."""
    if advertised is None:
        return own._replace(host=socket.gethostname()) if own.wildcard else own
    return own._replace(host=advertised.host, port=advertised.port + number if advertised.port else own.port)
