"""The plan of kills: what is killed, and at which moment, determined by a seed.

Moments are defined by the state of the lake's directory or of the loader's processes, so that every step of a commit is
hit on machines of any speed. This module does not know how processes are killed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Victim(StrEnum):
    """What is killed by SIGKILL."""

    LOADER = "loader: command, JVM and workers"
    DRIVER = "driver: the command's process"
    JVM = "driver: its JVM"
    EXECUTOR = "executor's JVM"
    WORKER = "Python worker"
    BROKER = "broker"


class Moment(StrEnum):
    """When."""

    ANY = "any time"
    WORKING = "a Python worker runs"
    WRITING = "data files are being staged"
    DECIDING = "a commit is about to be decided"
    PLACING = "a commit was decided, its files are being moved"


#: How often each victim is killed, relatively. Executors exist only on a cluster.
_VICTIMS = (
    *(Victim.LOADER, Victim.DRIVER, Victim.JVM, Victim.LOADER, Victim.JVM, Victim.DRIVER),
    *(Victim.WORKER,) * 5,
    *(Victim.BROKER,) * 4,
)
_WITH_EXECUTORS = (*_VICTIMS[:3], *(Victim.EXECUTOR,) * 5, *_VICTIMS[6:9], *_VICTIMS[-2:])
_MOMENTS = {
    Victim.WORKER: (Moment.WORKING, Moment.WRITING),  # there is none at other moments
    Victim.EXECUTOR: (Moment.WORKING, Moment.WRITING, Moment.PLACING),
    Victim.BROKER: (Moment.ANY, Moment.WORKING, Moment.WRITING),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill: the victim, the moment, seconds after the moment, and an index to choose among several processes.

    pause: seconds until a broker is restarted.
    """

    victim: Victim
    moment: Moment
    delay: float
    pick: int
    pause: float


def plan(kills: int, seed: int, *, executors: bool) -> Sequence[Kill]:
    """Return a plan in which the victims are evenly distributed."""
    rng = random.Random(seed)
    victims: list[Victim] = []
    while len(victims) < kills:
        victims += rng.sample(known := _WITH_EXECUTORS if executors else _VICTIMS, len(known))
    found = []
    for victim in victims[:kills]:
        moment = rng.choice(_MOMENTS.get(victim, tuple(Moment)))
        longest = {Moment.ANY: 9.0, Moment.WORKING: 1.0, Moment.WRITING: 0.4}.get(moment, 0.0)
        found.append(Kill(victim, moment, rng.uniform(0, longest), rng.randrange(1000), rng.uniform(0, 4)))
    return found
