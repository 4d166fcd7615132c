"""A real broker in a process of its own, for the integration tests, the benchmarks and the conformance runs.

It is started as a user starts it, `pylogd broker --listen ...:0 --data DIR`, and the line that it prints says where it
listens. Every wait is on a condition and has an end. Nothing here imports pylogd: what runs is what is installed.
"""

from __future__ import annotations

import contextlib
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_SECONDS = 120.0
STOP_SECONDS = 120.0
_RESERVED: list[socket.socket] = []  # one for each port that was given out
_ADDRESS = re.compile(r"([0-9A-Za-z_.\-]+|\[[0-9a-fA-F:]+\]):(\d+)")


def pylogd_command() -> list[str]:
    """The `pylogd` command beside the running interpreter, or the checkout's where none is installed."""
    script = Path(sys.executable).with_name("pylogd")
    if script.exists():
        return [str(script)]
    return [sys.executable, "-c", "from pylogd.cli.main import main; main()"]


def free_ports(count: int) -> list[int]:
    """Port numbers that nothing listens on right now, and that no one else is given here while this process lives.

    They lie below those that the system gives to outgoing connections: a broker that is killed and started again would
    find its port taken by one now and then.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for port in random.sample(range(lowest // 2, lowest), lowest - lowest // 2):
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                _reserve(port)
                found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"there are no {count} free ports below {lowest}")


def _reserve(port: int) -> None:
    """Keep a port from runs beside this one. Raises OSError where another has it: names of sockets are unique."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0pylogd-tests-port-{port}")
    except OSError:
        mark.close()
        raise
    _RESERVED.append(mark)


class BrokerProcess:
    """One broker: its address, its process id, its log, and how it ended."""

    def __init__(
        self,
        data: Path,
        log: Path,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        port: int = 0,
        prefix: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        """Start it on `data`; its standard error goes to the end of `log`. Returns once it listens.

        `prefix` is a command that ends in running the broker, in the same process.
        """
        self.data = data
        self.log_path = log
        command = [*prefix, *pylogd_command(), "broker", "--listen", f"{host}:{port}", "--data", str(data)]
        command += arguments
        for name, value in (settings or {}).items():
            command += ["--set", f"{name}={value}"]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        self.pid = self.process.pid
        try:
            self.host, self.port = self._where_it_listens()
        except BaseException:
            self.kill()
            raise

    @property
    def address(self) -> str:
        """`host:port`, as clients take it for their bootstrap servers."""
        return f"{self.host}:{self.port}"

    def _where_it_listens(self) -> tuple[str, int]:
        stdout = self.process.stdout
        assert stdout is not None
        deadline = time.monotonic() + START_SECONDS
        seen = b""
        while not seen.endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = stdout.read1(4096) if ready else b""  # type: ignore[attr-defined]
            if not chunk:
                why = "ended" if ready else f"said nothing for {START_SECONDS:.0f} s"
                raise RuntimeError(f"the broker {why} before it listened; it said {seen!r} and logged:\n{self.log()}")
            seen += chunk
        found = _ADDRESS.search(seen.decode())
        if found is None:
            raise RuntimeError(f"no address in the broker's first line: {seen!r}")
        return found[1], int(found[2])

    def log(self) -> str:
        """All that it wrote to standard error."""
        return self.log_path.read_text(errors="replace")

    def stop(self) -> int:
        """Ask it to stop as a service manager does; its exit code. One that does not stop is killed, and an error."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the broker did not stop within {STOP_SECONDS:.0f} s:\n{self.log()}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash does, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
