"""Fixtures with a real ZooKeeper server; `tests/conftest.py` makes them known to every test.

One server serves the whole run, and each test has a chroot of its own in it. A test that stops, pauses or kills a
server takes one of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pylogd.local.zookeeper import LocalZooKeeper

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


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    """The one server of the run. Don't stop it."""
    with LocalZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: LocalZooKeeper) -> ZooKeeper:
    """The run's server with a chroot that no other test has used."""
    return ZooKeeper(zookeeper_server, f"/test-{next(_NUMBERS)}")


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[LocalZooKeeper]:
    """A server of the test's own, to be stopped, paused and killed."""
    with LocalZooKeeper(tmp_path / "zookeeper") as server:
        yield server
