"""The queries of dashboards that others have published find metrics on a broker at work, or the page says why not."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

from pylogd.local.broker import BrokerProcess
from tests.alerts.published import (
    Sample,
    absent_names,
    is_listed,
    lacking,
    queries,
    relabelling,
    renamed,
    told,
)
from tests.integration.conftest import StartBroker
from tests.integration.test_metrics import LISTENER, consume, metrics_port, produce, scrape, until


def fail(broker: BrokerProcess, topic: str) -> None:
    """Ask for an offset out of range."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "auto.offset.reset": "error"})
    try:
        consumer.assign([TopicPartition(topic, 0, 1_000_000)])
        until(lambda: (message := consumer.poll(0.1)) is not None and message.error(), "an offset out of range")
    finally:
        consumer.close()


def test_published_dashboards_find_what_they_ask_for(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker(settings=LISTENER)
    produce(broker.address, topic, [b"v" * 100] * 10)
    consume(broker.address, topic, "readers", 10)
    fail(broker, topic)
    found = [Sample(one.name, one.labels) for one in scrape(metrics_port(broker)).samples]
    rules, listed = relabelling(), absent_names()
    others = [Sample(renamed(one.name, rules), one.labels) for one in found]
    unexplained, used = [], set[str]()
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for query in queries():
        missing = lacking(query.expression, others if query.renamed else found)
        unexplained += [f"{query.dashboard}: {query.title}: {name}" for name in missing if not is_listed(name, listed)]
        used |= {pattern for pattern in listed for name in missing if is_listed(name, [pattern])}
        count, with_data = counts.get((query.dashboard, query.source), (0, 0))
        counts[query.dashboard, query.source] = count + 1, with_data + (not missing)
    assert not unexplained, "the page does not say why these are not there"
    assert used == set(listed), "the page lists names that no dashboard lacks"
    assert told() == counts, "the page tells other numbers"
