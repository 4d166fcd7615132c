"""The evaluation of published queries on a page of metrics, and the page's table of names that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylogd.broker.metrics.disk_space import disk_bytes
from pylogd.broker.metrics.table import DEFINITIONS
from tests.alerts.published import (
    Sample,
    absent_names,
    alternatives,
    is_listed,
    lacking,
    queries,
    relabelling,
    renamed,
    told,
)

SAMPLES = [Sample("kafka_a_total", {"topic": "t"}), Sample("kafka_b", {"request": "Fetch"})]


@pytest.mark.parametrize(
    ("expression", "missing"),
    [
        ('sum(rate(kafka_a_total{topic=~".+",topic!=""}[5m])) by (kafka_cluster)', []),
        ("sum without (kafka_instance) (kafka_a_total) / kafka_b", []),
        ("kafka_a_total / kafka_c", ["kafka_c"]),
        ('kafka_a_total{topic=""}', ['kafka_a_total{topic=""}']),
        ('kafka_b{request="FetchConsumer"}', ['kafka_b{request="FetchConsumer"}']),
        ('kafka_b{request!~"Fetch|Produce"}', ['kafka_b{request!~"Fetch|Produce"}']),
        ("kafka_c or kafka_d or sum(kafka_b)", []),
        ("kafka_c or (kafka_b or kafka_d)", ["kafka_c", "kafka_d"]),
        ("up == 0", []),
        ("absent(container_last_seen)", ["container_last_seen"]),
    ],
)
def test_what_an_expression_lacks(expression: str, missing: list[str]) -> None:
    assert lacking(expression, SAMPLES) == missing


def test_alternatives_are_split_where_no_bracket_is_open() -> None:
    assert alternatives("a or (b or c) or sum(d)") == ["a", "(b or c)", "sum(d)"]


def test_the_relabelling_of_the_page() -> None:
    rules = relabelling()
    assert renamed("kafka_server_brokertopicmetrics_bytesin_total", rules) == (
        "kafka_server_brokertopicmetrics_bytesinpersec"
    )
    assert renamed("kafka_server_socket_server_metrics_connection_count", rules) == (
        "kafka_server_socketservermetrics_connection_count"
    )
    assert renamed("kafka_log_log_size", rules) == "kafka_log_log_size"


def test_the_page_tells_of_every_dashboard_and_lists_nothing_that_is_there() -> None:
    assert set(told()) == {(query.dashboard, query.source) for query in queries()}
    listed = absent_names()
    assert len(listed) > 10
    assert not [name for name in DEFINITIONS if is_listed(name, listed)]
    assert not is_listed("kafka_log_log_size", listed) and is_listed("jvm_threads_current", listed)


def test_the_bytes_that_a_process_moved_to_and_from_disks(tmp_path: Path) -> None:
    file = tmp_path / "io"
    assert disk_bytes(file) == {}
    file.write_text("rchar: 9\nwchar: 8\nread_bytes: 4096\nwrite_bytes: 12288\ncancelled_write_bytes: 1\n")
    assert disk_bytes(file) == {"read_bytes": 4096, "write_bytes": 12288}
