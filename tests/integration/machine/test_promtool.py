"""What Prometheus's own promtool says of alert rules, of the dashboard, and of the configuration in the documents.

The rules of the audit and of mirrors are tried on series as these give them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pylogd.services.audit.metrics import AuditMetrics
from tests.audits import START, TABLE, AuditedLedger, numbers, report
from tests.conftest import CHECKOUT
from tests.docs.blocks import Block
from tests.docs.kinds import blocks_of_kind
from tests.tools import promtool, tool

RULES = CHECKOUT / "etc" / "audit-alerts.yml"
INCOMPLETE, UNKNOWN = (
    f'pylogd_audit_windows{{stage="lake",topic="t",verdict="{verdict}"}}' for verdict in ("incomplete", "unknown")
)
UNTIL = 'pylogd_audit_judged_until_seconds{stage="lake",topic="t"}'
TURN, OTHER_TURN = (f'pylogd_audit_last_turn_seconds{{instance="{name}"}}' for name in ("a", "b"))
#: A service that takes a turn each minute.
ALIVE = {TURN: "0+60x600"}


@pytest.mark.parametrize("rules", sorted(RULES.parent.glob("*-alerts.yml")), ids=lambda path: path.name)
def test_all_rules_are_valid(rules: Path) -> None:
    count = rules.read_text().count("- alert: ")
    assert count and f"SUCCESS: {count} rules found" in promtool("check", "rules", str(rules))


def test_the_metrics_follow_the_conventions_of_prometheus() -> None:
    audited = AuditedLedger(TABLE)
    audited.rows("serving", *numbers("alice", range(3)))
    audited.report(report("alice", 0, 3))
    audited.judge(START + 10_000)
    text = AuditMetrics(lambda: audited.ledger, lambda: START).text()
    assert b'verdict="incomplete"} 1.0' in text
    promtool("check", "metrics", text=text)


@pytest.mark.parametrize(
    ("series", "at", "name", "labels"),
    [
        # at once, as soon as one window is incomplete
        ({INCOMPLETE: "0x9 1x600"}, "9m", "PylogdAuditIncomplete", None),
        ({INCOMPLETE: "0x9 1x600"}, "10m", "PylogdAuditIncomplete", {"severity": "critical", "verdict": "incomplete"}),
        # an hour behind, for ten minutes; the wall clock is in the sum, so a stage that follows is never behind
        ({UNTIL: "0x600"}, "69m", "PylogdAuditBehind", None),
        ({UNTIL: "0x600"}, "71m", "PylogdAuditBehind", {"severity": "warning"}),
        ({UNTIL: "0+60x600"}, "9h", "PylogdAuditBehind", None),
        # a verdict that a journal's report may still change
        ({UNKNOWN: "0x9 2x600"}, "24m", "PylogdAuditUnknown", None),
        ({UNKNOWN: "0x9 2x600"}, "26m", "PylogdAuditUnknown", {"severity": "warning", "verdict": "unknown"}),
        ({UNKNOWN: "0x9 2x10 0x600"}, "26m", "PylogdAuditUnknown", None),
    ],
)
def test_alerts_of_a_stage(
    tmp_path: Path, series: dict[str, str], at: str, name: str, labels: dict[str, str] | None
) -> None:
    expected = [] if labels is None else [{"stage": "lake", "topic": "t", **labels}]
    check(tmp_path, {**ALIVE, **series}, at, name, expected)


DOWN = {"severity": "critical"}


@pytest.mark.parametrize(
    ("series", "at", "expected"),
    [
        (ALIVE, "9h", []),
        # it runs, and takes no turn any more
        ({TURN: "0+60x9 540x600"}, "19m", []),
        ({TURN: "0+60x9 540x600"}, "20m", [{**DOWN, "instance": "a"}]),
        # it is gone: nothing is scraped
        ({TURN: "0+60x9 stale"}, "20m", [{**DOWN, "instance": "a"}]),
        # one of two is gone
        ({TURN: "0+60x9 stale", OTHER_TURN: "0+60x600"}, "20m", [{**DOWN, "instance": "a"}]),
        ({TURN: "0+60x9 stale"}, "2h", [DOWN]),
        # there never was one
        ({}, "10m", [DOWN]),
    ],
)
def test_alerts_of_the_service(
    tmp_path: Path, series: dict[str, str], at: str, expected: Sequence[dict[str, str]]
) -> None:
    check(tmp_path, series, at, "PylogdAuditDown", expected)


STARTING, SET_ASIDE = (f'pylogd_mirror_partitions{{route="r",state="{state}"}}' for state in ("starting", "set_aside"))


@pytest.mark.parametrize(
    ("series", "at", "fires"),
    [
        # the target is gone: its partitions are set aside and tried again
        ({STARTING: "0x9 4x9 0x9 4x600", SET_ASIDE: "0x9 0x9 4x9 0x600"}, "14m", False),
        ({STARTING: "0x9 4x9 0x9 4x600", SET_ASIDE: "0x9 0x9 4x9 0x600"}, "16m", True),
        ({STARTING: "0x9 4x9 0x9 4x600", SET_ASIDE: "0x9 0x9 4x9 0x600"}, "31m", True),
        # a topic is new
        ({STARTING: "0x9 4x2 0x600", SET_ASIDE: "0x600"}, "16m", False),
    ],
)
def test_alert_of_partitions_that_are_not_copied(tmp_path: Path, series: dict[str, str], at: str, fires: bool) -> None:
    labels = {"severity": "critical", "route": "r"}
    rules = RULES.with_name("mirror-alerts.yml")
    check(tmp_path, series, at, "PylogdMirrorSetAside", [labels] if fires else [], rules)


def check(
    folder: Path, series: dict[str, str], at: str, name: str, expected: Sequence[dict[str, str]], rules: Path = RULES
) -> None:
    """Check which alerts of a name fire after so long, and that they fire with some text."""
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": labels, "values": values} for labels, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count by (alertname) (ALERTS{{alertname="{name}",alertstate="firing"}})',
                "eval_time": at,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": len(expected)}] if expected else [],
            },
            *(
                {
                    "expr": f"ALERTS{{{_selector(name, labels)}}}",
                    "eval_time": at,
                    "exp_samples": [{"labels": f"ALERTS{{{_selector(name, labels)}}}", "value": 1}],
                }
                for labels in expected
            ),
        ],
    }
    file = folder / "test.yml"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", str(file))


def _selector(name: str, labels: dict[str, str]) -> str:
    every = {"alertname": name, "alertstate": "firing", **labels}
    return ",".join(f'{label}="{value}"' for label, value in every.items())


def test_the_rules_of_brokers_fire_when_they_should(tmp_path: Path) -> None:
    rules = RULES.parent / "broker-alerts.yml"
    shutil.copy(rules, tmp_path)
    cases = (Path(__file__).parent / "broker-alerts-test.yml").read_text(encoding="utf-8")
    (tmp_path / "test.yml").write_text(cases.replace("RULES", rules.name), encoding="utf-8")
    promtool("test", "rules", "test.yml", folder=tmp_path)


def test_every_expression_of_the_dashboard_is_understood(tmp_path: Path) -> None:
    pytest.importorskip("grafana_foundation_sdk")
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(tool("generate_dashboard").expressions())
    ]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML too
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", str(file))


@pytest.mark.parametrize("block", blocks_of_kind("scrape configuration"), ids=str)
def test_the_configuration_in_a_document_is_accepted(block: Block, tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(block.text)
    for rules in CHECKOUT.glob("etc/*-alerts.yml"):
        (tmp_path / rules.name).write_text(rules.read_text("utf-8"))
    assert "SUCCESS" in promtool("check", "config", str(tmp_path / "prometheus.yml"))
