"""A run of the checker under the faults of `tests.chaos`: all of them, for the topics of the coordinators too."""

from __future__ import annotations

import time
from collections import Counter

from pylogd.local.zookeeper import LocalZooKeeper
from tests.chaos.checker import Chaos
from tests.chaos.clusters import ChaosCluster
from tests.chaos.nemesis import HEAL_SECONDS, Nemesis
from tests.transactions_check.run import Result, run, topics


class TransactionChaos(Chaos):
    """One run. `result` is its outcome; `outcome.faults` says what else went wrong."""

    result: Result
    settle_seconds = 120.0
    with_java = False

    @property
    def _topics(self) -> dict[str, int]:
        return topics(with_java=self.with_java)

    def _work(self, cluster: ChaosCluster, store: LocalZooKeeper) -> None:
        def trouble() -> Counter[str]:
            return self._inject(cluster, store)

        self.result = run(
            cluster.bootstrap, self.outcome.seed, self.outcome.brokers, trouble, self.settle_seconds,
            with_java=self.with_java,
        )  # fmt: skip

    def _inject(self, cluster: ChaosCluster, store: LocalZooKeeper) -> Counter[str]:
        """Inject faults, heal them, and wait until all replicas are in sync. Return how many faults there were."""
        for topic in self._topics:
            cluster.wait_for_isr(topic, 3)
        nemesis = Nemesis(cluster, store, self._topics, self._rng, self.say, expands=False)
        try:
            end = time.monotonic() + self._seconds
            while time.monotonic() < end:
                nemesis.trouble()
                time.sleep(self._rng.uniform(0.3, 3.0))
            self.outcome.faults += nemesis.heal()
            self.say("everything is healed")
            cluster.until(lambda: self._all_whole(cluster), "that all replicas are in sync", HEAL_SECONDS)
        finally:
            self.outcome.faults += nemesis.heal()
            nemesis.close()
        return nemesis.troubles

    def _all_whole(self, cluster: ChaosCluster) -> bool:
        """Return whether all brokers report the same, with all replicas in sync, of all topics."""
        for topic in self._topics:
            found, *others = (cluster.partitions(topic, node) for node in cluster.ports)
            if any(seen != found for seen in others):
                return False
            if any(len(one.isr) != 3 or len(one.replicas) != 3 or one.leader < 0 for one in found):
                return False
        return True
