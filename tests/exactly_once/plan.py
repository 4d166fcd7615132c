"""The plan of kills: what is killed, and at which moment, determined by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Victim(StrEnum):
    """What is killed by SIGKILL."""

    QUERY = "query: its process, JVM and workers"
    DRIVER = "driver: the query's process"
    JVM = "driver: its JVM"
    WORKER = "Python worker"
    BROKER = "broker"


class Moment(StrEnum):
    """When."""

    ANY = "any time"
    WORKING = "an epoch is planned, and not committed"
    OPEN = "the epoch's transaction is open or being ended"
    RECORDED = "the epoch was committed, and Spark has not noted that"


_VICTIMS = (
    *(Victim.QUERY, Victim.DRIVER, Victim.JVM),
    *(Victim.WORKER,) * 3,
    *(Victim.BROKER,) * 4,
)
_LONGEST = {Moment.ANY: 4.0, Moment.WORKING: 1.0}


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


def plan(kills: int, seed: int) -> Sequence[Kill]:
    """Return a plan in which victims and moments are evenly distributed."""
    rng = random.Random(seed)
    victims: list[Victim] = []
    moments: list[Moment] = []
    while len(victims) < kills:
        victims += rng.sample(_VICTIMS, len(_VICTIMS))
    while len(moments) < kills:
        moments += rng.sample(list(Moment), len(Moment))
    return [
        Kill(victim, moment, rng.uniform(0, _LONGEST.get(moment, 0.0)), rng.randrange(1000), rng.uniform(0, 4))
        for victim, moment in zip(victims[:kills], moments, strict=False)
    ]
