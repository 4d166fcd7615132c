"""The plan of strikes on a pipeline: which processes of mirror, loader and compactor are killed together, and when.

A seed determines it. Each strike kills a part of the mirror, a part of the loader and the whole compactor at once, and
every second one a broker as well. This module does not know how processes are killed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Victim(StrEnum):
    """What is killed by SIGKILL."""

    CONTROLLER = "mirror: its controller, a worker too"
    MIRROR_WORKER = "mirror: a worker that is not the controller"
    MIRROR = "mirror: all processes"
    LOADER = "loader: command, JVM and workers"
    DRIVER = "loader: the command's process"
    JVM = "loader: its JVM"
    PYTHON_WORKER = "loader: a Python worker"
    COMPACTOR = "compactor: command, JVM and workers"
    SERVING = "the broker of the serving cluster"
    ANALYSIS = "the broker of the analysis cluster"


class Moment(StrEnum):
    """When."""

    ANY = "any time"
    WORKING = "a Python worker of the loader runs"
    LOADING = "the loader stages data files"
    COMPACTING = "the compactor stages data files"
    PLACING = "a commit was decided, its files are being moved"


_OF_MIRROR = (Victim.CONTROLLER, Victim.MIRROR_WORKER, Victim.MIRROR)
_OF_LOADER = (Victim.LOADER, Victim.PYTHON_WORKER, Victim.JVM, Victim.DRIVER)
_BROKERS = (None, Victim.SERVING, None, Victim.ANALYSIS)
#: How often each moment comes, relatively. A Python worker may have ended while files are moved.
_MOMENTS = (Moment.ANY, Moment.WORKING, Moment.LOADING, Moment.COMPACTING, Moment.COMPACTING, Moment.PLACING)
_WITH_WORKERS = (Moment.WORKING, Moment.LOADING, Moment.COMPACTING)
_LONGEST = {Moment.ANY: 3.0, Moment.WORKING: 1.0, Moment.LOADING: 0.4, Moment.COMPACTING: 0.4}
_COMPLETE_EVERY = 5


@dataclass(frozen=True, slots=True)
class Strike:
    """One strike: what is killed together, the moment, and the seconds after the moment.

    pick: an index to choose among several processes. pause: seconds until a broker is started again. compacts: whether
    a compaction has to be committed before the next strike; without that, each one might be killed.
    """

    victims: tuple[Victim, ...]
    moment: Moment
    delay: float
    pick: int
    pause: float
    compacts: bool


def strikes(count: int, seed: int) -> Sequence[Strike]:
    """Return a plan in which victims and moments are evenly distributed."""
    rng = random.Random(f"{seed} strikes")
    mirror, loader = _evenly(_OF_MIRROR, count, rng), _evenly(_OF_LOADER, count, rng)
    moments = _evenly(_MOMENTS, count, rng)
    found = []
    for number in range(count):
        moment = moments[number]
        if loader[number] is Victim.PYTHON_WORKER and moment not in _WITH_WORKERS:
            moment = rng.choice(_WITH_WORKERS)
        broker = _BROKERS[number % len(_BROKERS)]
        victims = (mirror[number], loader[number], Victim.COMPACTOR, *([broker] if broker else []))
        delay = rng.uniform(0, _LONGEST.get(moment, 0.0))
        compacts = number % _COMPLETE_EVERY == _COMPLETE_EVERY - 2
        found.append(Strike(victims, moment, delay, rng.randrange(1000), rng.uniform(0, 2), compacts))
    return found


def _evenly(items: Sequence[T], count: int, rng: random.Random) -> list[T]:
    """Return so many items, each about equally often, in random order."""
    found: list[T] = []
    while len(found) < count:
        found += rng.sample(items, len(items))
    return found[:count]
