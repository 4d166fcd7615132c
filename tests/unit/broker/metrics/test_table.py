"""The table of metrics: its page, and the alert rules that use it."""

from __future__ import annotations

import json
import re

from pylogd.broker.metrics.table import DEFINITIONS, SECTIONS, Kind
from tests.conftest import CHECKOUT
from tests.tools import tool

RULES = CHECKOUT / "etc" / "broker-alerts.yml"


def test_the_page_is_current() -> None:
    text = (CHECKOUT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert text == tool("generate_metrics_doc").page(text), "run tools/generate_metrics_doc.py"


def test_names_are_unique_and_say_their_unit() -> None:
    assert len(DEFINITIONS) == sum(map(len, SECTIONS.values()))
    for one in DEFINITIONS.values():
        assert re.fullmatch(r"(pylogd|kafka)_[a-z_]+", one.name)
        kafkas_own = one.name == "kafka_server_socket_server_metrics_connection_count"
        assert kafkas_own or not one.name.endswith(("_total", "_count", "_sum", "_bucket"))
        if one.kind is Kind.HISTOGRAM:
            assert one.name.endswith(("_seconds", "_bytes"))


def test_alert_rules_use_metrics_that_there_are() -> None:
    expressions = re.findall(r"expr: (.+)", RULES.read_text(encoding="utf-8"))
    used = {name for text in expressions for name in re.findall(r"(?:pylogd|kafka)_\w+", text)}
    assert len(used) >= 11
    assert used <= {one.sample_name for one in DEFINITIONS.values()}


def test_the_page_has_a_section_for_each_alert_in_the_order_of_the_file() -> None:
    text = (CHECKOUT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
    assert len(alerts) >= 14
    assert re.findall(r"^### (Pylogd\w+)$", text, re.MULTILINE) == alerts


def test_each_alert_was_fired_by_a_fault_of_real_processes() -> None:
    outcomes = json.loads((CHECKOUT / "tests" / "alerts" / "RESULTS.json").read_text(encoding="utf-8"))
    fired = {name for _, expected, _, _, wrong, _ in outcomes if not wrong for name in expected}
    rules = sorted(RULES.parent.glob("*-alerts.yml"))
    alerts = [name for file in rules for name in re.findall(r"- alert: (\w+)", file.read_text(encoding="utf-8"))]
    assert len(rules) == 3
    assert fired == set(alerts), "run make alerts"
