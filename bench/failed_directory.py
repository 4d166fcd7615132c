"""The time for which a partition can't be written to after its leader's log directory has failed.

    python -m bench failed-directory [--rounds 10]

Three brokers with two log directories each, and a ZooKeeper; a topic of one partition with three replicas and
`min.insync.replicas=2`. A producer writes with acks=all, one record after the other. Each round renames the directory
in which the leader has the partition and puts a file in its place, and afterwards restores it and has it reopened.
Measured from the renaming: when another broker reports a new leader (elected), when a record sent after that is
acknowledged (written to), and the longest time between two acknowledgements (the gap that a producer sees).

The broker checks its directories every `log.dir.check.interval.ms` (0.5 s), so that a failure may be found that much
later, unless a file is opened in the directory before.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from bench.failover import WAIT_SECONDS, wait_until
from pylogd.client import Admin, Producer
from pylogd.local.zookeeper import LocalZooKeeper
from tests.integration.clusters.test_log_dir_failover import SETTINGS, TwoDirectories, bring_back, fail_directory

_TOPIC = "t"
_LOOK_SECONDS = 0.005
_STEADY_SECONDS = 1.0


class Writer:
    """A thread that writes one record after the other. `answers` has when each was sent and acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.answers: list[tuple[float, float]] = []
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(self._bootstrap, acks="all", linger_ms=0, delivery_timeout=WAIT_SECONDS) as producer:
            while not self._stop.is_set():
                sent = time.monotonic()
                producer.send(_TOPIC, b"v", partition=0).result()
                self.answers.append((sent, time.monotonic()))

    def after(self, moment: float) -> float | None:
        """Return when the first record sent after `moment` was acknowledged, or None."""
        return next((answered for sent, answered in list(self.answers) if sent >= moment), None)

    def gap(self, begin: float, end: float) -> float:
        """Return the longest time between two acknowledgements within an interval."""
        times = [answered for _, answered in list(self.answers)]
        return max((b - a for a, b in pairwise(times) if b >= begin and a <= end), default=0.0)


def measure(rounds: int, folder: Path | None = None) -> Iterator[dict[str, float]]:
    """Run all rounds on one cluster. Yield each round's times in seconds."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        zookeeper = LocalZooKeeper(Path(name) / "zookeeper")
        zookeeper.start()
        try:
            cluster = TwoDirectories(Path(name), zookeeper.hosts, 3, SETTINGS)
            try:
                cluster.ask(lambda admin: admin.create_topic(_TOPIC, 1, 3))
                cluster.wait_for_isr(_TOPIC, 3)
                with Writer(cluster.bootstrap) as writer:
                    for _ in range(rounds):
                        time.sleep(_STEADY_SECONDS)
                        yield _round(cluster, writer)
            finally:
                cluster.close()
        finally:
            zookeeper.stop()


def _round(cluster: TwoDirectories, writer: Writer) -> dict[str, float]:
    """Make the leader's directory fail, take the times, and restore it."""
    leader = cluster.partitions(_TOPIC)[0].leader
    other = next(node for node in cluster.brokers if node != leader)
    path = cluster.holding(leader, f"{_TOPIC}-0")
    with Admin(cluster.address(other)) as admin:
        begin = time.monotonic()
        away = fail_directory(path)
        while admin.describe_topic(_TOPIC).partitions[0].leader in (leader, -1):
            if time.monotonic() > begin + WAIT_SECONDS:
                raise RuntimeError("no other broker leads")
            time.sleep(_LOOK_SECONDS)
        elected = time.monotonic()
        wait_until(lambda: writer.after(elected) is not None, "the new leader answers")
        written = writer.after(elected)
        assert written is not None
        gap = writer.gap(begin, written)
        bring_back(path, away)
        admin.reopen_log_dir(leader, str(path))
    cluster.wait_for_isr(_TOPIC, 3)
    return {
        "failed to elected": elected - begin,
        "failed to written to at the new leader, acks=all": written - begin,
        "longest gap between two answers": gap,
    }


def main() -> None:
    """Run it and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rows = list(measure(parser.parse_args().rounds))
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:52} {statistics.median(values):8.3f} s   ({', '.join(f'{value:.3f}' for value in values)})")


if __name__ == "__main__":
    main()
