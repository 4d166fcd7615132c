"""What is killed, and when: a list that follows from a seed.

A moment is what the lake's directory, or the loader's processes, show: so that each step of a commit is hit, however
fast the machine is. Must not know: how anything is killed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Victim(StrEnum):
    """What dies, by SIGKILL."""

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


#: Of each victim as many as the issue's three kinds need; only a cluster has executors.
_VICTIMS = (
    *(Victim.LOADER, Victim.DRIVER, Victim.JVM, Victim.LOADER, Victim.JVM, Victim.DRIVER),
    *(Victim.WORKER,) * 5,
    *(Victim.BROKER,) * 4,
)
_WITH_EXECUTORS = (*_VICTIMS[:3], *(Victim.EXECUTOR,) * 5, *_VICTIMS[6:9], *_VICTIMS[-2:])
_MOMENTS = {
    Victim.WORKER: (Moment.WORKING, Moment.WRITING),  # at others there is none
    Victim.EXECUTOR: (Moment.WORKING, Moment.WRITING, Moment.PLACING),
    Victim.BROKER: (Moment.ANY, Moment.WORKING, Moment.WRITING),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """A victim, the moment, how many seconds behind it, and which of several (any number). `pause`: how long a broker
    stays away.
    """

    victim: Victim
    moment: Moment
    delay: float
    pick: int
    pause: float


def plan(kills: int, seed: int, *, executors: bool) -> Sequence[Kill]:
    """So many kills. Every victim comes up before one comes up again as often as it does in the list of them."""
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
