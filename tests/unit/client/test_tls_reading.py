"""Certificates and keys are read in a thread, once for a client, before its first connection is opened."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from pylogd.client import SecurityOptions, TlsFailed
from pylogd.client.aio.loop import AioLoop
from pylogd.client.core.call import Call, Endpoint
from pylogd.client.core.connections import ConnectionOptions
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.network import Network
from pylogd.client.deferred.loop import TwistedLoop
from pylogd.client.evented.driver import Driver
from pylogd.local.authority import Authority
from pylogd.wire.messages.metadata import MetadataRequest


class FakeLoop:
    """A loop whose calls from threads are made by `run`. opened: the ports of connections."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.calls: queue.Queue[Callable[[], object]] = queue.Queue()
        self.opened: list[int] = []
        self._read = read

    def now(self) -> float:
        return 0.0

    def now_ms(self) -> int:
        return 0

    def later(self, seconds: float, call: Callable[[], object]) -> Any:
        return Clock().callLater(0, lambda: None)

    def from_thread(self, call: Callable[[], object]) -> None:
        self.calls.put(call)

    def tls_reader(self, link: Any) -> Callable[[], Any] | None:
        return self._read if link.connections.tls is None else None

    def open(self, link: Any, timeout: float, happened: Callable[[], None]) -> Any:
        self.opened.append(link.port)

    def promise(self) -> Any:
        raise NotImplementedError

    def run(self) -> None:
        """Wait for a thread's call, and make it."""
        self.calls.get(timeout=60)()


class Client:
    """A driver with requests to two brokers."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.loop: Any = FakeLoop(read)
        self.network = Network(Metadata([("localhost", 1)]), ConnectionOptions())
        self.driver = Driver(self.network, self.loop)
        self.failures: list[Any] = []
        for port in (1, 2):
            call = Call(
                MetadataRequest, lambda _: MetadataRequest(), lambda *_: None,
                lambda error, _: self.failures.append(error),
                target=Endpoint(port, "localhost", port), timeout=30.0,
            )  # fmt: skip
            self.driver.send(call)
        self.driver.turn()


def test_connections_wait_until_a_thread_has_read_the_files() -> None:
    threads: list[threading.Thread] = []

    def read() -> str:
        threads.append(threading.current_thread())
        return "context"

    client = Client(read)
    assert client.loop.opened == []
    client.loop.run()
    assert client.loop.opened == [1, 2] and client.network.tls == "context"
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


def test_connections_that_were_closed_meanwhile_are_not_opened() -> None:
    client = Client(lambda: "context")
    first = client.network.links[0]
    client.network.abandon_link(first, 0.0)
    client.loop.run()
    assert client.loop.opened == [2]


@pytest.mark.parametrize("error", [TlsFailed("can't read ssl_ca"), RuntimeError("can't read ssl_ca")])
def test_what_can_t_be_read_fails_all_that_wait(error: Exception) -> None:
    def read() -> None:
        raise error

    client = Client(read)
    client.loop.run()
    assert client.loop.opened == [] and len(client.failures) == 2
    assert all(isinstance(failure, TlsFailed) and "ssl_ca" in str(failure) for failure in client.failures)


def test_both_event_loops_leave_reading_to_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(Authority().certificate)
    read: list[Path] = []
    read_bytes = Path.read_bytes

    def spy(self: Path) -> bytes:
        read.append(self)
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", spy)
    security = SecurityOptions(protocol="SSL", ssl_ca=str(path))

    async def asyncio_loop() -> AioLoop:
        return AioLoop()

    for loop in (asyncio.run(asyncio_loop()), TwistedLoop(Clock())):
        network = Network(Metadata([("localhost", 1)]), ConnectionOptions(security=security))
        link: Any = type("Link", (), {"connections": network})()
        reader = loop.tls_reader(link)
        assert reader is not None and not read
        network.tls = reader()
        assert read == [path] and loop.tls_reader(link) is None
        read.clear()
        network.options = ConnectionOptions()
        network.tls = None
        assert loop.tls_reader(link) is None, "without TLS nothing is read"
