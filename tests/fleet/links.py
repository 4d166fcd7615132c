"""The link from one broker to ZooKeeper: a process that passes everything on, unless it is halted.

Run as `python -m tests.fleet.links PORT TO`. A halted process (SIGSTOP) is a link that drops everything: connections
stay open, new ones are taken by the kernel, and nothing is answered.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from pylogd.base.ports import free_ports
from pylogd.local.launch import bound
from tests.mirror.proxy import HOST, Proxy

CHECKOUT = Path(__file__).resolve().parents[2]


class StoreLink:
    """A link to the port `to` of this machine. hosts: `host:port` of its near end."""

    def __init__(self, to: int) -> None:
        """Return once it passes things on."""
        (port,) = free_ports(1)
        self.hosts = f"{HOST}:{port}"
        command = [sys.executable, "-m", "tests.fleet.links", str(port), str(to)]
        self._process = subprocess.Popen(bound(command, signal.SIGKILL), stdout=subprocess.PIPE, cwd=CHECKOUT)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the link to port {to} ended with {self._process.wait()}")

    def cut(self) -> None:
        """Pass nothing on."""
        self._process.send_signal(signal.SIGSTOP)

    def mend(self) -> None:
        """Pass on what has arrived, and what will."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def main(arguments: list[str]) -> None:
    """Pass on until the process is killed."""
    port, to = map(int, arguments)
    Proxy(port, to)
    print("ready", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
