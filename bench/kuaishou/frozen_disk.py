"""A disk that hangs, with and without queues for writes (the talk's third part, and its plan for half-dead disks)."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from bench.failover import wait_until
from bench.kuaishou import brokers, clients
from bench.kuaishou.clients import Clients, curve, percentile
from bench.kuaishou.experiment import Chart, Experiment, Measure, Points, Round, Scale, Target
from bench.kuaishou.lab import Disk, Laboratory
from pylogd.config.broker import SETTINGS
from pylogd.errors import ErrorCode
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.heartbeat import HeartbeatRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from pylogd.wire.records import encode_batch
from tests.rawclient import RawClient

SETTING: Final = "log.write.queues"
QUEUED: Final = 100
DISK: Final = 1 << 30
RATE: Final = 2_000_000  # bytes a second of each topic
VALUE_BYTES: Final = 10_000
_PATIENCE: Final = 120.0
_BEAT_SECONDS: Final = 0.05
_PROBE_SECONDS: Final = 1.0
_SECONDS: Final = 60.0
_REFUSED: Final = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR}


class Heartbeats(threading.Thread):
    """The only member of a group, which sends a heartbeat every 50 ms and notes how long the answer takes."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.samples: Points = []
        self.ended = threading.Event()
        self._client = RawClient(address, patience=_PATIENCE)
        wait_until(self._coordinator_is_there, "there is a coordinator")
        protocols = [JoinGroupRequestProtocol("range", b"")]
        joined = self._client.request(JoinGroupRequest("g", 60_000, 60_000, "", None, "consumer", protocols), 3)
        self._beat = HeartbeatRequest("g", joined.generation_id, joined.member_id)
        given = [SyncGroupRequestAssignment(joined.member_id, b"")]
        self._client.request(SyncGroupRequest("g", joined.generation_id, joined.member_id, assignments=given), 2)

    def _coordinator_is_there(self) -> bool:
        code: int = self._client.request(FindCoordinatorRequest("g"), 2).error_code
        return code == ErrorCode.NONE

    def run(self) -> None:
        """Send heartbeats until `ended` is set."""
        while not self.ended.wait(_BEAT_SECONDS):
            begun = time.monotonic()
            self._client.request(self._beat, 2)
            self.samples.append((begun, time.monotonic() - begun))
        self._client.close()


def refusals(address: str, topic: str, until: float) -> list[float]:
    """Send a record on a connection of its own again and again. Return the seconds until each refusal."""
    batch = encode_batch([(None, b"x", int(time.time() * 1000), ())])
    data = [PartitionProduceData(0, memoryview(batch))]
    request = ProduceRequest(None, -1, 30_000, [TopicProduceData(topic, partition_data=data)])
    found = []
    while time.monotonic() < until:
        client = RawClient(address, patience=_PROBE_SECONDS)
        begun = time.monotonic()
        with suppress(OSError):  # no answer: it waits in the queue, or the broker does not answer at all
            answer = client.request(request, 8)
            if answer.responses[0].partition_responses[0].error_code in _REFUSED:
                found.append(time.monotonic() - begun)
        client.close()
        time.sleep(_BEAT_SECONDS)
    return found


def topics(address: str, first: Disk) -> tuple[str, str]:
    """Create two topics, one on each disk. Return the one on `first`, then the other."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    for name in ("a", "b"):  # each goes to the directory with the fewest partitions
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(_SECONDS)
    [there] = [path.name for path in (first.mount / "data").glob("[ab]-0")]
    name = there.removesuffix("-0")
    return name, "b" if name == "a" else "a"


def run(lab: Laboratory, arm: str, scale: Scale) -> Round:
    """Do one round of an arm."""
    sick, sound = lab.disk("sick", DISK), lab.disk("sound", DISK)
    settings = {"default.replication.factor": "1", "offsets.topic.num.partitions": "1"}
    if arm == "queues":
        settings |= {SETTING: "always", "log.write.queue.max.requests": str(QUEUED)}
        settings["log.dir.failure.timeout.ms"] = "600000"
    first, second = sound.mount / "data", sick.mount / "data"
    address = brokers.start_broker(lab, 1, brokers.start_zookeeper(lab), first, None, settings, second)
    frozen, other = topics(address, sick)
    beats, running = Heartbeats(address), Clients()
    beats.start()
    try:
        live = {"rate": RATE, "value_bytes": VALUE_BYTES, "samples": 1}
        producers = [running.start("produce", address, topic=name, **live) for name in (frozen, other)]
        time.sleep(scale.seconds)
        with sick.frozen(2 * scale.seconds):
            begun = time.monotonic()
            time.sleep(scale.seconds / 2)
            refused = refusals(address, frozen, begun + scale.seconds)
            time.sleep(max(0.0, begun + scale.seconds - time.monotonic()))
        ended = time.monotonic()
        time.sleep(scale.seconds / 2)
        said, others = (running.result(one, stop=True) for one in producers)
        read = clients.run("catch-up", address, topic=frozen)
    finally:
        beats.ended.set()
        running.stop()
    beats.join(_PATIENCE)
    lost = max(0, said["bytes"] - read["bytes"]) // VALUE_BYTES
    return _result(others, beats.samples, refused, (begun, ended), lost)


def _result(
    others: dict[str, Any], beats: Points, refused: list[float], freeze: tuple[float, float], lost: int
) -> Round:
    begun, ended = freeze

    def p99(samples: Points, begin: float, end: float) -> float:
        return percentile(sorted(value for at, value in samples if begin <= at < end), 0.99) * 1000

    during = [value for at, value in beats if begun <= at < ended]
    figures = {
        "p99 of produce on the other disk, before": p99(others["samples"], others["begun"] + 1, begun),
        "p99 of produce on the other disk, frozen": p99(others["samples"], begun, ended),
        "slowest heartbeat while frozen": max(during, default=ended - begun) * 1000,
        "refusals of the frozen topic": float(len(refused)),
        "records that were acknowledged and lost": float(lost),
        "failed records on the other disk": others["failed"],
    }
    if refused:
        figures["slowest refusal"] = max(refused) * 1000
    curves = {
        "heartbeats": [(at - begun, value * 1000) for at, value in beats],
        "produce on the other disk": curve(others["stretches"], begun, 5, 1000.0),
    }
    return Round(figures, curves)


def why_not(arm: str) -> str:
    """Return why an arm can't run here."""
    return f"this pylogd has no setting {SETTING}" if arm == "queues" and SETTING not in SETTINGS else ""


EXPERIMENT: Final = Experiment(
    name="isolation",
    title="A disk that hangs",
    talk=(
        "If one topic's writes are slow, because its disk is, they occupy all threads that handle requests, and then "
        "every request of the broker hangs. So requests of the controller get a queue of their own, data gets queues "
        "by topic, and a full queue fails at once. Disks that are half dead are named as a plan; no figures are given."
    ),
    method=(
        "One broker with two data directories on two disks, and a topic on each, to which "
        f"{RATE / 1e6:.0f} MB/s are written in records of 10 kB with acks=1. One disk is frozen "
        "(FIFREEZE): writes to it hang until it is thawed. A member of a group sends heartbeats all the time. In the "
        "second half of the freeze, single records are sent to the frozen topic on connections of their own, and how "
        "long the refusal takes is noted. After the thaw the topic is read and compared with what was acknowledged. "
        "Second 0 of the charts is the freeze."
    ),
    arms={
        "stock": "writes on the broker's only thread",
        "queues": f"`{SETTING}=always`, `log.write.queue.max.requests={QUEUED}`",
    },
    measures=(
        Measure("p99 of produce on the other disk, before", "ms", 1),
        Measure("p99 of produce on the other disk, frozen", "ms", 1),
        Measure("slowest heartbeat while frozen", "ms"),
        Measure("refusals of the frozen topic", ""),
        Measure("slowest refusal", "ms"),
        Measure("records that were acknowledged and lost", ""),
        Measure("failed records on the other disk", ""),
    ),
    targets=(
        Target(
            "p99 of produce on the other disk, frozen", "queues", at_most=1.2, beside="queues",
            beside_measure="p99 of produce on the other disk, before", talk="unaffected",
        ),
        Target("slowest heartbeat while frozen", "queues", at_most=100, talk="unaffected"),
        Target("slowest refusal", "queues", at_most=50, talk="at once"),
        Target("records that were acknowledged and lost", "queues", at_most=0),
    ),
    charts=(Chart("heartbeats", "ms", logarithmic=True), Chart("produce on the other disk", "ms", logarithmic=True)),
    run=run,
    why_not=why_not,
    seconds=10.0,
)  # fmt: skip
