"""Freeze all disks of the controller, as frozen file systems do, and see that another broker replaces it meanwhile.

The controller stands still in its next write, or waits for threads that do; its connections stay open, and its process
lives. Faults by `tests/preload.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container, Sequence
from typing import Final

from pylogd.base.errors import PylogdError
from tests.chaos.clusters import ChaosCluster

#: How long it may take on a busy machine, with a new start of ZooKeeper or two, until others have replaced it.
REPLACED_SECONDS: Final = 90.0


class FrozenControllers:
    """Brokers whose disks hang. nodes: until when. problems: controllers that nobody has replaced."""

    def __init__(self, cluster: ChaosCluster, rng: random.Random, kill: Callable[[int], object]) -> None:
        """kill: kills a broker, and starts it again later."""
        self.nodes: dict[int, float] = {}
        self.problems: list[str] = []
        self._cluster = cluster
        self._rng = rng
        self._kill = kill

    def freeze(self, running: Sequence[int], spared: Container[int]) -> str:
        """Freeze the disks of the controller, and wait until another broker has replaced it. Return what was done.

        At times another broker is killed first, whose death the next controller has to handle. spared: brokers whose
        disks have another fault.
        """
        node = self._controller(running)
        others = [other for other in running if other != node]
        if node is None or node not in running or node in spared or not others:
            return ""
        self.nodes[node] = time.monotonic() + REPLACED_SECONDS
        self._cluster.faults[node].freeze(True)
        what = f"the disks of {node}, the controller, hang"
        if len(others) > 1 and self._rng.random() < 0.5:
            killed = others.pop(self._rng.randrange(len(others)))
            self._kill(killed)
            what += f"; kill {killed}"
        deadline = time.monotonic() + REPLACED_SECONDS
        while (found := self._controller(others)) not in others and time.monotonic() < deadline:
            time.sleep(0.2)
        self.nodes[node] = time.monotonic() + self._rng.uniform(0.0, 6.0)
        if found not in others:
            self.problems.append(f"{what}: nobody has replaced it within {REPLACED_SECONDS:.0f} s")
        return f"{what}; {found} has replaced it"

    def _controller(self, nodes: Sequence[int]) -> int | None:
        """Return which broker is the controller, as the first of these brokers says; None if none says anything."""
        try:
            return self._cluster.ask(lambda admin: admin.describe_cluster(), nodes[0]).controller if nodes else None
        except (PylogdError, OSError):
            return None

    def thaw(self, now: float = float("inf")) -> list[int]:
        """Let the disks continue whose time has come by now; return their brokers."""
        due = [node for node, until in self.nodes.items() if until <= now]
        for node in due:
            del self.nodes[node]
            self._cluster.faults[node].freeze(False)
        return due
