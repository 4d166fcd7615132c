"""The time of a controller change with very many partitions, and of the Metadata response that names all of them.

    python -m bench controller-change [--partitions 10000] [--topics 100] [--rounds 1] [--folder DIR]

Three brokers of `pylogd cluster up` on this machine with a real ZooKeeper, default settings, replication factor 3. The
controller is stopped (SIGTERM) and started again; then the current controller is killed (SIGKILL). Measured are

- handed over: from the deletion of `/controller` until another broker has created it;
- after a kill: from the end of the killed broker's session (its node is deleted) until the new controller has written
  its last decision. That is the time stamp of `/brokers/incarnations`, which is written together with it;
- seen: until every remaining broker reports live leaders for all partitions;
- stall: the longest time that such a broker took meanwhile to answer the smallest request (ApiVersions);
- metadata: the response for all partitions, from the request to its last byte: the first one of a broker that has just
  started, and later ones; the broker's processor time for a later one.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from bench.harness import say
from bench.peers.base import process_seconds
from pylogd.base.errors import PylogdError
from pylogd.client import Admin, NewTopic
from pylogd.local.broker import BrokerProcess
from pylogd.local.cluster import LocalCluster
from pylogd.wire import schema
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.metadata import MetadataRequest

WAIT_SECONDS = 300.0
BROKERS = 3
_ANSWERS = 100
_METADATA_VERSION = 12
_API_VERSIONS_VERSION = 2
_CREATE_AT_ONCE = 10


def main() -> None:
    """Measure and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="folder for the brokers' data; by default a temporary one")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    arguments = parser.parse_args()
    rounds = [measure(arguments.partitions, arguments.topics, arguments.folder) for _ in range(arguments.rounds)]
    medians = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    if arguments.json:
        print(json.dumps(medians, indent=1))
        return
    for name, value in medians.items():
        print(f"{name:64} {value:9.4f} s   ({', '.join(f'{row[name]:.4f}' for row in rounds)})")


def measure(partitions: int = 10_000, topics: int = 100, folder: Path | None = None) -> dict[str, float]:
    """Run one round. Return seconds by what was measured."""
    with tempfile.TemporaryDirectory(dir=folder) as data, LocalCluster(Path(data), BROKERS) as cluster:
        zookeeper = KazooClient(cluster.zookeeper.hosts)
        zookeeper.start()
        try:
            found = {"all topics made": make(cluster, partitions, topics)}
            say("hand-over")
            found |= hand_over(cluster, zookeeper)
            found |= start_again(cluster)
            say("kill")
            found |= kill(cluster, zookeeper)
        finally:
            zookeeper.stop()
            zookeeper.close()
    return found


def make(cluster: LocalCluster, partitions: int, topics: int) -> float:
    """Create the topics, a few per request, and wait until all are in sync. Return how long that took."""
    begin = time.monotonic()
    new = [NewTopic(f"topic-{index:04}", partitions // topics, BROKERS) for index in range(topics)]
    with Admin(cluster.bootstrap) as admin:
        for start in range(0, topics, _CREATE_AT_ONCE):
            for error in admin.create_topics(new[start : start + _CREATE_AT_ONCE]).values():
                if error is not None:
                    raise error
    wait_until(lambda: in_sync(cluster), "all replicas are in sync")
    return time.monotonic() - begin


# -- controller changes


def hand_over(cluster: LocalCluster, zookeeper: KazooClient) -> dict[str, float]:
    """Stop the controller in order."""
    old = controller(cluster)
    left = [broker for broker in cluster.brokers.values() if broker is not old]
    vacant = _Gone(zookeeper, "/controller")
    with _Probes(left) as probes:
        begin = time.time()
        old.ask_to_stop()
        vacant.wait()
        seized = until_controller(zookeeper, old.node_id)
        cluster.brokers.pop(old.node_id).join(WAIT_SECONDS)
        written = until_decided(zookeeper, old.node_id)
        stall = probes.longest
    return {
        "stopped to vacant: the others lead": vacant.time - begin,
        "handed over: vacant to seized": max(
            seized - vacant.time, 0.0
        ),  # the watch may fire after the next node was created
        "stopped to all decided": written - begin,
        "longest stall of the others at a hand-over": stall,
    }


def start_again(cluster: LocalCluster) -> dict[str, float]:
    """Start the missing broker, and measure until it is in sync everywhere."""
    (missing,) = cluster.ports.keys() - cluster.brokers.keys()
    begin = time.monotonic()
    broker = cluster.start(missing)
    listens = time.monotonic() - begin
    first = metadata(broker, 1)[0]
    wait_until(lambda: in_sync(cluster), "the broker that came back is in sync")
    synced = time.monotonic() - begin
    say("metadata")
    changed = metadata_after_a_change(cluster, broker)
    spent = process_seconds(broker.pid)
    times = metadata(broker, _ANSWERS)
    return {
        "started again: listens": listens,
        "started again: in sync everywhere": synced,
        "started again: metadata of all partitions": first,
        "metadata of all partitions, first answer after a change": changed,
        "metadata of all partitions, cached": statistics.median(times),
        "metadata of all partitions, cached, processor": (process_seconds(broker.pid) - spent) / _ANSWERS,
    }


def kill(cluster: LocalCluster, zookeeper: KazooClient) -> dict[str, float]:
    """Kill the controller."""
    old = controller(cluster)
    left = [broker for broker in cluster.brokers.values() if broker is not old]
    gone = _Gone(zookeeper, f"/brokers/ids/{old.node_id}")
    with _Probes(left) as probes:
        begin = time.time()
        cluster.kill(old.node_id)
        gone.wait()
        seized = until_controller(zookeeper, old.node_id)
        decided = until_decided(zookeeper, old.node_id)
        for broker in left:
            wait_until(lambda broker=broker: led_by_others(broker, old.node_id), "all have a leader")  # type: ignore[misc]
        seen = time.time()
        stall = probes.longest
    return {
        "killed to detected": gone.time - begin,
        "detected to seized": seized - gone.time,
        "controller change after a kill: detected to all decided": decided - gone.time,
        "detected to seen on every broker": seen - gone.time,
        "longest stall of the others after a kill": stall,
    }


def controller(cluster: LocalCluster) -> BrokerProcess:
    """Return the broker that is the controller."""
    with Admin(cluster.bootstrap) as admin:
        node = admin.describe_cluster().controller
    return cluster.brokers[node]


class _Gone:
    """The time at which a node of ZooKeeper is deleted, as its watch reports it."""

    def __init__(self, zookeeper: KazooClient, path: str) -> None:
        self.time = 0.0
        self._gone = threading.Event()
        if zookeeper.exists(path, watch=self._note) is None:
            raise RuntimeError(f"there is no {path}")

    def _note(self, _: object) -> None:
        self.time = time.time()
        self._gone.set()

    def wait(self) -> None:
        """Return once the node is deleted."""
        if not self._gone.wait(WAIT_SECONDS):
            raise RuntimeError("a node of ZooKeeper was not deleted in time")


def until_controller(zookeeper: KazooClient, old: int) -> float:
    """Return when another broker than `old` became the controller, by ZooKeeper's clock, which is this machine's."""

    def seized() -> float:
        try:
            data, stat = zookeeper.get("/controller")
        except NoNodeError:
            return 0.0
        return 0.0 if json.loads(data)["brokerid"] == old else stat.ctime / 1000

    return wait_until(seized, "another broker is the controller")


def until_decided(zookeeper: KazooClient, old: int) -> float:
    """Return when the last decision without the broker `old` was written, by the same clock."""

    def decided() -> float:
        data, stat = zookeeper.get("/brokers/incarnations")
        return 0.0 if str(old) in json.loads(data)["brokers"] else stat.mtime / 1000

    return wait_until(decided, "the controller has decided")


# -- responses of a broker


class _Probes:
    """Send the smallest requests to brokers, one after the other. `longest` is the longest time of an answer."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self.longest = 0.0
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(broker,)) for broker in brokers]

    def __enter__(self) -> _Probes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, broker: BrokerProcess) -> None:
        request = frame(ApiVersionsRequest(), _API_VERSIONS_VERSION)
        with socket.create_connection((broker.host, broker.port)) as connection:
            while not self._end.wait(0.01):
                begin = time.monotonic()
                answer(connection, request)
                self.longest = max(self.longest, time.monotonic() - begin)


def metadata(broker: BrokerProcess, count: int) -> list[float]:
    """Return the seconds that `count` Metadata answers for all topics take, one after the other."""
    request = frame(MetadataRequest(topics=None), _METADATA_VERSION)
    times = []
    with socket.create_connection((broker.host, broker.port)) as connection:
        for _ in range(count):
            begin = time.monotonic()
            answer(connection, request)
            times.append(time.monotonic() - begin)
    return times


def metadata_after_a_change(cluster: LocalCluster, broker: BrokerProcess) -> float:
    """Return the seconds that the first Metadata answer takes after a topic was added, which can't be cached."""
    request = frame(MetadataRequest(topics=None), _METADATA_VERSION)
    with socket.create_connection((broker.host, broker.port)) as connection, Admin(cluster.bootstrap) as admin:
        before = answer(connection, request)
        for error in admin.create_topics([NewTopic(f"more-{time.monotonic_ns()}", 1, BROKERS)]).values():
            if error is not None:
                raise error
        while True:
            begin = time.monotonic()
            if answer(connection, request) != before:
                return time.monotonic() - begin


def frame(request: object, version: int) -> bytes:
    """Return the bytes of a request from a client without a client id."""
    key: int = request.API_KEY  # type: ignore[attr-defined]
    body = b"".join(map(bytes, schema.request_codec(key, version).encode(request)))  # type: ignore[arg-type]
    head = struct.pack(">hhih", key, version, 1, -1) + b"\0" * (schema.request_header_version(key, version) - 1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def answer(connection: socket.socket, request: bytes) -> int:
    """Send a request and receive its answer without decoding it. Return the answer's size in bytes."""
    connection.sendall(request)
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    left = size
    while left:
        chunk = connection.recv(min(left, 1 << 20))
        if not chunk:
            raise RuntimeError("the broker closed the connection")
        left -= len(chunk)
    return int(size)


def in_sync(cluster: LocalCluster) -> bool:
    """Return whether every broker sees every replica in sync."""
    return all(
        all(len(one.isr) == BROKERS for topic in topics(broker) for one in topic.partitions)
        for broker in cluster.brokers.values()
    )


def led_by_others(broker: BrokerProcess, dead: int) -> bool:
    """Return whether a broker names a leader for every partition, other than the dead one."""
    return all(one.leader not in (dead, -1) for topic in topics(broker) for one in topic.partitions)


def topics(broker: BrokerProcess):  # type: ignore[no-untyped-def]
    """Return all topics as a broker describes them."""
    with Admin(broker.address) as admin:
        return admin.list_topics()


def wait_until(condition: Callable[[], float], what: str) -> float:
    """Return the first true result of `condition`. Raises RuntimeError if there is none in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            found = condition()
        except PylogdError:
            found = 0.0
        if found:
            return found
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {WAIT_SECONDS:.0f} s: {what}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
