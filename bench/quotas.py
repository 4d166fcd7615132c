"""`make bench-quotas`: do quotas hold, and what do other clients notice? Writes QUOTAS.md and quotas.json.

Rules: real brokers (`pylogd.local`), default settings, quotas set by AlterClientQuotas by client id; unmodified
librdkafka as client (`quota_clients`), one process for each. Values are not compressed. A byte rate is what was
acknowledged or received in `--seconds` from the first request on, at each broker by itself, since quotas hold on each
broker. Clients in one row run at the same time. The results of a row are saved when it ends; `--only` measures some.

    python -m bench quotas [--only WORD] [--seconds 60] [--pairs 4] [--folder DIR] [--list]
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final

from bench.cluster import Figure, Samples, create
from bench.harness import say
from bench.peers.base import process_seconds
from bench.quota_clients import request_bytes
from bench.quota_report import Results, table
from bench.quota_runs import (
    CLIENT_SECONDS,
    MB,
    SETTINGS,
    Clients,
    Scale,
    Use,
    client,
    crowded_broker,
    make_topic,
    one_broker,
    set_quota,
    tls_broker,
)
from pylogd.client import Admin, NewTopic
from pylogd.client.core.admin.access_operations import QuotaEntity
from pylogd.local.broker import BrokerProcess
from pylogd.local.cluster import LocalCluster
from tests.pages import write_page

HERE: Final = Path(__file__).parent
#: How far a rate may be from its quota.
NEAR: Final = 0.02
_BROKERS: Final = 3
_FILLED: Final = 600 * MB
_FILL_RATE: Final = 150 * MB
_SMALL_SEGMENTS: Final = {"segment.bytes": str(64 << 20), "retention.bytes": str(256 << 20)}
_IDLE_PERCENT: Final = 0.5  # of a core: what a broker does by itself
_SETTLE_SECONDS: Final = 4.0
_HEARTBEAT: Final = re.compile(r"%7\|([0-9.]+)\|RECV\|.*Received HeartbeatResponse .*rtt ([0-9.]+)ms")


SIDE_BY_SIDE: Final = [Use(verb, rate * MB) for verb in ("produce", "consume") for rate in (1, 10)]
SHARED: Final = [Use(verb, 10 * MB, 20) for verb in ("produce", "consume")]


# -- byte rates


def _use(found: Samples, bootstrap: str, nodes: Sequence[int], uses: Sequence[Use], seconds: float) -> None:
    """Run clients at the same time. Note the rate that each had at each broker, as a part of its quota."""
    clients = Clients()
    for use in uses:
        set_quota(bootstrap, use.client_id, **use.quota)
        clients.start(
            use.verb, bootstrap, topic=use.client_id, partitions=len(nodes), client_id=use.client_id, seconds=seconds,
            connections=use.connections, bytes_per_second=use.rate,
        )  # fmt: skip
    for use, result in zip(uses, clients.results(), strict=True):
        shares = []
        for index, node in enumerate(nodes):
            share = result["bytes"].get(str(index), 0) / seconds / use.rate
            shares.append(share)
            where = f", broker {node}" if len(nodes) > 1 else ""
            found.add(f"{use}{where}", "of the quota", share, at_least=1 - NEAR, at_most=1 + NEAR)
        found.add(f"{use}: the longest throttle time", "s", result["longest_throttle"])
        told = 100 * result["throttled_seconds"] / seconds / len(nodes)
        found.add(f"{use}: told to wait, all throttle times together", "% of the time", told)
        say(
            f"{use}: {', '.join(f'{share:.4f}' for share in shares)} of the quota; "
            f"throttled {result['throttled']} times"
        )


def _prepare(bootstrap: str, cluster: LocalCluster | None, nodes: Sequence[int], uses: Sequence[Use]) -> None:
    """Create a topic for each client, with a partition on each broker; with records if the client reads."""
    places = {index: (node,) for index, node in enumerate(nodes)}
    topics = [
        NewTopic(use.client_id, assignments=places, configs=_SMALL_SEGMENTS if use.verb == "produce" else {})
        for use in uses
    ]
    if cluster is not None:
        create(cluster, topics, 1)
    else:
        with Admin(bootstrap) as admin:
            for error in admin.create_topics(topics).values():
                if error is not None:
                    raise error
    for use in uses:
        if use.verb == "consume":
            size = min(_FILLED, 15 * use.rate)
            client(
                "produce", bootstrap, topic=use.client_id, partitions=len(nodes), client_id="filler",
                seconds=max(size * len(nodes) / _FILL_RATE, 0.5), bytes_per_second=_FILL_RATE,
                batch_bytes=request_bytes(use.rate),
            )  # fmt: skip


def _on_one(scale: Scale, *groups: Sequence[Use]) -> list[Figure]:
    found = Samples()
    for uses in groups:
        with one_broker(scale) as broker:
            _prepare(broker.address, None, [1], uses)
            _use(found, broker.address, [1], uses, scale.seconds)
    return found.list()


@contextmanager
def _three_brokers(scale: Scale) -> Iterator[LocalCluster]:
    with (
        tempfile.TemporaryDirectory(dir=scale.folder) as folder,
        LocalCluster(Path(folder), _BROKERS, settings=SETTINGS) as cluster,
    ):
        yield cluster


def _on_three(scale: Scale, *groups: Sequence[Use]) -> list[Figure]:
    found = Samples()
    for uses in groups:
        with _three_brokers(scale) as cluster:
            nodes = list(cluster.brokers)
            _prepare(cluster.bootstrap, cluster, nodes, uses)
            _use(found, cluster.bootstrap, nodes, uses, scale.seconds)
    return found.list()


def slow_on_one(scale: Scale) -> list[Figure]:
    """One broker; producers and consumers of 1 and 10 MB/s, with one connection and with 20, all at the same time."""
    return _on_one(scale, [*SIDE_BY_SIDE, *SHARED])


def fast_on_one(scale: Scale) -> list[Figure]:
    """One broker; a producer of 100 MB/s, then a consumer of 100 MB/s."""
    return _on_one(scale, [Use("produce", 100 * MB)], [Use("consume", 100 * MB)])


def slow_on_three(scale: Scale) -> list[Figure]:
    """Three brokers, a partition on each; clients of 1 and 10 MB/s at the same time. Each broker allows its quota."""
    return _on_three(scale, SIDE_BY_SIDE)


def fast_on_three(scale: Scale) -> list[Figure]:
    """Three brokers, a partition on each; a producer, then a consumer of 100 MB/s on each broker, 300 together.

    First what the machine carries without a quota, in the same time: less than the quota can't reach it. How much of
    the time the brokers told the client to wait, and how busy the processors were, says what held it.
    """
    return _beside_none(scale, 100 * MB)


def medium_on_three(scale: Scale) -> list[Figure]:
    """The same with 60 MB/s on each broker, which the machine can carry beside brokers and clients."""
    return _beside_none(scale, 60 * MB)


def _beside_none(scale: Scale, rate: float) -> list[Figure]:
    """Produce and consume with a quota of three brokers, and before that without."""
    found = Samples()
    for verb in ("produce", "consume"):
        with _three_brokers(scale) as cluster:
            use = Use(verb, rate)
            nodes = list(cluster.brokers)
            _prepare(cluster.bootstrap, cluster, nodes, [use])
            with _busy(found, f"{verb} without a quota"):
                result = client(
                    verb, cluster.bootstrap, topic=use.client_id, partitions=_BROKERS, client_id=use.client_id,
                    seconds=scale.seconds, bytes_per_second=use.rate,
                )  # fmt: skip
            free = sum(result["bytes"].values()) / MB / scale.seconds
            found.add(f"{verb} without a quota, all three brokers", "MB/s", free)
            say(f"{verb} without a quota: {free:,.0f} MB/s")
            with _busy(found, str(use)):
                _use(found, cluster.bootstrap, nodes, [use], scale.seconds)
    return found.list()


@contextmanager
def _busy(found: Samples, what: str) -> Iterator[None]:
    """Note how many of the machine's processors were busy."""
    before, begun = _processor_seconds(), time.monotonic()
    yield
    used = (_processor_seconds() - before) / (time.monotonic() - begun)
    found.add(f"{what}: processors busy, of {os.cpu_count()}", "", used)


def _processor_seconds() -> float:
    """Return for how many seconds the machine's processors have worked since it was started."""
    names = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _waiting, *interrupts = (int(ticks) for ticks in names[:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


# -- other clients


_ARMS: Final = ("alone", "beside clients that keep to the rate", "beside violators")


def others(scale: Scale) -> list[Figure]:
    """Latency of another client alone, and beside a producer and a consumer that get 10 MB/s.

    These want all, and the quota holds them, or they limit themselves to that rate without a quota: what they cost in
    that arm is the work for 10 MB/s on a machine that all share. 200 records a second of 100 bytes, each due at a time
    fixed beforehand, from which its latency counts. Rounds of 10 seconds in turns; a ratio is that of two rounds of the
    same turn.
    """
    found = Samples()
    uses = [Use("produce", 10 * MB), Use("consume", 10 * MB)]
    with one_broker(scale) as broker:
        _prepare(broker.address, None, [1], uses)
        make_topic(broker.address, "probe")
        for number in range(scale.pairs):
            turn = [*_ARMS[number % 3 :], *_ARMS[: number % 3]]
            results = {arm: _probe(broker.address, arm, uses, min(scale.seconds, 10.0)) for arm in turn}
            for verb, name in product(("produce", "fetch"), ("p50", "p99")):
                values = [results[arm][verb][name] for arm in _ARMS]
                for arm, value in zip(_ARMS, values, strict=True):
                    found.add(f"{verb}, {name}: {arm}", "ms", value)
                found.add(f"{verb}, {name}: violators / alone", "", values[2] / values[0])
                found.add(f"{verb}, {name}: violators / clients that keep to the rate", "", values[2] / values[1])
            say(f"produce and fetch: {results}")
    return found.list()


def thousands(scale: Scale) -> list[Figure]:
    """5,000 connections from 30 addresses at a broker with max.connections=1000; each served one stays for a second.

    Beside them a client that was there before them (latencies as in the row above), and an operator who connects anew
    by the listener between brokers, ten times in each round. If the order is fair, all wait for about the same time.
    That client is measured beside the same 5,000 at another broker of the machine too: what it waits for there is the
    processor, which three processes share.
    """
    found = Samples()
    seconds = min(scale.seconds, 10.0)
    for _ in range(max(scale.pairs // 2, 1)):
        with crowded_broker(scale) as (broker, clients), crowded_broker(scale) as (_, elsewhere):
            make_topic(broker.address, "probe")
            before = _resident_mb(broker.pid)
            alone = client("latency", clients, topic="probe", client_id="probe", seconds=seconds, rate=200)
            other, _, _ = _beside_many(broker, clients, elsewhere, seconds)
            beside, crowd, times = _beside_many(broker, clients, clients, seconds)
            memory = _resident_mb(broker.pid) - before
        for verb in ("produce", "fetch"):
            found.add(f"{verb}, p99: alone", "ms", alone[verb]["p99"])
            found.add(f"{verb}, p99: beside 5,000 connections at another broker", "ms", other[verb]["p99"])
            found.add(f"{verb}, p99: beside 5,000 connections", "ms", beside[verb]["p99"])
        found.add("an operator's connection and first answer, the slowest", "s", max(times), at_most=1)
        found.add("the broker's memory grew by", "MB", memory, at_most=64)
        found.add("connections served", "/s", crowd["served"] / seconds)
        waited = crowd["waited"]
        found.add("seconds until a connection is served, median", "s", waited[len(waited) // 2])
        found.add("the longest beside the median", "", waited[-1] / waited[len(waited) // 2], at_most=1.5)
        found.add("connections refused", "", crowd["refused"])
    return found.list()


def _beside_many(
    broker: BrokerProcess, address: str, crowded: str, seconds: float
) -> tuple[dict[str, dict[str, float]], dict[str, Any], list[float]]:
    """Measure latencies at `address` while 5,000 connections come to `crowded`.

    Return them, what the crowd noted, and how long an operator's connections took.
    """
    many = Clients()
    try:
        many.start("latency", address, topic="probe", client_id="probe", seconds=seconds, rate=200)
        time.sleep(1.5)
        many.start("crowd", crowded, connections=5000, seconds=seconds, hold=1.0)
        times = [_operator_seconds(broker.address, seconds / 10) for _ in range(10)]
        latencies, crowd = many.results()
    finally:
        many.stop()
    return latencies, crowd, times


def _operator_seconds(address: str, every: float) -> float:
    """Return how long a new connection and its first answer take. Takes `every` seconds in all, or longer."""
    begun = time.monotonic()
    with Admin(address) as admin:
        admin.describe_cluster()
    seconds = time.monotonic() - begun
    time.sleep(max(every - seconds, 0))
    return seconds


def _resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return 0.0 if found is None else int(found[1]) * 1024 / MB


def _probe(address: str, arm: str, uses: Sequence[Use], seconds: float) -> dict[str, dict[str, float]]:
    """Measure latencies in one of `_ARMS`."""
    alone, paced, _ = _ARMS
    running = Clients()
    try:
        for use in () if arm == alone else uses:
            limits = {name: None if arm == paced else limit for name, limit in use.quota.items()}
            set_quota(address, use.client_id, **limits)
            running.start(
                use.verb, address, topic=use.client_id, client_id=use.client_id, seconds=CLIENT_SECONDS,
                pace=use.rate if arm == paced else 0,
            )  # fmt: skip
        time.sleep(_SETTLE_SECONDS)
        result: dict[str, dict[str, float]] = client(
            "latency", address, topic="probe", client_id="probe", seconds=seconds, rate=200
        )
        return result
    finally:
        running.stop()


def heartbeats(scale: Scale) -> list[Figure]:
    """A member of a group, with a heartbeat every 0.5 s, whose fetches of 100 KB are allowed 20 KB/s: muted for 4 s."""
    found = Samples()
    with one_broker(scale) as broker:
        make_topic(broker.address, "t")
        client(
            "produce", broker.address, topic="t", client_id="filler", seconds=1, bytes_per_second=20 * MB,
            batch_bytes=100_000,
        )  # fmt: skip
        set_quota(broker.address, "member", consumer_byte_rate=20_000)
        result = client("member", broker.address, topic="t", client_id="member", seconds=max(scale.seconds / 2, 15))
    beats = [(float(at), float(ms)) for at, ms in _HEARTBEAT.findall(result["errors"])]
    gaps = [after[0] - before[0] for before, after in pairwise(beats)]
    found.add("fetches muted", "times", result["throttled"], at_least=2)
    found.add("the longest throttle time", "s", result["longest_throttle"], at_least=3)
    found.add("heartbeats answered", "", len(beats))
    found.add("longest time between two answers", "s", max(gaps), at_most=1)
    found.add("slowest answer to a heartbeat", "ms", max(ms for _, ms in beats), at_most=250)
    found.add("partitions taken away", "", result["lost"], at_most=0)
    return found.list()


# -- the other quotas


def request_time(scale: Scale) -> list[Figure]:
    """A client that floods a broker with requests of one record, and one that reads by TLS, with and without a quota.

    The handler of such a fetch is done in microseconds: what the quota limits is reading, encrypting and sending. The
    processor's share is that of the broker's whole process. An idle client may use the quota of all eleven windows at
    once, so each client works for two times that.
    """
    found = Samples()
    seconds = 22.0
    for percent in (None, 5.0, 2.0):
        with one_broker(scale) as broker:
            make_topic(broker.address, "t")
            set_quota(broker.address, "bench", request_percentage=percent)
            before = process_seconds(broker.pid)
            result = client("flood", broker.address, topic="t", seconds=seconds)
            used = 100 * (process_seconds(broker.pid) - before) / seconds
        _note_time(found, "requests of one record", percent, used, "requests/s", result["requests"] / seconds)
    for percent in (None, 10.0):
        with tls_broker(scale) as (broker, tls, authority):
            make_topic(broker.address, "t")
            client("produce", broker.address, topic="t", client_id="filler", seconds=3, bytes_per_second=_FILL_RATE)
            set_quota(broker.address, "bench", request_percentage=percent)
            before = process_seconds(broker.pid)
            result = client("consume", tls, topic="t", seconds=seconds, authority=authority)
            used = 100 * (process_seconds(broker.pid) - before) / seconds
        _note_time(found, "fetches by TLS", percent, used, "MB/s", sum(result["bytes"].values()) / MB / seconds)
    return found.list()


def _note_time(found: Samples, what: str, percent: float | None, used: float, unit: str, rate: float) -> None:
    name = f"{what}, " + ("no quota" if percent is None else f"request_percentage {percent:g}")
    limit = None if percent is None else percent * 1.1 + _IDLE_PERCENT
    found.add(f"{name}: the broker's processor", "% of a core", used, at_most=limit)
    found.add(name, unit, rate)
    say(f"{name}: {used:.1f} % of a core, {rate:,.1f} {unit}")


def mutations(scale: Scale) -> list[Figure]:
    """A client creates topics of one partition with a quota of 5 a second; the first 55 may come at once.

    librdkafka's version of CreateTopics is one that a broker answers after the deed and mutes; those of later versions
    are refused instead (`tests/unit/broker/api/test_client_quotas.py`).
    """
    found = Samples()
    rate, seconds = 5, max(min(scale.seconds, 25.0), 20.0)
    with one_broker(scale) as broker:
        set_quota(broker.address, "creator", controller_mutation_rate=rate)
        result = client("create", broker.address, topic="c", client_id="creator", seconds=seconds)
    made = result["made"]
    later = [at for at in made if at > seconds / 2]
    found.add("created at once", "partitions", sum(at < 2 for at in made))
    found.add("then in a second", "partitions", (len(later) - 1) / (later[-1] - later[0]), at_least=4.9, at_most=5.1)
    return found.list()


def new_connections(scale: Scale) -> list[Figure]:
    """40 connections a second from an address with a quota of 10, and beside them from one without a quota."""
    del scale
    found = Samples()
    rate, wanted, seconds = 10, 40, 21.8  # two times all windows, but for what comes when the third begins
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "data", Path(folder) / "log")
        try:
            with Admin(broker.address) as admin:
                admin.alter_client_quotas(QuotaEntity(ip="127.0.0.2"), {"connection_creation_rate": rate})
            both = Clients()
            for source in ("127.0.0.2", "127.0.0.3"):
                both.start("connect", broker.address, source=source, rate=wanted, seconds=seconds)
            bound, free = both.results()
        finally:
            broker.stop()
    found.add("served, of the address with a quota", "/s", len(bound["served"]) / seconds, at_least=9.8, at_most=10.2)
    found.add("served, of the other address", "/s", len(free["served"]) / seconds)
    found.add("refused, of the other address", "", free["refused"], at_most=0)
    return found.list()


# -- the run

ROWS: Final[dict[str, Callable[[Scale], list[Figure]]]] = {
    "one broker, 1 and 10 MB/s": slow_on_one,
    "one broker, 100 MB/s": fast_on_one,
    "three brokers, 1 and 10 MB/s": slow_on_three,
    "three brokers, 60 MB/s": medium_on_three,
    "three brokers, 100 MB/s": fast_on_three,
    "other clients beside violators": others,
    "other clients beside thousands of connections": thousands,
    "heartbeats of a muted member": heartbeats,
    "request_percentage": request_time,
    "controller_mutation_rate": mutations,
    "connection_creation_rate": new_connections,
}


def main() -> None:
    """Run the rows and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the rows whose name contains one of these, between commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each client works (60)")
    parser.add_argument("--pairs", type=int, default=4, help="rounds of latencies with and without violators (4)")
    parser.add_argument("--folder", type=Path, help="folder for data (one under .cache)")
    parser.add_argument("--list", action="store_true", help="list the rows and measure nothing")
    options = parser.parse_args()
    words = options.only.split(",")
    rows = {name: measure for name, measure in ROWS.items() if any(word in name for word in words)}
    explained = {name: " ".join((measure.__doc__ or "").split()) for name, measure in ROWS.items()}
    if options.list or not rows:
        print("\n".join(f"{name}: {explanation}" for name, explanation in explained.items()))
        return
    folder = options.folder or HERE.parent / ".cache" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    results = Results.load(HERE / "quotas.json", list(ROWS))
    for number, (name, measure) in enumerate(rows.items(), 1):
        say(f"[{number}/{len(rows)}] {name}")
        load = Path("/proc/loadavg").read_text().split()[0]
        figures = measure(Scale(options.seconds, options.pairs, folder))
        results.put(name, figures, {"seconds": options.seconds, "load": load})
        write_page(HERE / "QUOTAS.md", [table(results, explained)])
    print(table(results, explained))


if __name__ == "__main__":
    main()
