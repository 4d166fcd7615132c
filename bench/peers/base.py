"""The interface of all brokers that are measured, and the kernel's figures of their processes.

Rules: a peer has a directory of its own in the given folder, and removes it at the end. Its processes are children in a
session of their own, so that none is left behind. Processor time and memory are those of the whole process tree, since
some brokers are started by a script.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from conformance.checks import Missing

START_SECONDS = 90.0
STOP_SECONDS = 60.0


class Peer(ABC):
    """A broker on a fresh directory. `started` is the time from its start to the first accepted connection."""

    name: str
    #: how a client finds it, and what kind of client: a name in bench.loads
    load: str
    #: whether a message is gone once it is consumed
    destructive = False
    host = "127.0.0.1"
    port: int
    pid: int
    started: float

    def __init__(self, folder: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=re.sub(r"\W+", "-", self.name) + "-", dir=folder))

    @property
    def address(self) -> str:
        """`host:port`, or several with commas between."""
        return f"{self.host}:{self.port}"

    @property
    def client_settings(self) -> Mapping[str, str]:
        """The settings of librdkafka without which it can't connect; empty for a listener without protection."""
        return {}

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @abstractmethod
    def start(self) -> None:
        """Start the broker on its directory, empty or as `finish` left it. Return once it accepts connections."""

    @abstractmethod
    def finish(self) -> None:
        """Stop the broker cleanly, and keep its data until `stop`."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the broker."""

    def stop(self) -> None:
        """Kill the broker and remove its data."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @abstractmethod
    def version(self) -> str:
        """Return the version, and where the broker came from."""

    @abstractmethod
    def command(self) -> str:
        """Return how the broker is started, for the report."""

    def pids(self) -> list[int]:
        """Return the ids of the process that was started and of all below it."""
        return process_tree([self.pid])

    def cpu_seconds(self) -> float:
        """Return the broker's processor time in seconds, user and system, all threads."""
        return sum(process_seconds(pid) for pid in self.pids())

    def minor_faults(self) -> int:
        """Return the minor page faults so far, all threads, with those of children that have ended."""
        return sum(process_faults(pid) for pid in self.pids())

    def resident(self) -> int:
        """Return the resident memory in bytes."""
        return sum(_resident(pid) for pid in self.pids())

    def disk(self) -> int:
        """Return the bytes that the files in the data directory occupy; holes do not count."""
        return sum(path.stat().st_blocks * 512 for path in self.data.rglob("*") if path.is_file())

    def await_accept(self, alive: Callable[[], bool], begun: float) -> None:
        """Wait until a connection is accepted, and set `started`."""
        while True:
            try:
                socket.create_connection((self.host, self.port), 1).close()
            except OSError:
                if not alive() or time.monotonic() - begun > START_SECONDS:
                    raise Missing(f"{self.name} did not accept a connection here") from None
                time.sleep(0.002)
            else:
                self.started = time.monotonic() - begun
                return


class Program(Peer):
    """A peer that is one command."""

    #: whether it runs in its own directory, where it may leave what it likes
    in_folder = True
    _process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def arguments(self) -> Sequence[str]:
        """Return the command line. Files that it needs are in `folder`."""

    def environment(self) -> Mapping[str, str]:
        """Return what to add to the environment."""
        return {}

    def command(self) -> str:
        return " ".join(self.arguments())

    def start(self) -> None:
        begun = time.monotonic()
        self.launch()
        process = self._process
        assert process is not None
        self.await_accept(lambda: process.poll() is None, begun)
        self.prepare()

    def launch(self) -> None:
        """Start the process, without waiting for anything."""
        self.data.mkdir(exist_ok=True)
        command = self.arguments()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder if self.in_folder else None,
                env=os.environ | dict(self.environment()),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def prepare(self) -> None:
        """Do what is necessary before the first client, after connections are accepted."""

    def finish(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            for pid in process_tree([self._process.pid]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def unwind_on_sigterm() -> None:
    """Have SIGTERM end this process as an exception does, so that it stops its brokers and removes their data.

    Brokers have sessions of their own, and outlive a benchmark that ends without a word. Call it in the main thread.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a session's first process to stop, then kill all that is left of the session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def process_seconds(pid: int) -> float:
    """Return the processor time of a process in seconds, user and system, all threads.

    It is read from the process's CPU clock (clock_getcpuclockid(3)), in nanoseconds; /proc/PID/stat has hundredths of a
    second.
    """
    return time.clock_gettime((~pid << 3) | 2)


def process_faults(pid: int) -> int:
    """Return the minor page faults of a process and of its children that it has waited for; 0 if it has ended.

    They are minflt and cminflt of /proc/PID/stat (proc_pid_stat(5)). Their cost is the kernel's, part of the processor
    time: memory that is touched for the first time, and pages of files that are mapped.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[7]) + int(fields[8])  # the first field after the name is the third of the line
    return 0


def read_from_disk(pids: Sequence[int]) -> int:
    """Return how many bytes these processes have caused to be read from disks, by read or sendfile (proc_pid_io(5))."""
    found = (re.search(r"^read_bytes: (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.M) for pid in pids)
    return sum(int(one[1]) for one in found if one is not None)


def process_tree(roots: Sequence[int]) -> list[int]:
    """Return the ids of these processes and of all below them."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = list(roots)
    for pid in found:
        found += children.get(pid, [])
    return found


def _resident(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


class HighestResident:
    """Watch a broker's resident memory from a thread, every 20 ms, inside a `with` block."""

    def __init__(self, peer: Peer) -> None:
        self._pids = peer.pids()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before = self.highest = peer.resident()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.highest = max(self.highest, sum(_resident(pid) for pid in self._pids))

    def __enter__(self) -> HighestResident:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
