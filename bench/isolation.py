"""What a disk that hangs, or is slower than its writers, does to topics on another disk, with and without write queues.

    python -m bench isolation [--seconds 10] [--pairs 3] [--slow-seconds 60] [--write]

One broker with a data directory on each of two ext4 file systems (loop devices), the metadata store on neither. Steady
producers of small records with acks=1 on both, and a group member that sends heartbeats. Four experiments:

- frozen: after a while without trouble the second file system is frozen (FIFREEZE) under load, and thawed later by
  another process. Latencies on the other disk, of heartbeats, and of refusals; what is lost after the thaw.
- slow: the second disk may write 4 MB/s and have 8 MB of dirty pages, and four producers write 100 KB records to it as
  fast as they are answered.
- given up: the freeze lasts longer than `log.dir.failure.timeout.ms`.
- cost: the processor time of a produce request with one record of 200 bytes on a quick disk, without a network.

Arms by turns: `log.write.queues` off (stock), always (queues), and with a slow disk also slow (adaptive). The producers
on the second disk are in a process of their own. Needs root and loop devices: where a disk can't be frozen or slowed it
says why, and measures nothing. `--write` writes bench/ISOLATION.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.lab.cgroups import ROOT, Unavailable
from bench.lab.disks import Disk, check_tools, make_disk
from bench.machine import machine
from pylogd.base.errors import ErrorCode
from pylogd.client import Consumer
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pylogd.wire.records import encode_batch
from tests.hotpath import HotPath
from tests.pages import write_page
from tests.rawclient import RawClient, create_topic, end_offset

DISK_BYTES = 512 << 20
#: Producers on the disk that is frozen: more than its queue holds, so that it fills.
FROZEN_PRODUCERS = 12
QUEUE_REQUESTS = 6
PAUSE = 0.004  # seconds between two requests of a producer
_PATIENCE = 60.0
_SLOW_RATE = 4 << 20
_SLOW_DIRTY = 8 << 20
_TOPICS = 4
_FACTS = ("processor", "cores", "memory", "system", "python", "commit")
_ARMS = {"queues": "always", "stock": "off"}
_SLOW_ARMS = {"queues": "always", "adaptive": "slow", "stock": "off"}


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

    def produce(self, topic: str, size: int = 1000, pause: float = PAUSE) -> Samples:
        """Have a producer send one record after the other, with so many seconds in between."""
        return self._start(self._produce, topic, bytes(size), pause)

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

    def _produce(self, samples: Samples, topic: str, value: bytes, pause: float) -> None:
        acknowledged = self.acknowledged.setdefault(topic, set())
        with RawClient(self.address, patience=_PATIENCE) as client:
            while not self.stopping.wait(pause):
                key = b"%d" % next(self._numbers)
                records = encode_batch([(key, value, time.time_ns() // 1_000_000, ())])
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


class LoadProcess:
    """Producers in a process of their own: they take no interpreter time from the clients that are measured.

    samples, acknowledged: as of `Load`, after `stop`.
    """

    def __init__(self, address: str, topics: Sequence[str], size: int = 1000, pause: float = PAUSE) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_produce_apart, args=(theirs, address, topics, size, pause), daemon=True)
        self._process.start()
        self._pipe.recv()
        self.samples: list[Samples] = []
        self.acknowledged: dict[str, set[bytes]] = {}

    def stop(self) -> None:
        """Have the producers stop, and take over what they have seen."""
        self._pipe.send(None)
        self.samples, self.acknowledged = self._pipe.recv()
        self._process.join(_PATIENCE)


def _produce_apart(pipe: Any, address: str, topics: Sequence[str], size: int, pause: float) -> None:
    load = Load(address)
    samples = [load.produce(topic, size, pause) for topic in topics]
    pipe.send(None)
    pipe.recv()
    load.stop()
    pipe.send((samples, load.acknowledged))


def lost(address: str, *loads: Load | LoadProcess) -> int:
    """Return how many records were acknowledged and can't be read."""
    keys: dict[str, set[bytes]] = {}
    for load in loads:
        for topic, some in load.acknowledged.items():
            keys[topic] = keys.get(topic, set()) | some
    return sum(len(some - read_keys(address, topic)) for topic, some in keys.items())


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
    for path in folder.glob("metadata.sqlite*"):
        path.unlink()
    with started(disks, mode, folder, **settings) as broker:
        yield broker


@contextmanager
def started(disks: Sequence[Disk], mode: str, folder: Path, **settings: str) -> Iterator[BrokerProcess]:
    """Run a broker on the data directories as they are."""
    data = [disk.mount / "data" for disk in disks]
    store = folder / "metadata.sqlite"
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


@contextmanager
def slow(disk: Disk) -> Iterator[None]:
    """Limit what a disk writes, and how much it may be behind. Raises Unavailable."""
    limits = ROOT / "blkio" / "blkio.throttle.write_bps_device"
    disk.limit_dirty(_SLOW_DIRTY)
    try:
        limits.write_text(f"{disk.number} {_SLOW_RATE}")
    except OSError as error:
        raise Unavailable(f"the writes of a disk can't be limited here: {error}") from None
    try:
        yield
    finally:
        limits.write_text(f"{disk.number} 0")
        disk.lift_dirty_limit()


def slow_trial(disks: Sequence[Disk], arm: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Write faster to the second disk than it can; return what was measured."""
    with running(disks, _SLOW_ARMS[arm], folder) as broker:
        with RawClient(broker.address) as setup:
            join(setup, "warm")
        good, bad = topics_on(disks, broker.address)
        load = Load(broker.address)
        others = [load.produce(name) for name in good]
        beats = load.heartbeat("g")
        time.sleep(2.0)
        begin = time.monotonic()
        time.sleep(seconds / 4)
        with slow(disks[1]):
            limited = time.monotonic()
            writers = LoadProcess(broker.address, [bad[n % len(bad)] for n in range(4)], 100_000, 0.0)
            time.sleep(seconds)
            end = time.monotonic()
        writers.stop()
        load.stop()
        missing = lost(broker.address, load, writers)
        switches = broker.log().count("is slow: "), broker.log().count("is quick again: ")
    row: dict[str, Any] = {"experiment": "slow", "arm": arm, "lost": missing, "became slow, quick": switches}
    row["written_mb"] = round(sum(len(one.between(limited, end, 0)) for one in writers.samples) / 10)
    return row | compared(others, beats, begin, limited, end)


def compared(others: Sequence[Samples], beats: Samples, begin: float, trouble: float, end: float) -> dict[str, Any]:
    """Return latencies on the other disk and of heartbeats, before the trouble and during it, in milliseconds."""
    row: dict[str, Any] = {}
    for name, start, stop in (("before", begin, trouble), ("during", trouble, end)):
        produced = sorted(took for one in others for took in one.between(start, stop, 0))
        row[f"answers_{name}"] = len(produced)
        row[f"p50_{name}"], row[f"p99_{name}"] = share(produced, 0.5), share(produced, 0.99)
        beat = beats.between(start, stop, 0)
        row[f"beats_{name}"], row[f"beat_max_{name}"] = len(beat), share(beat, 1.0)
    return row


def trial(disks: Sequence[Disk], arm: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Freeze the second disk under load; return what was measured."""
    with running(disks, _ARMS[arm], folder) as broker, RawClient(broker.address) as setup:
        join(setup, "warm")  # makes the offsets topic, on the first disk, before the others
        good, bad = topics_on(disks, broker.address)
        load = Load(broker.address)
        others = [load.produce(name) for name in good]
        frozen = LoadProcess(broker.address, [bad[n % len(bad)] for n in range(FROZEN_PRODUCERS)])
        beats = load.heartbeat("g")
        time.sleep(2.0)
        begin = time.monotonic()
        time.sleep(seconds)
        with disks[1].frozen(seconds + 5):
            freeze = time.monotonic()
            time.sleep(seconds)
        thaw = time.monotonic()
        time.sleep(2.0)
        frozen.stop()
        load.stop()
        missing = lost(broker.address, load, frozen)
    refusals = (one.between(freeze + 0.5, thaw, ErrorCode.NOT_ENOUGH_REPLICAS) for one in frozen.samples)
    refused = sorted(took for some in refusals for took in some)
    row: dict[str, Any] = {"experiment": "frozen", "arm": arm, "lost": missing, "refused": len(refused)}
    row |= {"refused_p50": share(refused, 0.5), "refused_p99": share(refused, 0.99)}
    row["other_codes"] = sorted({code for one in [*others, *frozen.samples, beats] for _, _, code in one.all} - {0, 19})
    return row | compared(others, beats, begin, freeze, thaw)


def has_ended(pid: int) -> bool:
    """Return whether the main thread of a process has ended: the kernel keeps those that hang in a call."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except FileNotFoundError:
        return True


def give_up(disks: Sequence[Disk], folder: Path) -> dict[str, Any]:
    """Freeze the second disk for longer than `log.dir.failure.timeout.ms`, under load; return what was measured.

    The directory has to fail, the broker has to go on and to stop while the disk still hangs, and a broker that is
    started after the thaw has to have all that was acknowledged.
    """
    timeout = 2.0
    row: dict[str, Any] = {"experiment": "given up", "timeout": timeout}
    with ExitStack() as stack:
        running_broker = stack.enter_context(
            running(disks, "always", folder, log_dir_failure_timeout_ms=str(round(timeout * 1000)))
        )
        with RawClient(running_broker.address) as setup:
            join(setup, "warm")
        good, bad = topics_on(disks, running_broker.address)
        load = Load(running_broker.address)
        others = [load.produce(name) for name in good]
        frozen = [load.produce(bad[n % len(bad)]) for n in range(FROZEN_PRODUCERS)]
        time.sleep(2.0)
        with disks[1].frozen(30):
            freeze = time.monotonic()
            time.sleep(3 * timeout)
            failed = [sent + took for one in frozen for sent, took, code in one.all
                      if sent + took > freeze and code == ErrorCode.KAFKA_STORAGE_ERROR]  # fmt: skip
            row["failed_after"] = round(min(failed) - freeze, 2) if failed else None
            row["answers_since"] = sum(len(one.between(freeze, time.monotonic(), 0)) for one in others)
            load.stop()
            began = time.monotonic()
            running_broker.ask_to_stop()
            while not has_ended(running_broker.pid) and time.monotonic() - began < _PATIENCE / 3:
                time.sleep(0.05)
            row["stop_seconds"] = round(time.monotonic() - began, 2)
            row["stuck"] = "threads are stuck" in running_broker.log()
    with started(disks, "always", folder) as broker:
        row["acknowledged"] = sum(map(len, load.acknowledged.values()))
        row["lost"] = lost(broker.address, load)
    return row


def cost(folder: Path, rounds: int = 40, requests: int = 500) -> Iterator[dict[str, Any]]:
    """Return the processor time of a produce request with one record on a quick disk, without a network."""
    paths = {mode: HotPath(folder / f"cost-{mode}", log_write_queues=mode) for mode in ("off", "slow")}
    frames = {mode: path.produce_frame(1, 200) for mode, path in paths.items()}
    spent: dict[str, list[float]] = {mode: [] for mode in paths}
    for _ in range(rounds):
        for mode, path in paths.items():
            began = time.thread_time()
            for _ in range(requests):
                path.ask(frames[mode])
            spent[mode].append((time.thread_time() - began) / requests * 1e6)
    for mode, path in paths.items():
        path.close()
        yield {"experiment": "cost", "log.write.queues": mode, "microseconds": round(statistics.median(spent[mode]), 2)}


def measure(options: argparse.Namespace, say: Callable[[dict[str, Any]], object]) -> None:
    """Run all experiments. Raises Unavailable."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pylogd-isolation-", dir="/var/tmp")))
        check_tools()
        disks = []
        for name in ("a", "b"):
            disks.append(make_disk(folder, name, DISK_BYTES))
            stack.callback(disks[-1].remove)
        for row in cost(folder):
            say(row)
        say(give_up(disks, folder))
        for _ in range(options.pairs):
            for arm in _ARMS:
                say(trial(disks, arm, folder, options.seconds))
        for _ in range(options.pairs if options.slow_seconds else 0):
            for arm in _SLOW_ARMS:
                say(slow_trial(disks, arm, folder, options.slow_seconds))


def page(rows: Sequence[dict[str, Any]], how: str, reason: str) -> str:
    """Return the text of bench/ISOLATION.md. how: with which options, and beside which load, it was measured."""
    facts = machine("not used")
    lines = [
        "# Isolation of disks, measured", "",
        "Written by `python -m bench isolation --write`, whose docstring says how it is measured. Times in ms. "
        "`before` is without trouble, `during` with the second disk frozen or slow; all figures but those of refusals "
        "are of topics on the first disk, and of heartbeats.", "",
        ", ".join(f"{name} {facts[name]}" for name in _FACTS) + f"; {how}", "",
    ]  # fmt: skip
    if reason:
        lines += [f"Not measured, or not all: {reason}", ""]
    for experiment in dict.fromkeys(row["experiment"] for row in rows):
        some = [row for row in rows if row["experiment"] == experiment]
        names = [name for name in some[0] if name != "experiment"]
        lines += [f"## {experiment}", "| " + " | ".join(names) + " |", "| --- " * len(names) + "|"]
        lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in some]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Run the experiments; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="without trouble, and frozen")
    parser.add_argument("--slow-seconds", type=float, default=60.0, help="with a slow disk; 0: leave that out")
    parser.add_argument("--pairs", type=int, default=3, help="trials of each arm, by turns")
    parser.add_argument("--write", action="store_true", help="write bench/ISOLATION.md")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    how = (
        f"{options.seconds:g} s each, {options.slow_seconds:g} s with a slow disk, {options.pairs} rounds; load of the "
        f"machine before {os.getloadavg()[0]:.1f}"
    )
    reason = ""

    def say(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    try:
        measure(options, say)
    except Unavailable as error:
        reason = str(error)
        print(f"not measured: {error}", file=sys.stderr)
    if options.write:
        write_page(Path(__file__).with_name("ISOLATION.md"), [page(rows, how, reason)])
    return int(any(row.get("lost") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
