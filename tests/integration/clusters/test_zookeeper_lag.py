"""The lag of a group that coordinates through a real ZooKeeper, as commands, metrics and the console show it."""

from __future__ import annotations

import json
from pathlib import Path

from pylogd.client import Admin, Consumer, NewTopic, Producer
from tests.commands import ok
from tests.consoles import ConsoleProcess, Visitor
from tests.faces import poll_until
from tests.integration.conftest import StartBroker
from tests.integration.test_metrics import LISTENER, metrics_port, scrape, until
from tests.zookeeper import ZooKeeper


def send(address: str, count: int) -> None:
    with Producer(address) as producer:
        for number in range(count):
            producer.send("events", b"%d" % number, partition=number % 2)


def test_the_lag_is_shown_by_commands_metrics_and_the_console(
    zookeeper: ZooKeeper, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(settings={**zookeeper.settings, **LISTENER})
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic("events", 2, 1)])
    send(broker.address, 20)
    with Consumer(
        broker.address, group_id="readers", coordinator="zookeeper", zookeeper=zookeeper.connect, session_timeout=30.0
    ) as consumer:
        consumer.subscribe("events")
        poll_until([consumer], lambda records: len(records) >= 20)
        consumer.commit()
        send(broker.address, 14)
        (listed,) = json.loads(ok(broker, "groups", "list", "--lag", "-z", zookeeper.connect, "--json"))
        assert (listed["group"], listed["kind"], listed["members"], listed["lag"]) == ("readers", "zookeeper", 1, 14)
        port = metrics_port(broker)
        until(lambda: scrape(port).value("pylogd_group_lag_records", group="readers") == 14, "the lag in the metrics")
        config = tmp_path / "console.toml"
        config.write_text(f'[clusters.main]\nbootstrap = "{broker.address}"\nzookeeper = "{zookeeper.connect}"\n')
        console = ConsoleProcess(tmp_path / "console.log", "--config", str(config))
        try:
            page = Visitor(console.url).until("/c/main/groups/readers", "events")
        finally:
            console.stop()
    assert "zookeeper" in page and page.count(">7<") >= 2, page  # of each partition
