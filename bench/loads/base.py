"""The interface of all clients: send, read, or pass a number of messages through a broker."""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.peers.base import Peer

TOPIC = "t"
CLIENT_SECONDS = 1800.0


class Unsupported(Exception):
    """Raised if a broker or its client can't do an experiment; the report has the text."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a client. `batch` None and `pull` 0 (bytes) stand for the client's defaults.

    A client that is not done after `limit` seconds is killed, which is an error. values: a file with a value in each
    line, instead of values of `size` bytes.
    """

    count: int
    size: int = 200
    batch: int | None = None
    acks: str = "all"
    compression: str = "none"
    partitions: int = 1
    pull: int = 0
    rate: int = 0
    limit: float = CLIENT_SECONDS
    values: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """The result of a client: messages, bytes of their values, seconds, and the start time (CLOCK_MONOTONIC).

    whole: the seconds of the whole load, if the client has left its begin out of the others.
    """

    messages: int
    bytes: int
    seconds: float
    began: float = 0.0
    percentiles: dict[str, float] = field(default_factory=dict)
    whole: float = 0.0


class Load(ABC):
    """A client of one kind of broker."""

    #: whether a reader starts over at the log's end until it has read `count` messages
    starts_over = False
    #: the messages of the first run of a warm-up: enough that the client's start does not determine the rate
    first_run = 2000

    @abstractmethod
    def client(self) -> str:
        """Return the client's name and version, for the report."""

    @abstractmethod
    def check(self, work: Work) -> None:
        """Raise Unsupported for work that the client or its protocol can't do."""

    @abstractmethod
    def produce(self, peer: Peer, work: Work) -> Said:
        """Send `work.count` messages. Return when all are acknowledged."""

    @abstractmethod
    def consume(self, peer: Peer, work: Work, readers: int = 1) -> list[Said]:
        """Read `work.count` messages with each of `readers` readers at once."""

    def through(self, peer: Peer, work: Work, offset: int) -> Said:
        """Send `work.count` messages and read them, from `offset` on, at the same time. Return when all were read."""
        raise Unsupported("this client does not start to read at an offset")

    @abstractmethod
    def latency(self, peer: Peer, work: Work) -> Said:
        """Send `work.count` messages at `work.rate` per second and read them. Return percentiles in seconds.

        Latency runs from when a message is due by that rate until it is read. At rate 0 all are due at once.
        """


def run_all(commands: Sequence[Sequence[str]], limit: float = CLIENT_SECONDS) -> list[Said]:
    """Run client programs at the same time, for at most `limit` seconds. Return the line of JSON that each printed."""
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for command in commands
    ]
    try:
        outputs = [process.communicate(timeout=limit) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    for command, process, (_, errors) in zip(commands, running, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: {errors.strip()[-500:]}")
    return [parse(output) for output, _ in outputs]


def parse(output: str) -> Said:
    """Return the result in a client's line of JSON."""
    said = json.loads(output.strip().splitlines()[-1])
    percentiles = {name: float(said[name]) for name in ("p50", "p99", "p999", "highest") if name in said}
    began = float(said.get("began", 0))
    whole = float(said.get("whole", 0))
    return Said(int(said["messages"]), int(said["bytes"]), float(said["seconds"]), began, percentiles, whole)
