"""Links between brokers that can be cut, one way or both, and slowed: a network namespace for each broker.

Strategy: the whole checker runs in network and mount namespaces of its own (`unshare`), so that nothing outside is
touched and nothing is left behind. In it stands a bridge; each broker gets a namespace, held by a process that sleeps,
and a wire to the bridge. A route of a broker's namespace that leads nowhere cuts its way to an address, and no other; a
token bucket on its end of the wire slows all that it sends.

Without the rights for that there are no links to cut: `why_not` says so, and the checker goes on with what is left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

#: Set in the process that runs in namespaces of its own.
INSIDE = "PYLOGD_CHAOS_INSIDE"
_TOOLS = ("unshare", "nsenter", "ip", "tc", "mount")
_NET = "10.77.0"
HUB = f"{_NET}.254"
STORE = f"{_NET}.253"


def why_not() -> str:
    """Why there can't be links to cut here, empty if there can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    steps = (
        "ip link add plc0 type bridge && ip link add plc1 type veth peer name plc2 && ip link set lo up && "
        "ip route add blackhole 10.77.0.1/32 && "
        "tc qdisc add dev plc2 root tbf rate 1mbit burst 32kbit latency 100ms && "
        "mount -t tmpfs -o size=1m tmpfs /mnt"
    )
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", steps], capture_output=True, text=True, timeout=30, check=False
    )
    if tried.returncode:
        said = tried.stderr.strip().splitlines()
        return said[-1] if said else f"unshare ended with {tried.returncode}"
    return ""


def inside() -> bool:
    """Whether this process has namespaces of its own."""
    return INSIDE in os.environ


def enter(module: str, arguments: list[str]) -> int:
    """Run a module in namespaces of its own; its exit code."""
    command = ["unshare", "--net", "--mount", "--fork", "--kill-child", sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Links:
    """The wires of `size` brokers, by node id from 1 on."""

    def __init__(self, size: int) -> None:
        self._holders: dict[int, subprocess.Popen[bytes]] = {}
        self._cut: set[tuple[int, str]] = set()
        self._slow: set[int] = set()
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "hub", "type", "bridge")
        for address in (HUB, STORE):
            _run("ip", "addr", "add", f"{address}/24", "dev", "hub")
        _run("ip", "link", "set", "hub", "up")
        for node in range(1, size + 1):
            self._add(node)

    def _add(self, node: int) -> None:
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec sleep 100000"], stdout=-1)
        assert holder.stdout is not None
        holder.stdout.readline()
        self._holders[node] = holder
        _run("ip", "link", "add", f"wire{node}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", f"wire{node}", "master", "hub")
        _run("ip", "link", "set", f"wire{node}", "up")
        self._inside(node, "ip", "link", "set", "lo", "up")
        self._inside(node, "ip", "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
        self._inside(node, "ip", "link", "set", "eth0", "up")

    def close(self) -> None:
        """Let go of the namespaces."""
        for node, holder in self._holders.items():
            # The kernel takes them away with their namespaces too, but in its own time.
            with contextlib.suppress(RuntimeError):
                _run("ip", "link", "del", f"wire{node}")
            holder.kill()
            holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()
        with contextlib.suppress(RuntimeError):
            _run("ip", "link", "del", "hub")

    def address(self, node: int) -> str:
        """Where a broker listens."""
        return f"{_NET}.{node}"

    def prefix(self, node: int) -> list[str]:
        """What runs a command in a broker's namespace."""
        return ["nsenter", "--net", f"--target={self._holders[node].pid}"]

    def _inside(self, node: int, *command: str) -> None:
        _run(*self.prefix(node), *command)

    def cut(self, node: int, address: str) -> None:
        """Nothing that a broker sends to an address arrives."""
        if (node, address) not in self._cut:
            self._cut.add((node, address))
            self._inside(node, "ip", "route", "add", "blackhole", f"{address}/32")

    def slow(self, node: int, kilobits: int) -> None:
        """A broker sends so many kilobits a second at most."""
        if node not in self._slow:
            self._slow.add(node)
            rate = f"{kilobits}kbit"
            self._inside(
                node, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "32kbit",
                "latency", "400ms",
            )  # fmt: skip

    def heal(self) -> None:
        """Every way is open again, and as fast as it was."""
        for node, address in self._cut:
            with contextlib.suppress(RuntimeError):
                self._inside(node, "ip", "route", "del", "blackhole", f"{address}/32")
        for node in self._slow:
            with contextlib.suppress(RuntimeError):
                self._inside(node, "tc", "qdisc", "del", "dev", "eth0", "root")
        self._cut.clear()
        self._slow.clear()
