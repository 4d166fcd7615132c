"""One face for all clients: so many messages of one kind into a broker, out of it, or through it."""

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
    """A broker or its client can't do what an experiment asks; the text goes into the table."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a client shall do. `batch` None is the client's own default, `pull` 0 too (bytes).

    A client that is not done after `limit` seconds is ended, and that is an error.
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


@dataclass(frozen=True, slots=True)
class Said:
    """What a client measured: messages, bytes of their values, seconds, and when it began (CLOCK_MONOTONIC)."""

    messages: int
    bytes: int
    seconds: float
    began: float = 0.0
    percentiles: dict[str, float] = field(default_factory=dict)


class Load(ABC):
    """A client of one kind of broker."""

    #: whether a reader starts over at the log's end until it has as many messages as asked for
    starts_over = False

    @abstractmethod
    def client(self) -> str:
        """Its name and version, for the report."""

    @abstractmethod
    def check(self, work: Work) -> None:
        """Unsupported says what of this the client or its protocol can't produce."""

    @abstractmethod
    def produce(self, peer: Peer, work: Work) -> Said:
        """Send `work.count` messages; ends when all are acknowledged."""

    @abstractmethod
    def consume(self, peer: Peer, work: Work, readers: int = 1) -> list[Said]:
        """Read `work.count` messages with each of so many readers at once."""

    @abstractmethod
    def latency(self, peer: Peer, work: Work) -> Said:
        """Send `work.count` messages at `work.rate` a second and read them; percentiles in seconds."""


def run_all(commands: Sequence[Sequence[str]], limit: float = CLIENT_SECONDS) -> list[Said]:
    """Run client programs at the same time, for `limit` seconds at most; what each printed as one line of JSON."""
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
    """A client's line of JSON."""
    said = json.loads(output.strip().splitlines()[-1])
    percentiles = {name: float(said[name]) for name in ("p50", "p99", "p999", "highest") if name in said}
    began = float(said.get("began", 0))
    return Said(int(said["messages"]), int(said["bytes"]), float(said["seconds"]), began, percentiles)
