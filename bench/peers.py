"""The two brokers that are measured, pylogd and the bare ceiling, behind one face; what the kernel says of them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.brokers import BrokerProcess, free_ports

START_SECONDS = 30.0


class Peer(ABC):
    """A running broker on a fresh directory. `started` is the time from its start to the first accepted connection."""

    name: str
    host: str
    port: int
    pid: int
    started: float

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def cpu_seconds(self) -> float:
        """Processor time that it has used, user and system, all threads.

        The kernel's clock of another process (clock_getcpuclockid(3), which Python has for threads only): what
        /proc/PID/stat counts, in nanoseconds where that has hundredths of a second.
        """
        return time.clock_gettime((~self.pid << 3) | 2)

    def resident(self) -> int:
        """Resident memory in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"no resident size of process {self.pid}")

    @abstractmethod
    def stop(self) -> None:
        """End it and remove its data."""

    def _await_accept(self, alive: Callable[[], bool], begun: float) -> None:
        while True:
            try:
                socket.create_connection((self.host, self.port), 1).close()
            except OSError:
                if not alive() or time.monotonic() - begun > START_SECONDS:
                    raise RuntimeError(f"{self.name} did not accept a connection") from None
                time.sleep(0.002)
            else:
                self.started = time.monotonic() - begun
                return


class Pylogd(Peer):
    """The installed pylogd, started as a user starts it."""

    name = "pylogd"

    def __init__(self, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pylogd-", dir=folder))
        begun = time.monotonic()
        self._process = BrokerProcess(self._folder / "data", self._folder / "log")
        self.host, self.port, self.pid = self._process.host, self._process.port, self._process.pid
        self._await_accept(lambda: self._process.process.poll() is None, begun)

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self._folder / "data"

    def finish(self) -> None:
        """Stop it in order, and leave its data until `stop`."""
        self._process.stop()

    def stop(self) -> None:
        try:
            self._process.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class Ceiling(Peer):
    """bench/ceiling_broker.py: one topic `t`, one partition, and the least that can serve it."""

    name = "ceiling"
    host = "127.0.0.1"

    def __init__(self, folder: Path) -> None:
        [self.port] = free_ports(1)
        begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ceiling_broker.py")), str(self.port)],
            env=os.environ | {"TMPDIR": str(folder)},
        )
        self.pid = self._process.pid
        self._await_accept(lambda: self._process.poll() is None, begun)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


PEERS: dict[str, Callable[[Path], Peer]] = {"pylogd": Pylogd, "ceiling": Ceiling}


@contextmanager
def running(name: str, folder: Path) -> Iterator[Peer]:
    """A fresh broker for the length of a `with`."""
    peer = PEERS[name](folder)
    try:
        yield peer
    finally:
        peer.stop()


class HighestResident:
    """Watches a broker's resident memory from a thread, every 20 ms, for the length of a `with`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before = self.highest = peer.resident()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.highest = max(self.highest, self._peer.resident())

    def __enter__(self) -> HighestResident:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
