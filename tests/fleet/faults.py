"""The faults from which the fleet has to fail over: what is done to which brokers, and how it is undone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.fleet.cluster import RACKS, Fleet

#: What is done to one broker of the fleet.
Deed = Callable[[Fleet, int], object]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. short: its name in a plot. victims: whom it concerns in a round. strike, heal: done to each in turn."""

    name: str
    short: str
    victims: Callable[[Fleet, int], Sequence[int]]
    strike: Deed
    heal: Deed


def a_controller(fleet: Fleet, _: int) -> Sequence[int]:
    """Return the controller."""
    return (fleet.controller(),)


def another(fleet: Fleet, number: int) -> Sequence[int]:
    """Return a broker that is not the controller: each round another one, of each label in turn."""
    controller = fleet.controller()
    others = [node for node in sorted(fleet.brokers) if node != controller]
    half = len(others) // 2
    return (others[(number // 2 + (number % 2) * half) % len(others)],)


def a_rack(fleet: Fleet, number: int) -> Sequence[int]:
    """Return all brokers of a rack, of the racks in turn."""
    return [node for node in sorted(fleet.brokers) if fleet.racks[node] == RACKS[number % len(RACKS)]]


def _start(fleet: Fleet, node: int) -> None:
    """Start a broker that was killed. Others of its rack may start at the same time."""
    fleet.start(node, wait=False)


def _kill(fleet: Fleet, node: int) -> None:
    fleet.kill(node)


def _freeze(fleet: Fleet, node: int) -> None:
    fleet.faults[node].freeze(True)


def _thaw(fleet: Fleet, node: int) -> None:
    fleet.faults[node].freeze(False)


def _stand(fleet: Fleet, node: int) -> None:
    fleet.faults[node].stand_still(True)


def _continue(fleet: Fleet, node: int) -> None:
    fleet.faults[node].stand_still(False)


def _cut(fleet: Fleet, node: int) -> None:
    fleet.links[node].cut()


def _mend(fleet: Fleet, node: int) -> None:
    fleet.links[node].mend()


FAULTS: Final = (
    Fault("a broker is killed (`kill -9`)", "killed", another, _kill, _start),
    Fault("a broker is halted (`SIGSTOP`)", "halted", another, Fleet.pause, Fleet.resume),
    Fault("a broker's reactor stands still, its other threads go on", "reactor", another, _stand, _continue),
    Fault("a broker's disk hangs", "disk", another, _freeze, _thaw),
    Fault("the controller's disk hangs", "disk of controller", a_controller, _freeze, _thaw),
    Fault("the controller is killed", "controller", a_controller, _kill, _start),
    Fault("a broker is cut off from ZooKeeper", "cut off", another, _cut, _mend),
    Fault("a rack is killed", "rack", a_rack, _kill, _start),
)


def strike(fault: Fault, fleet: Fleet, victims: Sequence[int]) -> float:
    """Let a fault happen. Return when it began (`time.monotonic`)."""
    began = time.monotonic()
    for node in victims:
        fault.strike(fleet, node)
    return began


def heal(fault: Fault, fleet: Fleet, victims: Sequence[int]) -> None:
    """Undo a fault. Brokers that start have not been waited for."""
    for node in victims:
        fault.heal(fleet, node)
