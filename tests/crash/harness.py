"""Kill a broker under load repeatedly, and check after each kill that no acknowledged message was lost.

    python -m tests.crash.harness --kills 1000 --seed 7 [--set log.block.cache.bytes=1000000]

A round has a fresh data directory, three writers and some kills. Some kills come from outside at a random moment. Most
are planned for a certain call to the file system (`tests.crash.points`), which may be part of the recovery from the
kill before; if the load does not reach that call in time, the kill comes from outside. After each kill the broker is
restarted, and the whole log is read and compared: every acknowledged message is at its offset, once, in order, byte for
byte; no message of an idempotent writer is missing or there twice; offsets have no gaps; and `verify-log` finds no
problems. In rounds with compaction a message may be missing if there is a later one of its key. The seed determines the
plan of the kills, but not when the load reaches a planned call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

import pylogd
from pylogd.base.errors import PylogdError
from pylogd.base.ports import free_ports
from pylogd.broker.log.verify import Severity, verify_log_dir
from pylogd.client.blocking.admin import Admin
from pylogd.client.blocking.consumer import Consumer
from pylogd.config.source import parse_assignments
from pylogd.local.broker import START_SECONDS, BrokerFailed, RunningBroker
from tests.crash.load import PARTITIONS, TOPIC, IdempotentWriter, PlainWriter, Writer, key_of, message
from tests.crash.points import KINDS, KillPoint, choose
from tests.pages import circumstances, write_page

CHECKOUT = Path(__file__).resolve().parents[2]
KILLS_A_ROUND = 20
RANDOM = "random moment"
SETTLE_SECONDS = 30.0  # how long the files of a running broker may look damaged, each time at another position
DYING_SECONDS = 30.0  # how long a broker that has closed its connections may take to end
LONGEST_LIFE_SECONDS = 0.7  # how long to wait for a planned kill before killing from outside

#: Small segments, so that rolls and deletions are frequent. Each round adds one of these variants.
SETTINGS: Mapping[str, str] = {
    "internal.segment.bytes": "65536",
    "log.index.interval.bytes": "512",
    "log.flush.offset.checkpoint.interval.ms": "40",
    "log.retention.check.interval.ms": "40",
    "log.segment.delete.delay.ms": "50",
    "num.partitions": str(PARTITIONS),
}
VARIANTS: Sequence[Mapping[str, str]] = (
    {},
    {"log.flush.interval.messages": "200"},
    {"log.flush.visible": "true"},
    {"log.retention.bytes": "400000"},
    {"log.flush.interval.ms": "50", "log.retention.bytes": "600000"},
    {
        "log.cleanup.policy": "compact", "log.cleaner.backoff.ms": "10", "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.dedupe.buffer.size": "100000",
    },
)  # fmt: skip


class CrashFault(AssertionError):
    """The log differs from what was acknowledged."""


class Forge:
    """The process that forks brokers."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(Path(pylogd.__file__).resolve().parents[1]), str(CHECKOUT)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.crash.child"],
            env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip

    def start(self, settings: Mapping[str, str], log: Path, point: KillPoint | None) -> ForkedBroker:
        """Fork a broker, which may be killed before it listens."""
        order = {"settings": dict(settings), "log": str(log), "point": None if point is None else point.as_json()}
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(order).encode() + b"\n")
        while not (line := stdout.readline()).strip().isdigit():  # late output of a broker that has ended
            if not line:
                raise CrashFault(f"the process that forks brokers is gone ({self._process.poll()})")
        return ForkedBroker(int(line), stdout, log)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class ForkedProcess:
    """A process that another process forked: it can be signalled and waited for, but its exit code is not known."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = False
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.pidfd = -1
            self._ended = True

    def poll(self) -> int | None:
        """Return 0 once the process has ended."""
        return 0 if self._has_ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Return 0 once the process has ended. Raises subprocess.TimeoutExpired."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired("a forked broker", timeout or 0.0)
        return 0

    def send_signal(self, sig: int) -> None:
        """Send a signal, if the process has not ended."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, sig)

    def _has_ended(self, seconds: float | None) -> bool:
        if not self._ended and select.select([self.pidfd], [], [], seconds)[0]:
            os.close(self.pidfd)
            self._ended = True
        return self._ended


class ForkedBroker(RunningBroker):
    """A broker that the forge forked, which may be killed before it listens."""

    def __init__(self, pid: int, output: IO[bytes], log: Path) -> None:
        process = ForkedProcess(pid)
        super().__init__(process, output, log, death=[process.pidfd] * (process.pidfd >= 0))

    def is_dead(self, seconds: float = 0.0) -> bool:
        """Return whether the process ends within `seconds`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def listens(self) -> bool:
        """Wait until the broker listens; return False if it ends before. Raises BrokerFailed if it does neither."""
        try:
            self.wait()
        except BrokerFailed:
            if self.exit_code is None:
                raise
            return False
        return True


class Round:
    """A data directory with its writers and kills."""

    def __init__(self, forge: Forge, folder: Path, seed: int, settings: Mapping[str, str]) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.forge = forge
        self.data = folder / "data"
        self.log = folder / "broker.log"
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        self.settings = {
            **SETTINGS, **self.rng.choice(VARIANTS), **settings, "log.dirs": str(self.data), "listeners": self.address,
        }  # fmt: skip
        self.compacted = "log.cleanup.policy" in self.settings
        self.kinds = [*KINDS, "compaction", "compaction"] if self.compacted else [k for k in KINDS if k != "compaction"]
        self.deaths: Counter[str] = Counter()
        self.checked = 0  # messages compared with what was sent
        self.acknowledged = 0
        self.writers: list[Writer] = []

    def run(self, kills: int) -> Iterator[str]:
        """Kill `kills` times. Yield a description of each kill."""
        broker = self.forge.start(self.settings, self.log, None)
        if not broker.listens():
            raise CrashFault(f"the first start failed:\n{self.log.read_text()[-4000:]}")
        with Admin(self.address) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        self.writers = [
            IdempotentWriter("a", lambda: self.address),
            IdempotentWriter("b", lambda: self.address),
            PlainWriter("c", lambda: self.address),
        ]
        point: KillPoint | None = None
        for _ in range(kills):
            death = self._let_die(broker, point)
            self.deaths[death.partition(":")[0]] += 1
            yield death
            point = choose(self.rng.choice(self.kinds), self.rng) if self.rng.random() < 0.7 else None
            broker = self.forge.start(self.settings, self.log, point)
            if broker.listens() and not (point is not None and broker.is_dead()):
                self._check_if_alive(broker)
        broker.kill()  # it may still reach a planned kill
        broker = self.forge.start(self.settings, self.log, None)
        if not broker.listens():
            raise CrashFault(f"the last start failed:\n{self.log.read_text()[-4000:]}")
        for writer in self.writers:
            writer.finish()
        self.check(broker)
        broker.stop()
        if "Traceback" in self.log.read_text():
            raise CrashFault(f"a traceback in the broker's log:\n{self.log.read_text()[-8000:]}")
        self._verify()
        self.acknowledged = sum(len(told) for writer in self.writers for told in writer.acknowledged)

    def _let_die(self, broker: ForkedBroker, point: KillPoint | None) -> str:
        """Run the load until the broker is killed. Return what killed it."""
        for writer in self.writers:
            writer.resume()
        died = broker.is_dead(self.rng.uniform(0.0, 0.5) if point is None else LONGEST_LIFE_SECONDS)
        broker.kill()
        for writer in self.writers:
            writer.pause()
        return str(point) if died and point is not None else RANDOM

    def _check_if_alive(self, broker: ForkedBroker) -> None:
        """Check the log. If a planned kill ends the broker meanwhile, the check follows the next start."""
        try:
            self.check(broker)
        except (PylogdError, OSError, CrashFault):  # an error in the log will be found after the next start
            if not broker.is_dead(DYING_SECONDS):
                raise

    # Checks --------------------------------------------------------------------------------------------------------

    def check(self, broker: ForkedBroker) -> None:
        """Read everything and compare, then verify the files."""
        told = [[dict(told) for told in writer.acknowledged] for writer in self.writers]
        for writer in self.writers:
            if writer.failed:
                raise CrashFault(f"not delivered: {writer.failed[:3]}")
        with Consumer(self.address, fetch_max_wait_ms=5, request_timeout=60, retry_timeout=0.2) as consumer:
            for partition in range(PARTITIONS):
                self._check_partition(consumer, partition, [of_writer[partition] for of_writer in told])
        self._verify(broker)

    def _check_partition(self, consumer: Consumer, partition: int, told: list[dict[int, int]]) -> None:
        place = (TOPIC, partition)
        start = next(iter(consumer.beginning_offsets([place]).values()))
        end = next(iter(consumer.end_offsets([place]).values()))
        found = _read(consumer, partition, start, end, holes=self.compacted)
        while self.compacted and (later := next(iter(consumer.end_offsets([place]).values()))) > end:
            found += _read(
                consumer, partition, end, later, holes=True
            )  # a later message took the place of a deleted one
            end = later
        first = found[0][0] if found and not self.compacted else start  # retention may have moved the start meanwhile
        numbers: list[dict[int, int]] = [{} for _ in self.writers]
        names = {writer.name: at for at, writer in enumerate(self.writers)}
        last = [-1] * len(self.writers)
        for offset, value in found:
            name, _, number = (part.decode() for part in value.split(b"/", 3)[:3])
            writer, n = names[name], int(number)
            if value != message(name, partition, n):
                raise CrashFault(f"{place} offset {offset}: message {n} of {name} is not what was sent")
            if n <= last[writer]:
                raise CrashFault(f"{place} offset {offset}: message {n} of {name} behind {last[writer]}")
            gapless = self.writers[writer].idempotent and not self.compacted
            if gapless and n != last[writer] + 1 and (last[writer] >= 0 or not first):
                raise CrashFault(f"{place} offset {offset}: message {n} of {name} follows {last[writer]}")
            last[writer] = n
            numbers[writer][n] = offset
        for writer, acknowledged in enumerate(told):
            latest = {key_of("", n): n for n in sorted(numbers[writer])} if self.compacted else {}
            for n, offset in acknowledged.items():
                at = numbers[writer].get(n)
                if at is None and latest.get(key_of("", n), -1) > n:
                    continue
                if offset >= first and at != offset:
                    raise CrashFault(
                        f"{place}: message {n} of {self.writers[writer].name} was acknowledged at offset {offset} and "
                        f"is at {at}; what was read runs from {first} to {end}"
                    )
        self.checked += len(found)

    def _verify(self, broker: ForkedBroker | None = None) -> None:
        """Run `verify-log`. With a running broker only damage that stays counts: a check may coincide with a write."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                findings = [str(f) for f in verify_log_dir(str(self.data)) if f.severity is not Severity.INFO]
            except FileNotFoundError as error:  # deleted by retention meanwhile
                findings = [str(error)]
            if not findings:
                return
            if broker is None or broker.is_dead() or time.monotonic() > deadline:
                raise CrashFault("verify-log: " + "; ".join(findings[:5]))
            time.sleep(0.05)


def _read(consumer: Consumer, partition: int, start: int, end: int, *, holes: bool) -> list[tuple[int, bytes]]:
    """Return offset and value of all records before `end`. Retention may move the start; later offsets have no gaps,
    unless `holes` allows those of compaction.
    """
    consumer.assign({(TOPIC, partition): start})
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + START_SECONDS
    while consumer.position((TOPIC, partition)) < end:
        if time.monotonic() > deadline:
            raise CrashFault(f"partition {partition}: can't read on from {consumer.position((TOPIC, partition))}")
        for record in consumer.poll(0.2):
            if found and record.offset != found[-1][0] + 1:
                if record.offset <= found[-1][0]:
                    raise CrashFault(f"partition {partition}: offset {record.offset} behind {found[-1][0]}")
                if not holes:
                    found.clear()  # everything read so far was deleted meanwhile
            assert record.value is not None
            found.append((record.offset, record.value))
    return [entry for entry in found if entry[0] < end]


def run(
    kills: int, seed: int, folder: Path, tell: bool = True, settings: Mapping[str, str] = MappingProxyType({})
) -> Counter[str]:
    """Run all rounds. Return the kinds of kills. Raises CrashFault with details for an analysis.

    settings: of the brokers, in addition to those of the rounds.
    """
    forge = Forge()
    deaths: Counter[str] = Counter()
    checked = acknowledged = done = 0
    begun = time.monotonic()
    try:
        while done < kills:
            place = folder / f"round-{seed}"
            place.mkdir(parents=True)
            current = Round(forge, place, seed, settings)
            death = "none"
            try:
                for fatal in current.run(min(KILLS_A_ROUND, kills - done)):
                    death = fatal
                    done += 1
            except BaseException as error:
                raise CrashFault(f"round {seed}, last kill {death!r}, kept in {place}: {error}") from error
            deaths += current.deaths
            checked += current.checked
            acknowledged += current.acknowledged
            shutil.rmtree(place)
            seed += 1
            if tell:
                spent = time.monotonic() - begun
                print(f"{done:5d} kills, {acknowledged} messages acknowledged, {checked} compared, {spent:.0f} s",
                      flush=True)  # fmt: skip
    finally:
        forge.close()
    deaths["messages acknowledged"] = acknowledged
    deaths["messages compared"] = checked
    deaths["seconds"] = round(time.monotonic() - begun)
    return deaths


def main() -> None:
    """Run as the command line says; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="write what happened to this file")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of all brokers")
    arguments = parser.parse_args()
    settings = parse_assignments(arguments.set)
    folder = Path(tempfile.mkdtemp(prefix="pylogd-crash-"))
    try:
        deaths = run(arguments.kills, arguments.seed, folder, settings=settings)
    except CrashFault as fault:
        sys.exit(f"FAILED: {fault}")
    shutil.rmtree(folder)
    text = _report(arguments.kills, arguments.seed, deaths, settings)
    print(text)
    if arguments.results:
        write_page(arguments.results, [text])


def _report(kills: int, seed: int, deaths: Counter[str], settings: Mapping[str, str]) -> str:
    with_settings = "".join(f", {name}={value}" for name, value in settings.items())
    lines = [
        f"# {kills} kills",
        "",
        f"`make crash`, seed {seed}{with_settings}, Python {sys.version.split()[0]}, {deaths['seconds']} s. "
        f"{deaths['messages acknowledged']:,} messages acknowledged; {deaths['messages compared']:,} read back and "
        "compared. Nothing lost, nothing twice, nothing out of order, nothing changed; `verify-log` clean each time.",
        "",
        circumstances(),
        "",
        "| died of | times |",
        "| --- | --- |",
    ]
    lines += [f"| {kind} | {deaths[kind]} |" for kind in [RANDOM, *KINDS]]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
