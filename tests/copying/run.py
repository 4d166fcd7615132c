"""Copy a topic in transactions while copiers and brokers fail, and check that each record was copied once, in order.

Strategy: producers write to the source, copiers copy it (`copiers`), and the faults of `tests.chaos` are injected in
three brokers. Then everything is healed, the producers end, and the copiers go on until the group has committed the end
of the source. What is committed in each partition of the target has to be what is in the same partition of the source.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from pylogd.base.errors import PylogdError
from pylogd.local.zookeeper import LocalZooKeeper
from tests.chaos.clusters import ChaosCluster, running
from tests.chaos.links import Links
from tests.chaos.logs import lost
from tests.chaos.nemesis import HEAL_SECONDS, Nemesis
from tests.chaos.workload import ConfluentWriter
from tests.copying.comparison import Rows, compare
from tests.copying.copiers import GROUP, Copiers

SOURCE, TARGET, PARTITIONS = "source", "target", 4
#: All topics, and how many partitions they have.
_TOPICS: Final = {SOURCE: PARTITIONS, TARGET: PARTITIONS, "__consumer_offsets": 2, "__transaction_state": 2}
_SETTINGS: Final = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}
_COPIERS: Final = 3
_STEP_SECONDS: Final = 60.0


@dataclass(slots=True)
class Outcome:
    """The outcome of a run. `faults` is empty if each record was copied once."""

    seed: int
    seconds: float
    troubles: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    copied: int = 0
    aborted: int = 0
    faults: list[str] = field(default_factory=list)


class Copying:
    """One run. `tell` is called with each event."""

    def __init__(
        self, folder: Path, seed: int, seconds: float, *, links: bool, preload: bool, tell: Callable[[str], object]
    ) -> None:
        self.outcome = Outcome(seed, seconds)
        self._folder = folder
        self._rng = random.Random(seed)
        self._links = Links(3) if links else None
        self._preload = preload
        self._tell = tell
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Report an event with its time."""
        self._tell(f"{time.monotonic() - self._began:7.1f}  {text}")

    def run(self) -> Outcome:
        """Start the cluster, copy during faults, heal, and compare."""
        with running(
            self._folder, 3, self._links, self._preload, self.outcome.faults, _SETTINGS
        ) as (cluster, store):  # fmt: skip
            self._work(cluster, store)
        return self.outcome

    def _work(self, cluster: ChaosCluster, store: LocalZooKeeper) -> None:
        for topic in (SOURCE, TARGET):
            cluster.ask(lambda admin, topic=topic: admin.create_topic(topic, PARTITIONS, 3))  # type: ignore[misc]
            cluster.wait_for_isr(topic, 3)
        writers = [ConfluentWriter(cluster.bootstrap, SOURCE, index, index) for index in range(PARTITIONS)]
        copiers = Copiers(_COPIERS, cluster.bootstrap, (SOURCE, TARGET), self._folder, self._rng, self.say)
        try:
            for writer in writers:
                writer.start()
            copiers.follow()
            self._wait_until_something_is_copied(cluster)
            nemesis = Nemesis(cluster, store, _TOPICS, self._rng, self.say, expands=False)
            try:
                self._trouble(nemesis, copiers)
            finally:
                self.outcome.faults += nemesis.heal()
                self.outcome.troubles = nemesis.troubles + copiers.troubles
                nemesis.close()
            self._finish(cluster, writers, copiers)
        finally:
            copiers.close()
        self._compare(cluster, writers)

    def _wait_until_something_is_copied(self, cluster: ChaosCluster) -> None:
        """Wait until the internal topics are there, with all replicas: what is guarded has to be known."""
        cluster.until(lambda: sum(self._ends(cluster, TARGET).values()) > 0, "that something is copied")
        for topic in _TOPICS:
            cluster.wait_for_isr(topic, 3)

    def _trouble(self, nemesis: Nemesis, copiers: Copiers) -> None:
        end = time.monotonic() + self.outcome.seconds
        while time.monotonic() < end:
            nemesis.trouble()
            if self._rng.random() < 0.3:
                copiers.trouble()
            time.sleep(self._rng.uniform(0.3, 3.0))
            copiers.follow()

    def _finish(self, cluster: ChaosCluster, writers: list[ConfluentWriter], copiers: Copiers) -> None:
        """Let the producers deliver what they have, and the copiers copy it."""
        self.say("everything is healed")
        for topic in _TOPICS:
            cluster.wait_for_isr(topic, 3)
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(400)
            self.outcome.faults += [writer.failure] if writer.failure else []
        ends = self._ends(cluster, SOURCE)
        deadline = time.monotonic() + HEAL_SECONDS
        while (committed := self._committed(cluster)) != ends:
            copiers.follow()
            if time.monotonic() > deadline:
                self.outcome.faults.append(f"the group has committed {committed}, and the source ends at {ends}")
                return
            time.sleep(0.5)
        self.say("all is copied")

    # -- what is there

    def _reader(self, cluster: ChaosCluster) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": cluster.bootstrap, "group.id": GROUP, "isolation.level": "read_committed",
                "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0,
            }
        )  # fmt: skip

    def _ends(self, cluster: ChaosCluster, topic: str) -> dict[int, int]:
        """Return where what is committed ends."""
        reader = self._reader(cluster)
        try:
            return {
                index: reader.get_watermark_offsets(TopicPartition(topic, index, OFFSET_END), _STEP_SECONDS)[1]
                for index in range(PARTITIONS)
            }
        except KafkaException as error:
            raise PylogdError(str(error)) from error
        finally:
            reader.close()

    def _committed(self, cluster: ChaosCluster) -> dict[int, int]:
        """Return what the group has committed; nothing while a transaction is open."""
        reader = self._reader(cluster)
        try:
            found = reader.committed([TopicPartition(SOURCE, index) for index in range(PARTITIONS)], 10.0)
            return {place.partition: place.offset for place in found}
        except KafkaException:
            return {}
        finally:
            reader.close()

    def _read(self, cluster: ChaosCluster, topic: str) -> dict[int, Rows]:
        """Return what is committed in a topic."""
        reader = self._reader(cluster)
        found: dict[int, Rows] = {index: [] for index in range(PARTITIONS)}
        reader.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        left, deadline = set(found), time.monotonic() + HEAL_SECONDS
        while left and time.monotonic() < deadline:
            message = reader.poll(1.0)
            if message is None:
                continue
            error, index = message.error(), message.partition()
            assert index is not None
            if error is None:
                found[index].append((message.offset() or 0, message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(index)
        reader.close()
        if left:
            self.outcome.faults.append(f"{topic}: partitions {left} can't be read to their ends")
        return found

    def _compare(self, cluster: ChaosCluster, writers: list[ConfluentWriter]) -> None:
        source, target = self._read(cluster, SOURCE), self._read(cluster, TARGET)
        outcome = self.outcome
        for writer in writers:
            outcome.acknowledged += len(writer.acked)
            outcome.faults += [f"{writer.name} was refused {text}" for text in writer.refused[:3]]
            outcome.faults += lost(writer, dict(source[writer.partition]))
        outcome.faults += [fault for index in source for fault in compare(index, source[index], target[index])]
        outcome.copied = sum(map(len, target.values()))
        ends = self._ends(cluster, TARGET)
        outcome.aborted = sum(ends.values()) - outcome.copied
