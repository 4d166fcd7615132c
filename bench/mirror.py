"""`python -m bench mirror`: `pylogd mirror` beside Kafka's MirrorMaker 2, in turns. Writes MIRROR.md and mirror.json.

Records of 1,000 bytes in batches of 16 KB, Kafka's default, lie in a topic of 12 partitions of one broker; each turn
copies them to a new, empty broker. Brokers are pylogd's for both. pylogd runs one worker, exactly once as by default,
and once more with `exactly.once = false`, which is what MirrorMaker does by default (at least once). MirrorMaker has
its defaults and 2 GB of memory. The rate is that between the first tenth of the records and the last at the target, so
the start of either program does not count. Processor time is the mirror's own in that time, and that of both brokers:
all share the cores, so these times bound the rate.

    python -m bench mirror [--pairs N] [--records N] [--report]
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import confluent_kafka

from bench.harness import interval
from bench.machine import machine
from bench.peers.base import end, process_seconds
from conformance import java_tools
from pylogd.client import Admin, Producer
from pylogd.client.core.admin.offsets import LATEST
from pylogd.client.core.model import TopicPartition
from pylogd.local.broker import BrokerProcess, pylogd_command
from pylogd.local.launch import bound
from tests.mirrors import write_file
from tests.pages import json_text, write_page

HERE: Final = Path(__file__).parent
RESULTS, PAGE = HERE / "mirror.json", HERE / "MIRROR.md"
TOPIC: Final = "load"
PARTITIONS: Final = 12
RECORD_BYTES: Final = 1000
PATIENCE_SECONDS: Final = 600.0
TARGET_MB: Final = 300.0
EXACTLY, AT_LEAST, MIRROR_MAKER = "pylogd, exactly once", "pylogd, at least once", "MirrorMaker 2"
_MM2: Final = """\
clusters = a, b
a.bootstrap.servers = {source}
b.bootstrap.servers = {target}
a->b.enabled = true
b->a.enabled = false
a->b.topics = {topic}
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
"""


@dataclass(slots=True)
class CopyTurn:
    """A turn: megabytes (10 ** 6 bytes of values) per second, and processor seconds per gigabyte: the mirror's, and
    those of both brokers.
    """

    rate: float
    processor: float
    brokers: float


def fill(address: str, records: int) -> None:
    """Write the records that every turn copies."""
    with Admin(address) as admin:
        admin.create_topic(TOPIC, PARTITIONS, 1)
    value = bytes(range(250)) * (RECORD_BYTES // 250)
    with Producer(address, batch_bytes=16_384, linger_ms=20) as producer:
        for number in range(records):
            producer.send(TOPIC, value, partition=number // 16 % PARTITIONS)


@contextmanager
def pylogd_mirror(folder: Path, source: str, target: str, *, exactly_once: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Run one worker."""
    store = f'metadata.store = "{folder / "store"}"'
    file = folder / "mirror.toml"
    write_file(file, {"a": source, "b": target}, [{"source": "a", "target": "b", "topics": [TOPIC]}], store)
    text = file.read_text().replace("commit.interval.ms = 200", "commit.interval.ms = 500")
    file.write_text(text.replace("[cluster.b]", f"[cluster.b]\nexactly.once = {str(exactly_once).lower()}"))
    with _process(folder, [*pylogd_command(), "mirror", "run", str(file)]) as process:
        yield process


@contextmanager
def mirror_maker(folder: Path, source: str, target: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run MirrorMaker 2 by itself ("dedicated mode")."""
    properties = folder / "mm2.properties"
    properties.write_text(_MM2.format(source=source, target=target, topic=TOPIC))
    program, *rest = java_tools.mirror_maker()
    command = [program, "-Xmx2g", *rest, "org.apache.kafka.connect.mirror.MirrorMaker", str(properties)]
    with _process(folder, command) as process:
        yield process


@contextmanager
def _process(folder: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            bound(command, signal.SIGTERM), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        end(process)


def turn(folder: Path, source: BrokerProcess, kind: str, records: int) -> CopyTurn:
    """Copy everything to a new broker, and return how fast that was."""
    folder.mkdir()
    broker = BrokerProcess(folder / "target", folder / "target.log")
    runs: Mapping[str, Callable[[], AbstractContextManager[subprocess.Popen[bytes]]]] = {
        EXACTLY: lambda: pylogd_mirror(folder, source.address, broker.address, exactly_once=True),
        AT_LEAST: lambda: pylogd_mirror(folder, source.address, broker.address, exactly_once=False),
        MIRROR_MAKER: lambda: mirror_maker(folder, source.address, broker.address),
    }
    topic = f"a.{TOPIC}" if kind == MIRROR_MAKER else TOPIC
    try:
        with runs[kind]() as process:
            began, used, first = _reach(broker.address, topic, records // 10, process)
            before = _both(source, broker)
            ended, all_used, _ = _reach(broker.address, topic, records, process)
            brokers = _both(source, broker) - before
    finally:
        broker.kill()
    copied = (records - first) * RECORD_BYTES
    gigabytes = copied / 1e9
    return CopyTurn(copied / 1e6 / (ended - began), (all_used - used) / gigabytes, brokers / gigabytes)


def _both(source: BrokerProcess, target: BrokerProcess) -> float:
    return process_seconds(source.pid) + process_seconds(target.pid)


def _reach(address: str, topic: str, records: int, process: subprocess.Popen[bytes]) -> tuple[float, float, int]:
    """Wait until the target has so many records; return the time, the processor time used, and how many it has."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with Admin(address) as admin:
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{topic}: the mirror ended, or has not copied everything in {PATIENCE_SECONDS:g} s")
            if topic in {found.name for found in admin.list_topics()}:
                ends = admin.offsets({TopicPartition(topic, index): LATEST for index in range(PARTITIONS)})
                count = sum(found.offset for found in ends.values())
                if count >= records:
                    return time.monotonic(), process_seconds(process.pid), count
            time.sleep(0.05)


def measure(pairs: int, records: int) -> dict[str, list[CopyTurn]]:
    """Return the turns of each kind, in an order that changes."""
    kinds = [EXACTLY, MIRROR_MAKER, AT_LEAST]
    found: dict[str, list[CopyTurn]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="bench-mirror-") as name:
        folder = Path(name)
        source = BrokerProcess(folder / "source", folder / "source.log")
        try:
            fill(source.address, records)
            for number in range(pairs):
                for kind in kinds[number % 3 :] + kinds[: number % 3]:
                    one = turn(folder / f"{number}-{kinds.index(kind)}", source, kind, records)
                    found[kind].append(one)
                    print(
                        f"{kind}: {one.rate:.0f} MB/s, {one.processor:.1f} s/GB, brokers {one.brokers:.1f}", flush=True
                    )
                    _remove(folder / f"{number}-{kinds.index(kind)}")
        finally:
            source.kill()
    return found


def _remove(folder: Path) -> None:
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def page(turns: Mapping[str, list[CopyTurn]], facts: Mapping[str, object]) -> list[str]:
    """Return the lines of the page of results."""
    theirs = turns[MIRROR_MAKER]
    lines = [
        "# `pylogd mirror` beside MirrorMaker 2", "",
        f"By `python -m bench mirror` ({len(theirs)} rounds in turns; its docstring says how) on {facts['cores']} "
        f"cores of {facts['processor']}, {facts['memory']}, {facts['system']}, Python {facts['python']}, at commit "
        f"{facts['commit']}; MirrorMaker of Apache Kafka {java_tools.version()}. Source, target, and the mirror share "
        "the cores. Medians; ratios with their 95 % confidence interval.", "",
        "| | MB/s | times MirrorMaker | processor s/GB | times MirrorMaker | s/GB of the brokers |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for kind, found in turns.items():
        rate, processor, brokers = (
            statistics.median(values) for values in zip(*((t.rate, t.processor, t.brokers) for t in found), strict=True)
        )
        rates = interval([one.rate / other.rate for one, other in zip(found, theirs, strict=True)])
        times = interval([one.processor / other.processor for one, other in zip(found, theirs, strict=True)])
        lines.append(f"| {kind} | {rate:.0f} | {rates} | {processor:.1f} | {times} | {brokers:.1f} |")
    best = statistics.median(one.rate for one in turns[EXACTLY])
    verdict = "met" if best >= TARGET_MB else "missed"
    lines += ["", f"Asked for: {TARGET_MB:.0f} MB/s a worker in default batches: **{verdict}** ({best:.0f})."]
    return lines


def main(arguments: list[str]) -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bench mirror", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--report", action="store_true", help="only write the page from the results that there are")
    options = parser.parse_args(arguments)
    if not options.report:
        turns = measure(options.pairs, options.records)
        facts = machine(str(confluent_kafka.libversion()[0]))
        kept = {kind: [asdict(one) for one in found] for kind, found in turns.items()}
        RESULTS.write_text(json_text({"machine": facts, "turns": kept}))
    found = json.loads(RESULTS.read_text())
    turns = {kind: [CopyTurn(**one) for one in some] for kind, some in found["turns"].items()}
    write_page(PAGE, page(turns, found["machine"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
