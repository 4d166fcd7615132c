"""Kafka Streams' own smoke test, from its test jar: aggregations, windows, joins and repartitioning, exactly once.

As in Kafka's system test `streams_smoke_test.py` with a crash: a first client of the application is started; the driver
produces for 30 s; the first client is killed while it processes, then a second one; a third one finishes. The driver
reads the output topics (read_committed), and compares them with what the input has to give: each result once. With
three brokers, brokers are killed as well, one after the other.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from conformance import brokers, java_tools
from conformance.checks import FAILED, Check, expect, last_line
from pylogd.client import Admin, NewTopic
from pylogd.local.cluster import LocalCluster

_TEST: Final = "org.apache.kafka.streams.tests.StreamsSmokeTest"
_TOPICS: Final = (
    "data", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "sws-raw", "sws-suppressed", "cnt", "avg",
    "tagg", "fk",
)  # fmt: skip
_PARTITIONS: Final = 5
#: As the system test's service has them.
_PROPERTIES: Final = {
    "processing.guarantee": "exactly_once_v2",
    "num.stream.threads": "3",
    "num.standby.replicas": "2",
    "buffered.records.per.partition": "100",
    "commit.interval.ms": "1000",
    "auto.offset.reset": "earliest",
    "acks": "all",
    "acceptable.recovery.lag": "9223372036854775807",
    "session.timeout.ms": "10000",
}
_START_SECONDS, _DRIVER_SECONDS = 150.0, 600.0
_RUNNING, _PROCESSED, _VERIFYING = "REBALANCING -> RUNNING", "processed", "Result Verification"


class _Stopped(Exception):
    """Raised if a step did not come. The text says which."""


class _Program:
    """One of the test's programs. What it prints is in a file."""

    def __init__(self, name: str, command: str, properties: Path, folder: Path) -> None:
        self.name = name
        self._output = folder / f"{name}.out"
        java, *rest = java_tools.streams()
        with self._output.open("wb") as output:
            temporary = f"-Djava.io.tmpdir={folder}"
            self._process = subprocess.Popen(
                [java, temporary, *rest, _TEST, str(properties), command], stdout=output, stderr=output
            )

    def said(self) -> str:
        """Return what it printed until now."""
        return self._output.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float = _START_SECONDS) -> None:
        """Wait until it has printed a text. Raises _Stopped."""
        deadline = time.monotonic() + seconds
        while text not in self.said():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise _Stopped(f"{self.name} did not print {text!r}: {last_line(self.said())}")
            time.sleep(0.1)

    def wait(self) -> str:
        """Wait for its end, and return what it printed. Raises _Stopped."""
        try:
            self._process.wait(_DRIVER_SECONDS)
        except subprocess.TimeoutExpired:
            raise _Stopped(f"{self.name} did not end: {last_line(self.said())}") from None
        return self.said()

    def stop(self) -> None:
        """Ask it to end, as a service manager does, and wait a minute."""
        self._process.terminate()
        try:
            self._process.wait(90)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()


Kill = Callable[[int], None]


def suite(kind: str, folder: Path) -> list[Check]:
    """Run it with one broker, and with three pylogd brokers of which each is killed once."""
    found = []
    for title, running in _BROKERS[kind].items():
        at = folder / title.replace(" ", "-")
        at.mkdir()
        with running(at) as (bootstrap, kill):
            found += _smoke(title, bootstrap, kill, at, replicas=bootstrap.count(",") + 1)
    return found


@contextmanager
def _one(kind: str, folder: Path) -> Iterator[tuple[str, Kill]]:
    with brokers.running(kind, folder) as address:
        yield address, lambda _: None


@contextmanager
def _three(folder: Path) -> Iterator[tuple[str, Kill]]:
    settings = {"min.insync.replicas": "2"}
    with LocalCluster(folder / "cluster", 3, settings=settings) as cluster:

        def kill(number: int) -> None:
            brokers.say(f"broker {number} is killed, and started again after 3 s")
            cluster.kill(number)
            time.sleep(3.0)
            cluster.start(number)

        yield cluster.bootstrap, kill
        faults = cluster.close()
        if faults:
            raise RuntimeError("\n".join(faults))


_BROKERS: Final[Mapping[str, Mapping[str, Callable[[Path], AbstractContextManager[tuple[str, Kill]]]]]] = {
    "pylogd": {"one broker": lambda folder: _one("pylogd", folder), "three brokers": _three},
    "kafka": {"one broker": lambda folder: _one("kafka", folder)},
}


def _smoke(title: str, bootstrap: str, kill: Kill, folder: Path, replicas: int) -> list[Check]:
    properties = folder / "streams.properties"
    settings = {**_PROPERTIES, "bootstrap.servers": bootstrap, "replication.factor": str(replicas)}
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name, _PARTITIONS, replicas) for name in _TOPICS])
    begun = time.monotonic()
    with ExitStack() as stack:

        def start(name: str, command: str = "process") -> _Program:
            program = _Program(name, command, properties, folder)
            stack.callback(program.kill)
            return program

        try:
            driver, last = _steps(start, kill)
        except _Stopped as stopped:
            return [Check(f"{title}: runs to its end", FAILED, str(stopped))]
    brokers.say(f"streams, {title}: {time.monotonic() - begun:.0f} s")
    return [
        _result(title, driver, "ALL-RECORDS-DELIVERED"),
        _result(title, driver, "SUCCESS"),
        _result(title, last, "SMOKE-TEST-CLIENT-CLOSED"),
    ]


def _steps(start: Callable[..., _Program], kill: Kill) -> tuple[str, str]:
    """Run the steps of the system test. Return what the driver and the last client printed. Raises _Stopped."""
    first = start("client 1")
    first.wait_for(_RUNNING)
    driver = start("driver", "run")
    first.wait_for(_PROCESSED)
    kill(1)
    first.kill()
    second = start("client 2")
    second.wait_for(_RUNNING)
    second.wait_for(_PROCESSED)
    kill(2)
    second.kill()
    last = start("client 3")
    last.wait_for(_RUNNING)
    kill(3)
    found = driver.wait()
    last.stop()
    return found, last.said()


def _result(title: str, said: str, wanted: str) -> Check:
    """Return whether a program printed a line, and no line that it must not print."""
    bad = [word for word in ("PROCESSED-MORE", "PROCESSED-LESS", "CLIENT-EXCEPTION", "FAILURE") if word in said]
    why = [line for line in said.splitlines() if "fail" in line or "is empty" in line or "EXCEPTION" in line]
    return expect(f"{title}: {wanted}", wanted in said.split() and not bad, f"{bad} {why[:3]} {last_line(said)}")
