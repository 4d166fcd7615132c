"""A well-behaved client in a process of its own, which measures how long the broker lets it wait.

It produces a small record, fetches it and asks for metadata, over and over, on one connection. `Neighbour` runs it:
`python -m tests.extreme.neighbour TOPIC --address ADDRESS` (and the other options of `Access.words`) ends when its
standard input does, and then prints its samples as JSON. The topic exists.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.records import NewRecord, encode_batch
from tests.extreme.access import Access, access_of
from tests.rawclient import produce

TOPIC = "neighbour"
_CHECKOUT = Path(__file__).resolve().parents[2]
_PAUSE = 0.002  # seconds between two rounds


class Sample(NamedTuple):
    """One request: when it was sent, in seconds of the monotonic clock of the machine, and how long it took."""

    at: float
    seconds: float


class Neighbour:
    """The process. Use as a context manager; `finish` returns the samples."""

    def __init__(self, access: Access, topic: str = TOPIC) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.extreme.neighbour", topic, *access.words()],
            cwd=_CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the neighbour did not start")

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def finish(self) -> list[Sample]:
        """End the process and return what it measured, in order."""
        output, _ = self._process.communicate("", timeout=120)
        return [Sample(*sample) for sample in json.loads(output)]


def percentile(samples: list[Sample], share: float) -> float:
    """Return the time in milliseconds that this share of the samples took at most."""
    ordered = sorted(sample.seconds for sample in samples)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000


def measure(access: Access, topic: str) -> list[Sample]:
    """Measure until standard input ends."""
    samples: list[Sample] = []
    with access.connect() as client:
        wanted = MetadataRequest([MetadataRequestTopic(name=topic)])
        offset = 0
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], _PAUSE)[0]:
            samples += (
                _timed(
                    lambda: produce(client, topic, [encode_batch([NewRecord(None, b"v", time.time_ns() // 10**6)])])
                ),
                _timed(lambda at=offset: client.request(_fetch(topic, at), 11)),
                _timed(lambda: client.request(wanted, 9)),
            )
            offset += 1
    return samples


def _timed(call: object) -> Sample:
    begun = time.monotonic()
    call()  # type: ignore[operator]
    return Sample(begun, time.monotonic() - begun)


def _fetch(topic: str, offset: int) -> FetchRequest:
    partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic, partitions=[partition])]
    )


if __name__ == "__main__":
    print(json.dumps(measure(access_of(sys.argv[2:]), sys.argv[1])))
