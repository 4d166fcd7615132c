"""Fixtures with a real ZooKeeper server; `tests/conftest.py` makes them known to every test.

One server is shared by the whole run, and each test has its own chroot. A test that stops, pauses or kills a server
uses another one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from pylogd.local.zookeeper import LocalZooKeeper
from pylogd.store.zookeeper import ZooKeeperStore

#: How many seconds a test waits for a condition.
PATIENCE_SECONDS: Final = 180

_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """A server and a test's own part of its tree."""

    server: LocalZooKeeper
    chroot: str

    @property
    def hosts(self) -> str:
        """`host:port` of the server."""
        return self.server.hosts

    @property
    def connect(self) -> str:
        """The connect string with the test's chroot, which is not made yet: what connects has to make it."""
        return f"{self.server.hosts}{self.chroot}"

    @property
    def settings(self) -> dict[str, str]:
        """Of a broker on it that is not to be taken for dead, however long a busy machine keeps it waiting."""
        return {"zookeeper.connect": self.connect, "zookeeper.session.timeout.ms": "30000"}


class ZooKeeperBench:
    """Makes stores on one chroot and turns a reactor of its own while a test waits for one of them."""

    def __init__(self, connect: str, session_timeout_ms: int = 30_000, **arguments: Any) -> None:
        self.connect = connect
        self.reactor = EPollReactor()
        self.stores: list[ZooKeeperStore] = []
        self._arguments = {"session_timeout_ms": session_timeout_ms, **arguments}

    def store(self, chroot: str = "", **arguments: Any) -> ZooKeeperStore:
        """A store, not started, below the bench's own chroot; `close` closes it."""
        store = ZooKeeperStore(self.connect + chroot, cast(Any, self.reactor), **{**self._arguments, **arguments})
        self.stores.append(store)
        return store

    def wait(self, deferred: Deferred[Any]) -> Any:
        """What the Deferred fires with."""
        outcome: list[Any] = []
        deferred.addBoth(outcome.append)
        self.until(lambda: outcome, deferred)
        if isinstance(outcome[0], Failure):
            outcome[0].raiseException()
        return outcome[0]

    def until(self, condition: Callable[[], object], what: object = "it") -> None:
        """Turn the reactor until `condition` holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self.reactor.runUntilCurrent()
            if condition():
                return
            assert time.monotonic() < deadline, f"{what} has not come about"
            self.reactor.doIteration(0.05)

    def close(self) -> None:
        """Close the stores, and whatever the reactor has open."""
        for store in self.stores:
            self.wait(store.close())
        for reader in self.reactor.removeAll():
            reader.connectionLost(Failure(ConnectionDone()))


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    """The one server of the run. Don't stop it."""
    with LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"), sync=False) as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: LocalZooKeeper) -> ZooKeeper:
    """The run's server with a chroot that no other test has used."""
    return ZooKeeper(zookeeper_server, f"/test-{next(_NUMBERS)}")


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[LocalZooKeeper]:
    """A server of the test's own, to be stopped, paused and killed."""
    with LocalZooKeeper(tmp_path / "zookeeper", sync=False) as server:
        yield server
