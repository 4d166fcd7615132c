"""What a rebalance costs a large group: classic and newer protocol (KIP-848), on pylogd and on Apache Kafka.

A group of 500 members reads a topic of 2,000 partitions. All join at once; then one leaves; then one joins. For each
event: seconds until every partition has exactly one member and nobody has anything left to do; how many partitions
moved from one member that stays to another; how many members had to stop: in the classic protocol, all that joined
again, as its eager assignors have it; in the newer one, those that had to give up partitions.

Members are coroutines of this program, on a connection each. They speak the protocols as clients do, give up partitions
at once, and send heartbeats every second (settings of both brokers). The classic group's leader assigns ranges in the
order of member ids. Brokers take turns.

    python -m bench.rebalances [--members N] [--partitions N] [--rounds N] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from bench.machine import machine
from bench.peers.base import Peer, unwind_on_sigterm
from bench.peers.kafka_protocol import Kafka, Pylogd
from pylogd.client import Admin, Cluster
from pylogd.client.core.group.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from pylogd.client.core.model import TopicPartition
from pylogd.errors import ErrorCode
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.leave_group import LeaveGroupRequest
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pylogd.wire.schema import request_codec, request_header_version, response_codec, response_header_version
from tests.pages import write_page

HERE: Final = Path(__file__).parent
GROUP, TOPIC = "storm", "storm"
BEAT: Final = 1.0  # seconds between heartbeats
LIMIT: Final = 180.0  # seconds for one event
SETTINGS: Final = {
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.max.size": "100000",
    "group.initial.rebalance.delay.ms": "3000",
}
#: Kafka has bounds of its own for the interval.
KAFKA_SETTINGS: Final = {**SETTINGS, "group.consumer.min.heartbeat.interval.ms": "1000"}

#: What a coordinator answers that has just been found and is not ready yet.
NOT_YET: Final = {
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
}  # fmt: skip

Partition = tuple[bytes | str, int]


class ConfiguredPylogd(Pylogd):
    """pylogd with the benchmark's settings."""

    def start(self) -> None:
        begun = time.monotonic()
        self._process = process = BrokerProcess(self.data, self.folder / "log", SETTINGS, bind_life=False)
        self.host, self.port, self.pid = process.host, process.port, process.pid
        self.await_accept(lambda: process.exit_code is None, begun)


class ConfiguredKafka(Kafka):
    """Apache Kafka with the benchmark's settings."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with self._properties.open("a") as file:
            file.write("".join(f"{name}={value}\n" for name, value in KAFKA_SETTINGS.items()))


class Wire:
    """A connection that carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, host: str, port: int) -> Wire:
        """Connect."""
        return cls(*await asyncio.open_connection(host, port))

    async def ask(self, message: Any, version: int) -> Any:
        """Send a request and return its answer."""
        key = message.API_KEY
        head = struct.pack(">hhih", key, version, 1, 5) + b"storm" + b"\0" * (request_header_version(key, version) >= 2)
        body = head + b"".join(cast("list[bytes]", request_codec(key, version).encode(message)))
        self._writer.write(struct.pack(">i", len(body)) + body)
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        data = await self._reader.readexactly(length)
        return response_codec(key, version).decode(memoryview(data)[4 + (response_header_version(key, version) >= 1) :])

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class Member:
    """A member of the group. has: its partitions. busy: whether it waits for a new assignment. stops: how often it had
    to stop reading some or all of its partitions."""

    def __init__(self, name: str, wire: Wire, count: int) -> None:
        self.name = name
        self.wire = wire
        self.count = count
        self.has: frozenset[Partition] = frozenset()
        self.busy = True
        self.stops = 0
        self.leaving = False

    async def run(self) -> None:
        """Be a member until `leaving` is set."""
        raise NotImplementedError


class NewMember(Member):
    """A member by the newer protocol."""

    async def run(self) -> None:
        epoch, told = 0, True
        while True:
            if self.leaving:
                await self.wire.ask(ConsumerGroupHeartbeatRequest(GROUP, self.name, -1), 1)
                return
            answer = await self.wire.ask(self._request(epoch, told), 1)
            if answer.error_code in NOT_YET:
                await asyncio.sleep(0.1)
                continue
            if answer.error_code:
                raise RuntimeError(f"{self.name}: {ErrorCode(answer.error_code).name}: {answer.error_message}")
            before, told = self.has, False
            if answer.assignment is not None:
                found = answer.assignment.topic_partitions
                self.has = frozenset((bytes(one.topic_id), index) for one in found for index in one.partitions)
                self.stops += bool(before - self.has)
                told = self.has != before
            self.busy = told or answer.member_epoch != epoch
            epoch = answer.member_epoch
            if not told:
                await asyncio.sleep(BEAT)

    def _request(self, epoch: int, told: bool) -> ConsumerGroupHeartbeatRequest:
        if not epoch:
            return ConsumerGroupHeartbeatRequest(GROUP, self.name, 0, None, None, 60_000, [TOPIC], None, None, [])
        if not told:
            return ConsumerGroupHeartbeatRequest(GROUP, self.name, epoch)
        owned: dict[bytes, list[int]] = {}
        for topic, index in sorted(self.has):
            owned.setdefault(topic, []).append(index)  # type: ignore[arg-type]  # ids here
        mine = [OwnedTopicPartitions(topic, found) for topic, found in owned.items()]
        return ConsumerGroupHeartbeatRequest(GROUP, self.name, epoch, topic_partitions=mine)


class ClassicMember(Member):
    """A member by the classic protocol."""

    async def run(self) -> None:
        member_id = ""
        subscription = encode_subscription(Subscription((TOPIC,)))
        while True:
            self.busy = True
            joining = JoinGroupRequest(
                GROUP, 60_000, 60_000, member_id, None, "consumer", [JoinGroupRequestProtocol("range", subscription)]
            )
            joined = await self.wire.ask(joining, 3)
            if joined.error_code in NOT_YET:
                await asyncio.sleep(0.1)
                continue
            member_id, generation = joined.member_id, joined.generation_id
            assignments = _ranges([one.member_id for one in joined.members], self.count)
            syncing = SyncGroupRequest(GROUP, generation, member_id, assignments=assignments)
            synced = await self.wire.ask(syncing, 2)
            if synced.error_code:
                continue
            self.has = frozenset((one.topic, one.partition) for one in decode_assignment(synced.assignment))
            self.busy = False
            while True:
                await asyncio.sleep(BEAT)
                if self.leaving:
                    await self.wire.ask(LeaveGroupRequest(GROUP, member_id), 2)
                    return
                answer = await self.wire.ask(HeartbeatRequest(GROUP, generation, member_id), 2)
                if answer.error_code:
                    self.stops += 1
                    break


def _ranges(member_ids: list[str], count: int) -> list[SyncGroupRequestAssignment]:
    """Return ranges of the topic's partitions for members, in the order of their ids; none for who does not lead."""
    assignments, at = [], 0
    for place, member_id in enumerate(sorted(member_ids)):
        size = count // len(member_ids) + (place < count % len(member_ids))
        partitions = [TopicPartition(TOPIC, index) for index in range(at, at + size)]
        assignments.append(SyncGroupRequestAssignment(member_id, encode_assignment(partitions)))
        at += size
    return assignments


class Storm:
    """A group on one broker."""

    def __init__(self, peer: Peer, kind: type[Member], count: int) -> None:
        self._peer, self._kind, self._count = peer, kind, count
        self._members: dict[str, Member] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, *names: str) -> None:
        """Have members join."""
        for name in names:
            member = self._kind(name, await Wire.to(self._peer.host, self._peer.port), self._count)
            self._members[name] = member
            self._tasks[name] = asyncio.create_task(member.run())

    async def leave(self, name: str) -> None:
        """Have a member leave, and wait until it is gone."""
        self._members[name].leaving = True
        await self._tasks.pop(name)
        self._members.pop(name).wire.close()

    async def settled(self) -> None:
        """Wait until every partition has one member, and nobody has anything left to do."""
        deadline = time.monotonic() + LIMIT
        while True:
            for name, task in self._tasks.items():
                if task.done():
                    task.result()
                    raise RuntimeError(f"{name} left by itself")
            sizes = [len(member.has) for member in self._members.values()]
            quiet = not any(member.busy for member in self._members.values())
            if quiet and sum(sizes) == self._count and max(sizes) - min(sizes) <= 1:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"not settled: {sum(sizes)} of {self._count} partitions have a member")
            await asyncio.sleep(0.01)

    async def event(self, what: Callable[[], Any]) -> Mapping[str, float]:
        """Return what an event costs."""
        before = {name: member.has for name, member in self._members.items()}
        stops = {name: member.stops for name, member in self._members.items()}
        cpu, begun = self._peer.cpu_seconds(), time.monotonic()
        await what()
        await self.settled()
        stay = before.keys() & self._members.keys()
        had = {partition: name for name in stay for partition in before[name]}
        now = {partition: name for name in self._members for partition in self._members[name].has}
        return {
            "seconds": time.monotonic() - begun,
            "partitions moved": sum(now[partition] != name for partition, name in had.items()),
            "members stopped": sum(self._members[name].stops > stops[name] for name in stay),
            "broker's processor, s": self._peer.cpu_seconds() - cpu,
        }

    async def close(self) -> None:
        """End all members."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def measure(peer: Peer, kind: type[Member], members: int, partitions: int) -> dict[str, Mapping[str, float]]:
    """Return what each event costs."""
    wire = await Wire.to(peer.host, peer.port)
    while (await wire.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)).coordinators[0].error_code:
        await asyncio.sleep(0.2)
    storm = Storm(peer, kind, partitions)
    names = [f"m{number:05}" for number in range(members)]
    try:
        return {
            "all join": await storm.event(lambda: storm.join(*names)),
            "one leaves": await storm.event(lambda: storm.leave(names[members // 2])),
            "one joins": await storm.event(lambda: storm.join("newcomer")),
        }
    finally:
        await storm.close()


PEERS: Final[Mapping[str, type[Peer]]] = {"pylogd": ConfiguredPylogd, "Apache Kafka": ConfiguredKafka}
KINDS: Final[Mapping[str, type[Member]]] = {"classic": ClassicMember, "newer": NewMember}
Found = dict[tuple[str, str, str, str], list[float]]


def one_round(members: int, partitions: int, found: Found) -> None:
    """Measure each broker and protocol once, each on a fresh broker."""
    for peer_name, make in PEERS.items():
        for kind_name, kind in KINDS.items():
            with tempfile.TemporaryDirectory() as folder:
                peer = make(Path(folder))
                peer.start()
                try:
                    with Cluster(peer.address) as cluster:
                        Admin(cluster).create_topic(TOPIC, partitions)
                    events = asyncio.run(measure(peer, kind, members, partitions))
                finally:
                    peer.stop()
            for event, measures in events.items():
                for name, value in measures.items():
                    found.setdefault((event, peer_name, kind_name, name), []).append(value)
                    print(f"{peer_name}, {kind_name}, {event}: {name} {value:.2f}", flush=True)


def report(found: Found, members: int, partitions: int, rounds: int) -> str:
    """Return the results as Markdown."""
    columns = [(peer, kind) for peer in PEERS for kind in KINDS]
    lines = [
        "# Rebalances of a large group", "",
        f"By `python -m bench.rebalances --rounds {rounds}`: {members} members, {partitions:,} partitions, heartbeats "
        "every second; medians. Its docstring explains the method. What is asked for: the group settles in under 5 s.",
        "", "| event | | " + " | ".join(f"{peer}, {kind}" for peer, kind in columns) + " |",
        "| --- | --- |" + " ---: |" * len(columns),
    ]  # fmt: skip
    for event, name in dict.fromkeys((event, name) for event, _, _, name in found):
        cells = [statistics.median(found[event, peer, kind, name]) for peer, kind in columns]
        digits = 0 if name.endswith(("moved", "stopped")) else 2
        lines.append(f"| {event} | {name} | " + " | ".join(f"{cell:,.{digits}f}" for cell in cells) + " |")
    where = machine("")
    lines += [
        "", f"Measured on {where['cores']} cores ({where['processor']}), {where['memory']}, {where['system']}, "
        f"Python {where['python']}, at commit {where['commit']}. The members run on the same cores.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write REBALANCES.md")
    options = parser.parse_args()
    unwind_on_sigterm()
    found: Found = {}
    for _ in range(options.rounds):
        one_round(options.members, options.partitions, found)
    text = report(found, options.members, options.partitions, options.rounds)
    print(text)
    if options.write:
        write_page(HERE / "REBALANCES.md", [text])


if __name__ == "__main__":
    main()
