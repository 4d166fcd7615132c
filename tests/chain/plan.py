"""The plan of a run: what is killed or frozen, in which order, and when. A seed determines it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Victim(StrEnum):
    """What is killed by SIGKILL, or frozen by SIGSTOP."""

    BROKER = "a broker that is not the controller"
    CONTROLLER = "the broker that is the controller"
    MIRROR = "a worker of the mirror"
    LOADER = "the loader: command, JVM and Python workers"
    CONSUMER = "a consumer, and one that catches up"
    AUDIT = "the audit service"
    BALANCER = "the balancer"
    FREEZE = "frozen, for longer than the lease: a consumer, and one that catches up"
    PRODUCER = "a producer, whose buffer is full because the balancer was killed before"


@dataclass(frozen=True, slots=True)
class Strike:
    """One strike. pick: an index to choose among processes. pause: seconds until the victim is started again.

    delay: seconds from the moment at which a consumer that catches up has its partitions.
    """

    victim: Victim
    pick: int
    pause: float
    delay: float


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a run. Times are in seconds.

    events: of all producers together. rounds: how often each victim is struck. a_second: events a second of all
    producers. session: of brokers, lease: of consumers in ZooKeeper. window, period: of the audit. loads_first:
    whether the first strike waits for a commit of the loader.
    """

    events: int = 300_000
    rounds: int = 3
    seed: int = 1
    a_second: int = 800
    padding: int = 150
    producers: int = 3
    members: int = 3
    partitions: int = 6
    session: float = 6.0
    lease: float = 4.0
    window: int = 5
    period: int = 30
    loads_first: bool = True


#: A short run, for `make test-long`. With this seed the loader, which takes longest to start again, is struck first.
QUICK = Setting(
    events=3_000, rounds=1, a_second=150, producers=2, members=2, partitions=3, session=3.0, lease=1.5, window=1,
    period=5, loads_first=False, seed=47,
)  # fmt: skip


def strikes(setting: Setting) -> Sequence[Strike]:
    """Return the plan: in each round every victim once, in random order."""
    rng = random.Random(f"{setting.seed} chain")
    found = []
    for _ in range(setting.rounds):
        for victim in rng.sample(list(Victim), len(Victim)):
            found.append(Strike(victim, rng.randrange(1000), rng.uniform(0.5, 2.0), rng.uniform(0.0, 0.25)))
    return found
