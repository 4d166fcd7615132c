"""The transactional producers of bench/transactions.py: transact.c on librdkafka, and Java's own client."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.loads.kafka import compiled
from bench.peers import fetching
from bench.peers.base import Peer, process_seconds
from conformance import java_tools

HERE: Final = Path(__file__).parent
_SHOWN: Final = 4000  # characters of what a client that failed has said
_LIMIT_SECONDS: Final = 120.0  # for one run, beside its warm-up and its measured time


@dataclass(frozen=True, slots=True)
class Load:
    """What transactional producers do.

    client: a key of `CLIENTS`. offsets: whether each transaction has offsets of a group too. messages, size: of a
    transaction, and of a message in bytes. partitions: of each topic.
    """

    client: str
    producers: int
    offsets: bool = False
    messages: int = 100
    size: int = 1000
    partitions: int = 5
    topics: tuple[str, ...] = ("t0", "t1")

    @property
    def name(self) -> str:
        """The name of a row."""
        producers = "1 producer" if self.producers == 1 else f"{self.producers} producers"
        return f"{self.client}, {producers}" + (", with offsets" if self.offsets else "")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of a load found.

    rate: transactions in a second. broker_ms, client_ms: processor time of a transaction, of the broker's processes and
    of the client. The others are seconds, and a count: those of the warm-up are included.
    """

    rate: float
    broker_ms: float
    client_ms: float
    commit_p50: float
    commit_p99: float
    whole_p50: float
    whole_p99: float
    aborted: int


class ClientEnded(RuntimeError):
    """The client ended before its time.

    Java's may: it looks whether records wait to be sent before it takes the lock under which it looks whether a commit
    waits (`Sender.maybeSendAndPollTransactionalRequest`). If both are enqueued in between, it commits first, and the
    broker answers INVALID_TXN_STATE. Of some 36,000 transactions one was hit. An application has to start again.
    """


class NothingCommitted(RuntimeError):
    """Raised if no transaction was committed while a turn was measured."""


def _librdkafka() -> list[str]:
    return [str(compiled(HERE / "transact.c"))]


def _java() -> list[str]:
    program, heap, _, jars = java_tools.java()
    return [program, heap, "-cp", fetching.java_classes("transactions", jars, [HERE / "java" / "Transactions.java"]),
            "Transactions"]  # fmt: skip


#: How the clients are started, which builds them if need be.
CLIENTS: Final[Mapping[str, Callable[[], list[str]]]] = {"Java": _java, "librdkafka": _librdkafka}


def turn(peer: Peer, load: Load, prefix: str, warm: float, seconds: float) -> Turn:
    """Run a load's producers, and measure broker and client for `seconds` after `warm` seconds.

    prefix: of their transactional ids.
    """
    what = (load.producers, warm, seconds, load.messages, load.size, load.partitions)
    group = f"{prefix}-group" if load.offsets else "-"
    command = [*CLIENTS[load.client](), peer.address, prefix, *map(str, what), group, *load.topics]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        watchdog = threading.Timer(_LIMIT_SECONDS + warm + seconds, process.kill)
        watchdog.start()
        try:
            return _measured(peer, process, command)
        except RuntimeError as error:
            errors.seek(0)
            error.add_note(errors.read()[-_SHOWN:])
            raise
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()


def _measured(peer: Peer, process: subprocess.Popen[str], command: Sequence[str]) -> Turn:
    assert process.stdout is not None
    used: list[tuple[float, float]] = []
    for expected in ("begin", "end"):
        line = process.stdout.readline().strip()
        if line != expected:
            raise ClientEnded(f"{' '.join(command)}: {line or 'it ended'}")
        used.append((peer.cpu_seconds(), process_seconds(process.pid)))
    said = json.loads(process.stdout.readline() or "{}")
    if not said.get("transactions"):
        raise NothingCommitted(f"{' '.join(command)}: no transaction was committed in time")
    broker, client = (1000 * (after - before) / said["transactions"] for before, after in zip(*used, strict=True))
    return Turn(
        said["transactions"] / said["seconds"], broker, client,
        said["commit_p50"], said["commit_p99"], said["whole_p50"], said["whole_p99"], said["aborted"],
    )  # fmt: skip
