"""The example programs for streams, with some of the demo's events."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pylogd.cli.demo_events import flights
from pylogd.client import Admin, Consumer, NewTopic, Producer
from tests.integration.conftest import Address
from tests.sparks import retried

pytestmark = pytest.mark.timeout(600)
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
HOUR_MS = 3_600_000


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def create(address: str, *topics: str) -> None:
    with Admin(address) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, {"retention.ms": "-1"}) for topic in topics])


def values(address: str, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions(topic)
        consumer.assign(partitions)
        wanted = sum(consumer.end_offsets(partitions).values())
        while len(found) < wanted:
            found += [json.loads(record.value or b"") for record in consumer.poll(1.0)]
    return found


def test_flight_counts_are_written_by_window(spark: Any, broker: Address, topic: str, tmp_path: Path) -> None:
    create(broker.address, topic, f"{topic}-counts")
    events = list(itertools.islice(flights(), 300))
    last = max(event.timestamp or 0 for event in events)
    with Producer(broker.address) as producer:
        for event in events:
            producer.send(topic, event.value, event.key, timestamp=event.timestamp)
        # two days later, so that all earlier windows are final
        producer.send(topic, events[0].value, timestamp=last + 48 * HOUR_MS)
    count = example("flight_counts").count
    retried(lambda: count(spark, broker.address, topic, f"{topic}-counts", str(tmp_path / "checkpoint"), follow=False))
    wanted = Counter((json.loads(each.value)["origin"], (each.timestamp or 0) // HOUR_MS) for each in events)
    found = values(broker.address, f"{topic}-counts")
    assert sorted((each["origin"], each["flights"]) for each in found) == sorted(
        (origin, count) for (origin, _), count in wanted.items()
    )


def test_departures_are_joined_with_repairs(spark: Any, broker: Address, topic: str, tmp_path: Path) -> None:
    create(broker.address, topic, f"{topic}-repairs", f"{topic}-suspects")
    start = 1_700_000_000_000
    with Producer(broker.address) as producer:
        for tail, delay, hour in (("N1", 90, 0), ("N1", 5, 1), ("N1", 70, 2), ("N2", 99, 0), ("N3", 61, 0)):
            value = json.dumps({"tailnum": tail, "dep_delay": delay}).encode()
            producer.send(topic, value, tail.encode(), timestamp=start + hour * HOUR_MS)
        for tail, hour in (("N1", 1), ("N2", 24), ("N3", 12)):
            producer.send(f"{topic}-repairs", b"engine", tail.encode(), timestamp=start + hour * HOUR_MS)
    join = example("departures_and_repairs").join
    retried(
        lambda: join(
            spark, broker.address, topic, f"{topic}-repairs", f"{topic}-suspects", str(tmp_path / "checkpoint"),
            follow=False,
        )
    )  # fmt: skip
    found = values(broker.address, f"{topic}-suspects")
    assert sorted((each["tailnum"], each["delay"]) for each in found) == [("N1", 90), ("N3", 61)]
