"""What a disk that hangs does to topics on another disk, with `log.write.queues` and without.

    python -m bench.isolation [--seconds 10] [--pairs 3] [--write bench/ISOLATION.md]

One broker with a data directory on each of two ext4 file systems (loop devices), the metadata store on neither. Steady
producers of small records with acks=1 on both, and a group member that sends heartbeats. After a while without trouble
one file system is frozen (FIFREEZE) under load, and thawed later by another process. Measured for each arm, by turns:
latency of the producers on the other disk and of heartbeats before and during the freeze, how soon those on the frozen
disk are refused once their queue is full, and whether all that was acknowledged is there after the thaw. With
`--give-up` the freeze lasts longer than `log.dir.failure.timeout.ms`: the directory fails, and is reopened afterwards.

Needs root and a kernel with loop devices: where freezing is not possible it says why, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.kuaishou.cgroups import Unavailable
from bench.kuaishou.disks import Disk, check_tools, make_disk
from pylogd.client import Consumer
from pylogd.errors import ErrorCode
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pylogd.wire.records import encode_batch
from tests.rawclient import RawClient, create_topic, end_offset

DISK_BYTES = 256 << 20
#: Producers on the disk that is frozen: more than its queue holds, so that it fills.
FROZEN_PRODUCERS = 12
QUEUE_REQUESTS = 6
PAUSE = 0.004  # seconds between two requests of a producer
_PATIENCE = 60.0
_VALUE = bytes(1000)
_TOPICS = 4
_ARMS = {"queues": "always", "stock": "off"}


class Samples:
    """When requests were sent, how long their answers took, and what they were."""

    def __init__(self) -> None:
        self.all: list[tuple[float, float, int]] = []

    def add(self, sent: float, code: int) -> None:
        self.all.append((sent, time.monotonic() - sent, code))

    def between(self, start: float, end: float, *codes: int) -> list[float]:
        """Return the latencies, ascending, of requests that were sent in a span and answered with one of `codes`."""
        return sorted(took for sent, took, code in self.all if start <= sent < end and code in codes)


def share(values: Sequence[float], part: float) -> float | None:
    """Return the value below which `part` of ascending values lie, in milliseconds; None if there is none."""
    return round(values[min(int(len(values) * part), len(values) - 1)] * 1000, 2) if values else None


class Load:
    """Clients in threads, each with a connection of its own, until `stop`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.stopping = threading.Event()
        self.acknowledged: dict[str, set[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._numbers = iter(range(1 << 60))

    def produce(self, topic: str) -> Samples:
        """Have a producer send one record after the other."""
        return self._start(self._produce, topic)

    def heartbeat(self, group: str) -> Samples:
        """Have a member of a group send heartbeats."""
        return self._start(self._heartbeat, group)

    def _start(self, function: Any, *args: Any) -> Samples:
        samples = Samples()
        self._threads.append(threading.Thread(target=function, args=(samples, *args), daemon=True))
        self._threads[-1].start()
        return samples

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _produce(self, samples: Samples, topic: str) -> None:
        acknowledged = self.acknowledged.setdefault(topic, set())
        with RawClient(self.address, patience=_PATIENCE) as client:
            while not self.stopping.wait(PAUSE):
                key = b"%d" % next(self._numbers)
                records = encode_batch([(key, _VALUE, time.time_ns() // 1_000_000, ())])
                request = ProduceRequest(None, 1, 30_000, [TopicProduceData(topic, bytes(16), [
                    PartitionProduceData(0, records)])])  # fmt: skip
                sent = time.monotonic()
                code = client.request(request, 9).responses[0].partition_responses[0].error_code
                samples.add(sent, code)
                if not code:
                    acknowledged.add(key)

    def _heartbeat(self, samples: Samples, group: str) -> None:
        with RawClient(self.address, patience=_PATIENCE) as client:
            member, generation = join(client, group)
            while not self.stopping.wait(0.02):
                sent = time.monotonic()
                samples.add(sent, client.request(HeartbeatRequest(group, generation, member), 3).error_code)


def join(client: RawClient, group: str) -> tuple[str, int]:
    """Join a group as its only member; return the member's id and the generation."""
    while client.request(FindCoordinatorRequest(group, 0), 2).error_code:
        time.sleep(0.1)
    member = ""
    while True:
        joined = client.request(
            JoinGroupRequest(group, 30_000, 30_000, member, None, "consumer", [JoinGroupRequestProtocol("range", b"")]),
            5,
        )
        member = joined.member_id or member
        if not joined.error_code:
            break
        time.sleep(0.1)
    synced = client.request(
        SyncGroupRequest(
            group, joined.generation_id, member, None, None, None, [SyncGroupRequestAssignment(member, b"")]
        ),
        3,
    )
    assert not synced.error_code, synced
    return member, joined.generation_id


@contextmanager
def running(disks: Sequence[Disk], mode: str, folder: Path, **settings: str) -> Iterator[BrokerProcess]:
    """Run a broker with a data directory on each disk."""
    data = [disk.mount / "data" for disk in disks]
    for one in data:
        shutil.rmtree(one, ignore_errors=True)
    store = folder / f"metadata-{time.monotonic_ns()}.sqlite"
    values = {
        "metadata.store": f"sqlite:{store}", "log.write.queues": mode, "log.write.queues.per.dir": "1",
        "log.write.queue.max.requests": str(QUEUE_REQUESTS), "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        **{key.replace("_", "."): value for key, value in settings.items()},
    }  # fmt: skip
    log = folder / f"broker-{mode}-{time.monotonic_ns()}.log"
    broker = BrokerProcess(data[0], log, values, ["--data", str(data[1])])
    try:
        yield broker
    finally:
        broker.ask_to_stop()
        try:
            broker.process.wait(20)
        except subprocess.TimeoutExpired:
            broker.kill()


def topics_on(disks: Sequence[Disk], address: str) -> tuple[list[str], list[str]]:
    """Make topics; return which are on each disk. The offsets topic is on the first one."""
    with RawClient(address) as client:
        for number in range(_TOPICS):
            create_topic(client, f"t{number}")
    found = [sorted(path.name.removesuffix("-0") for path in (disk.mount / "data").glob("t*-0")) for disk in disks]
    assert all(found), found
    return found[0], found[1]


def read_keys(address: str, topic: str) -> set[bytes]:
    """Return the keys of all records of a topic."""
    with RawClient(address) as client:
        end = end_offset(client, topic)
    keys: set[bytes] = set()
    with Consumer(address) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        while consumer.position((topic, 0)) < end:
            keys.update(record.key or b"" for record in consumer.poll(1.0))
    return keys


def trial(disks: Sequence[Disk], arm: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Freeze the second disk under load; return what was measured."""
    with running(disks, _ARMS[arm], folder) as broker, RawClient(broker.address) as setup:
        join(setup, "warm")  # makes the offsets topic, on the first disk, before the others
        good, bad = topics_on(disks, broker.address)
        load = Load(broker.address)
        others = [load.produce(name) for name in good]
        frozen = [load.produce(bad[n % len(bad)]) for n in range(FROZEN_PRODUCERS)]
        beats = load.heartbeat("g")
        time.sleep(2.0)
        begin = time.monotonic()
        time.sleep(seconds)
        with disks[1].frozen(seconds + 5):
            freeze = time.monotonic()
            time.sleep(seconds)
        thaw = time.monotonic()
        time.sleep(2.0)
        load.stop()
        lost = sum(len(keys - read_keys(broker.address, name)) for name, keys in load.acknowledged.items())
    refused = sorted(took for one in frozen for took in one.between(freeze + 0.5, thaw, ErrorCode.NOT_ENOUGH_REPLICAS))
    other_codes = sorted({code for one in [*others, *frozen, beats] for _, _, code in one.all} - {0})
    row: dict[str, Any] = {"arm": arm, "lost": lost, "acknowledged": sum(map(len, load.acknowledged.values()))}
    for name, start, end in (("before", begin, freeze), ("frozen", freeze, thaw)):
        produced = sorted(took for one in others for took in one.between(start, end, 0))
        row[f"other_count_{name}"] = len(produced)
        row[f"other_p50_{name}"], row[f"other_p99_{name}"] = share(produced, 0.5), share(produced, 0.99)
        beat = beats.between(start, end, 0)
        row[f"beats_{name}"], row[f"beat_max_{name}"] = len(beat), share(beat, 1.0)
    row |= {"refused": len(refused), "refused_p50": share(refused, 0.5), "refused_p99": share(refused, 0.99)}
    row["codes"] = other_codes
    return row


def main() -> int:
    """Run the experiment; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="without trouble, and frozen")
    parser.add_argument("--pairs", type=int, default=3, help="trials of each arm, by turns")
    parser.add_argument("--write", type=Path, help="write the rows to this file, as JSON lines")
    options = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pylogd-isolation-", dir="/var/tmp")))
        try:
            check_tools()
            disks = []
            for name in ("a", "b"):
                disks.append(make_disk(folder, name, DISK_BYTES))
                stack.callback(disks[-1].remove)
            for _ in range(options.pairs):
                for arm in _ARMS:
                    rows.append(trial(disks, arm, folder, options.seconds))
                    print(json.dumps(rows[-1]), flush=True)
        except Unavailable as error:
            print(f"not measured: {error}", file=sys.stderr)
            return 0
    if options.write is not None:
        options.write.write_text("".join(json.dumps(row) + os.linesep for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
