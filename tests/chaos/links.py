"""Links between brokers that can be cut, in one direction or both, and slowed: a network namespace for each broker.

Strategy: the whole checker runs in separate network and mount namespaces (`unshare`), so that nothing outside changes
and nothing is left behind. It has a bridge; each broker has a namespace, held by a sleeping process, and a veth pair to
the bridge. A blackhole route in a broker's namespace cuts its way to one address; a token bucket on its end of the pair
limits what it sends.

Without the necessary rights links can't be cut: `why_not` says so, and the checker runs without these faults.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

#: Set in the process that runs in separate namespaces.
INSIDE = "PYLOGD_CHAOS_INSIDE"
_TOOLS = ("unshare", "nsenter", "ip", "tc", "mount")
_NET = "10.77.0"
HUB = f"{_NET}.254"
STORE = f"{_NET}.253"


def why_not() -> str:
    """Return why links can't be cut on this machine, or an empty string if they can."""
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
    """Return whether this process runs in separate namespaces."""
    return INSIDE in os.environ


def enter(module: str, arguments: list[str]) -> int:
    """Run a module in separate namespaces. Return its exit code."""
    command = ["unshare", "--net", "--mount", "--fork", "--kill-child", sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Links:
    """The links of `size` brokers with node ids from 1 on."""

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
        """Remove the namespaces."""
        for node, holder in self._holders.items():
            # The kernel would remove them with their namespaces, but later.
            with contextlib.suppress(RuntimeError):
                _run("ip", "link", "del", f"wire{node}")
            holder.kill()
            holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()
        with contextlib.suppress(RuntimeError):
            _run("ip", "link", "del", "hub")

    def address(self, node: int) -> str:
        """Return the address on which a broker listens."""
        return f"{_NET}.{node}"

    def prefix(self, node: int) -> list[str]:
        """Return the prefix of a command that runs in a broker's namespace."""
        return ["nsenter", "--net", f"--target={self._holders[node].pid}"]

    def _inside(self, node: int, *command: str) -> None:
        _run(*self.prefix(node), *command)

    def cut(self, node: int, address: str) -> None:
        """Drop everything that a broker sends to an address."""
        if (node, address) not in self._cut:
            self._cut.add((node, address))
            self._inside(node, "ip", "route", "add", "blackhole", f"{address}/32")

    def slow(self, node: int, kilobits: int) -> None:
        """Limit what a broker sends, in kilobits a second."""
        if node not in self._slow:
            self._slow.add(node)
            rate = f"{kilobits}kbit"
            self._inside(
                node, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "32kbit",
                "latency", "400ms",
            )  # fmt: skip

    def heal(self) -> None:
        """Restore all links."""
        for node, address in self._cut:
            with contextlib.suppress(RuntimeError):
                self._inside(node, "ip", "route", "del", "blackhole", f"{address}/32")
        for node in self._slow:
            with contextlib.suppress(RuntimeError):
                self._inside(node, "tc", "qdisc", "del", "dev", "eth0", "root")
        self._cut.clear()
        self._slow.clear()
