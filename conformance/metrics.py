"""`make conformance-metrics`: metrics beside what others say. Writes conformance/METRICS.md.

The lag of groups on /metrics is compared with Kafka's `kafka-consumer-groups` and franz-go's kadm, on the same broker
at rest. Then a subscription to client metrics is made with Kafka's `kafka-client-metrics`, and librdkafka, Kafka's Java
producer and franz-go have to push what it asks for.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from conformance import checks, go_clients, java_tools
from conformance.checks import HERE
from pylogd.base.ports import free_ports
from pylogd.client import Admin, Cluster
from pylogd.local.broker import BrokerProcess
from tests.pages import circumstances, write_page

T = TypeVar("T")
PAGE: Final = HERE / "METRICS.md"
TOPIC: Final = "events"
PARTITIONS: Final = 4
RECORDS: Final = 1000  # in each partition
#: How many records of each partition the groups have committed; None: it has no committed offset.
GROUPS: Final[Mapping[str, tuple[int | None, ...]]] = {
    "at-the-end": (1000, 1000, 1000, 1000),
    "behind": (0, 250, 999, 1000),
    "partly": (10, None, None, 1000),
    "consumer-protocol": (500, 500, 500, 500),
}
#: Its Lag describes classic groups only, and counts all records of partitions without a committed offset.
KADM: Final = "kadm"
_SECONDS: Final = 60.0
_PUSHING_SECONDS: Final = 8
#: Client ids, and a metric that each has to push.
_PRODUCER: Final = "org.apache.kafka.producer."


class Broker:
    """A broker with metrics."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        settings = {"metrics.listener": f"127.0.0.1:{self.port}", "metrics.group.lag.interval.ms": "1000"}
        self._process = BrokerProcess(folder / "data", folder / "log", settings)
        self.address = self._process.address

    def close(self) -> None:
        """Stop it."""
        self._process.stop()

    def samples(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        """Return the samples of a metric."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = (one for family in text_string_to_metric_families(text) for one in family.samples)
        return [(one.labels, one.value) for one in found if one.name == name]


def until(question: Callable[[], T], what: str) -> T:
    """Return the first true answer. Raises TimeoutError."""
    deadline = time.monotonic() + _SECONDS
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}; the last answer was {answer!r}")
        time.sleep(0.2)


def prepare(broker: Broker) -> None:
    """Write records, and commit offsets of groups."""
    with Cluster(broker.address) as cluster:
        Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(RECORDS * PARTITIONS):
        producer.produce(TOPIC, b"v", partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(_SECONDS)
    for group, offsets in GROUPS.items():
        protocol = {"group.protocol": "consumer"} if group == "consumer-protocol" else {}
        consumer = Consumer(
            {"bootstrap.servers": broker.address, "group.id": group, "enable.auto.commit": False, **protocol}
        )
        committed = [TopicPartition(TOPIC, at, offset) for at, offset in enumerate(offsets) if offset is not None]
        if protocol:  # offsets of such a group are its members'
            consumer.subscribe([TOPIC])
            until(lambda consumer=consumer: (consumer.poll(0.1), consumer.assignment())[1], "an assignment")  # type: ignore[misc]
        consumer.commit(offsets=committed, asynchronous=False)
        consumer.close()


def of_metrics(broker: Broker) -> dict[str, int]:
    """Return the lags on /metrics, once all groups are there."""

    def found() -> dict[str, int]:
        lags = {labels["group"]: int(value) for labels, value in broker.samples("pylogd_group_lag_records")}
        return lags if lags.keys() >= GROUPS.keys() else {}

    return until(found, "the lag of all groups")


def of_kafka(address: str) -> dict[str, int]:
    """Return the lags by kafka-consumer-groups."""
    command = [*java_tools.java(), "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
    done = checks.run([*command, "--bootstrap-server", address, "--describe", "--all-groups"], seconds=120)
    lags: dict[str, int] = dict.fromkeys(GROUPS, 0)
    for line in done.stdout.splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[0] in GROUPS and fields[1] == TOPIC and fields[5].isdigit():
            lags[fields[0]] += int(fields[5])
    return lags if done.stdout.count(TOPIC) >= len(GROUPS) else {}


def of_kadm(program: str, address: str) -> dict[str, int]:
    """Return the lags by kadm."""
    done = checks.run([program, "--lags", address, *GROUPS], seconds=60)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def subscribe(address: str) -> None:
    """Have all clients push, with Kafka's own tool, and see that it shows the subscription."""
    command = [*java_tools.java(), "org.apache.kafka.tools.ClientMetricsCommand", "--bootstrap-server", address]
    change = ["--alter", "--name", "producers", "--metrics", _PRODUCER, "--interval", "1000"]
    for more in (change, ["--describe", "--name", "producers"]):
        done = checks.run([*command, *more], seconds=120)
        if done.returncode:
            raise RuntimeError(done.stderr + done.stdout)
    if _PRODUCER not in done.stdout:
        raise RuntimeError(f"kafka-client-metrics --describe says: {done.stdout}")


def push_by_librdkafka(address: str) -> None:
    """Produce for some seconds."""
    producer = Producer({"bootstrap.servers": address, "client.id": "librdkafka"})
    end = time.monotonic() + _PUSHING_SECONDS
    while time.monotonic() < end:
        producer.produce(TOPIC, b"v")
        producer.poll(0)
        time.sleep(0.05)
    producer.flush(_SECONDS)


def push_by_java(address: str) -> None:
    """Produce for some seconds, from a console that stays open."""
    command = [*java_tools.java(), "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", address]
    command += ["--topic", TOPIC, "--command-property", "client.id=java"]
    lines = f"for i in $(seq {_PUSHING_SECONDS * 5}); do echo v; sleep 0.2; done"
    done = checks.run(["sh", "-c", f'{lines} | "$@"', "sh", *command], seconds=120)
    if done.returncode:
        raise RuntimeError(done.stderr)


class Pushed:
    """Collects the names that clients push, without their common beginning, by client id, while it is entered.

    What a client has pushed goes from /metrics when it ends.
    """

    def __init__(self, broker: Broker) -> None:
        self.names: dict[str, set[str]] = {}
        self._broker = broker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Pushed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            for name in ("pylogd_client_gauge_max", "pylogd_client_counter_total"):
                for labels, _ in self._broker.samples(name):
                    if labels["metric"].startswith(_PRODUCER):
                        names = self.names.setdefault(labels["client_id"], set())
                        names.add(labels["metric"].removeprefix(_PRODUCER))


def page(lags: Mapping[str, Mapping[str, int]], names: Mapping[str, list[str]]) -> list[str]:
    """Return the lines of the page."""
    lines = [
        "# Metrics beside what others say",
        "",
        "Written by `make conformance-metrics`, apart from the notes at its end.",
        "",
        circumstances(),
        "",
        "## The lag of groups, in records",
        "",
        f"Of one broker at rest: {PARTITIONS} partitions of {RECORDS:,} records. Partitions without a committed offset "
        "do not count; kadm counts all their records, and does not show groups of the newer protocol.",
        "",
        f"| group | committed | {' | '.join(lags)} |",
        f"| --- | --- |{' --: |' * len(lags)}",
    ]
    for group, offsets in GROUPS.items():
        committed = ", ".join("none" if offset is None else str(offset) for offset in offsets)
        lines.append(
            f"| {group} | {committed} | {' | '.join(str(one.get(group, 'not shown')) for one in lags.values())} |"
        )
    lines += [
        "",
        "## Metrics that clients push",
        "",
        f"With a subscription to `{_PRODUCER}` each second, made with Kafka's `kafka-client-metrics`. The names "
        "without that beginning, as /metrics shows them:",
        "",
        "| client | metrics | names |",
        "| --- | --: | --- |",
    ]
    for client, found in names.items():
        lines.append(f"| {client} | {len(found)} | {', '.join(f'`{name}`' for name in found)} |")
    return [*lines, ""]


def expected(who: str) -> dict[str, int]:
    """Return the lag of each group. `who` counts."""
    lags = {}
    for group, offsets in GROUPS.items():
        if who != KADM or group != "consumer-protocol":
            missing = RECORDS if who == KADM else 0
            lags[group] = sum(missing if offset is None else RECORDS - offset for offset in offsets)
    return lags


def main() -> int:
    """Compare, and write the page. Return 0 if all agree."""
    kafka = re.sub(r"^", "Apache Kafka ", java_tools.version())
    with tempfile.TemporaryDirectory(prefix="pylogd-metrics-") as folder:
        broker = Broker(Path(folder))
        try:
            prepare(broker)
            program = go_clients.build()
            lags = {
                "pylogd, /metrics": of_metrics(broker),
                f"kafka-consumer-groups, {kafka}": of_kafka(broker.address),
                KADM: of_kadm(program, broker.address),
            }
            subscribe(broker.address)
            with Pushed(broker) as pushed:
                push_by_librdkafka(broker.address)
                push_by_java(broker.address)
                done = checks.run([program, "--push", broker.address, TOPIC, "franz-go"], seconds=60)
            wrong = [] if done.returncode == 0 else [done.stderr]
            names = {client: sorted(found) for client, found in pushed.names.items()}
        finally:
            broker.close()
    wrong += [
        f"{who}: {dict(found)}, not {expected(who)}"
        for who, found in lags.items()
        if _of_groups(found) != expected(who)
    ]
    wrong += [f"{client} has pushed nothing" for client in ("librdkafka", "java", "franz-go") if client not in names]
    titles = {
        "franz-go": next(name for name in go_clients.version().split(", ") if name.startswith("franz-go ")),
        "librdkafka": f"librdkafka {confluent_kafka.libversion()[0]}",
        "java": f"Java, {kafka}",
    }
    print(lags, {client: len(found) for client, found in names.items()}, sep="\n")
    for text in wrong:
        print(text, file=sys.stderr)
    if not wrong:
        write_page(PAGE, page(lags, {titles.get(client, client): found for client, found in names.items()}))
    return 1 if wrong else 0


def _of_groups(lags: Mapping[str, Any]) -> dict[str, Any]:
    return {group: lags[group] for group in GROUPS if group in lags}


if __name__ == "__main__":
    sys.exit(main())
