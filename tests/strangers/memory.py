"""Measure whether memory comes back: `python -m tests.strangers.memory [--count N]`.

Strangers make groups of the newer protocol, or transactional ids, which nobody uses again. When all have expired, they
make as many others. Printed is the memory of the broker before, and after each: what it took the second time must have
come back from the first. Exit status: 1 if something did not expire.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.list_groups import ListGroupsRequest
from pylogd.wire.messages.list_transactions import ListTransactionsRequest
from tests.extreme.access import Access
from tests.extreme.state import TOPIC
from tests.rawclient import RawClient, create_topic, encode, frame, memory, wait_until
from tests.strangers.crowds import connect, new_consumer_group, new_transactional_id

_CLIENTS: Final = 10
_AT_ONCE: Final = 20  # requests that a client sends before it reads
_FLOODS: Final = 3
_PATIENCE: Final = 300.0
_LIFE_MS: Final = 30_000
_SETTINGS: Final = {
    "group.consumer.min.session.timeout.ms": "1000", "group.consumer.session.timeout.ms": f"{_LIFE_MS}",
    "offsets.retention.check.interval.ms": "5000", "offsets.topic.num.partitions": "1",
    "transactional.id.expiration.ms": f"{_LIFE_MS}",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.num.partitions": "1",
}  # fmt: skip

Request = Callable[[], tuple[Any, int]]


async def _flood(address: str, request: Request, count: int) -> None:
    await asyncio.gather(*(_send(address, number, request, count // _CLIENTS) for number in range(_CLIENTS)))


async def _send(address: str, number: int, request: Request, count: int) -> None:
    reader, writer = await connect(Access(address), number)
    try:
        for _ in range(count // _AT_ONCE):
            for _ in range(_AT_ONCE):
                writer.write(frame(encode(*request())))
            for _ in range(_AT_ONCE):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await reader.readexactly(size)
    finally:
        writer.close()


def _wait_until_none(address: str, left: Callable[[str], int]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while found := left(address):
        assert time.monotonic() < deadline, f"{found} did not expire"
        time.sleep(1)


def _groups(address: str) -> int:
    with RawClient(address, patience=_PATIENCE) as client:  # not idle through a long flood
        return len(client.request(ListGroupsRequest(), 4).groups)


def _transactional_ids(address: str) -> int:
    with RawClient(address, patience=_PATIENCE) as client:
        return len(client.request(ListTransactionsRequest(duration_filter=-1), 1).transaction_states)


_KINDS: Final[tuple[tuple[str, int, Request, Callable[[str], int]], ...]] = (
    ("groups", 0, new_consumer_group, _groups),
    ("transactional ids", 1, new_transactional_id, _transactional_ids),
)


def _measure(name: str, kind: int, request: Request, left: Callable[[str], int], count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pylogd-memory-") as folder:
        broker = BrokerProcess(Path(folder) / "data", Path(folder) / "log", _SETTINGS)
        try:
            with RawClient(broker.address, patience=_PATIENCE) as client:
                create_topic(client, TOPIC)
                wait_until(
                    lambda: not client.request(FindCoordinatorRequest("x", kind), 2).error_code, "it has a coordinator"
                )
            print(f"{name}: {memory(broker.pid):.0f} MB before", flush=True)
            for number in range(1, _FLOODS + 1):
                begun = time.monotonic()
                asyncio.run(_flood(broker.address, request, count))
                seconds, there, resident = time.monotonic() - begun, left(broker.address), memory(broker.pid)
                print(f"{name}: {resident:.0f} MB after flood {number}, {count:,} in {seconds:.1f} s, {there:,} of "
                      "them there", flush=True)  # fmt: skip
                _wait_until_none(broker.address, left)
                print(f"{name}: {memory(broker.pid):.0f} MB when none was left", flush=True)
        finally:
            broker.kill()


def main() -> int:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.strangers.memory", description="does memory come back?")
    parser.add_argument("--count", type=int, default=20_000, help="of groups or ids in each flood (20000)")
    parser.add_argument("--only", default="", help="groups or transactional ids")
    options = parser.parse_args()
    for name, kind, request, left in _KINDS:
        if options.only in name:
            _measure(name, kind, request, left, options.count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
