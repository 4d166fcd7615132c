"""The report: chart, page, metrics and their alert rules."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.testing import MemoryReactorClock
from twisted.web.server import NOT_DONE_YET
from twisted.web.test.requesthelper import DummyRequest

from pylogd.services.audit.judging import Verdict
from pylogd.services.audit.metrics import AuditMetrics
from pylogd.services.audit.report import COLOURS, as_html, as_svg, sort_rows
from pylogd.services.audit.web import AuditWeb, rows_of
from tests.audits import START, TABLE, TOPIC, WIDTH, AuditedLedger, numbers, report
from tests.conftest import CHECKOUT

STAGES = ["serving", "table"]


@pytest.fixture
def audited() -> AuditedLedger:
    """A complete window, and one with a missing message that the table has not passed."""
    found = AuditedLedger(TABLE)
    found.rows("serving", *numbers("alice", range(3)))
    found.rows("table", *numbers("alice", range(3)))
    found.report(report("alice", 0, 2))
    found.judge(START + WIDTH + 100)
    found.rows("serving", *numbers("<bob>", range(3), START + WIDTH))
    found.report(report("<bob>", 0, 3, start=START + WIDTH))
    found.judge(START + 3 * WIDTH)
    return found


def test_the_chart_has_a_bar_for_each_window_and_stage(audited: AuditedLedger) -> None:
    chart = ElementTree.fromstring(as_svg(sort_rows(rows_of(audited.ledger), STAGES), STAGES, WIDTH))
    bars = chart.findall("{http://www.w3.org/2000/svg}g")
    assert len(bars) == 4
    colours = [bar[1].attrib["fill"] for bar in bars]
    assert colours == [
        COLOURS[each] for each in (Verdict.COMPLETE, Verdict.INCOMPLETE, Verdict.COMPLETE, Verdict.PENDING)
    ]
    titles = [bar[0].text or "" for bar in bars]
    assert "missing 1" in titles[1] and "pending" in titles[3]


def test_the_page_names_what_is_missing_and_escapes_it(audited: AuditedLedger) -> None:
    page = as_html(sort_rows(rows_of(audited.ledger), STAGES), STAGES, WIDTH)
    assert "missing: here/&lt;bob&gt; 3 to 3" in page
    assert "<bob>" not in page
    assert "Not complete (2)" in page
    assert "No window has ended" in as_html([], STAGES, WIDTH)


def test_metrics_have_a_bounded_number_of_labels(audited: AuditedLedger) -> None:
    metrics = AuditMetrics(lambda: audited.ledger, lambda: START + 3 * WIDTH)
    text = metrics.text().decode()
    assert f'pylogd_audit_windows{{stage="serving",topic="{TOPIC}",verdict="incomplete"}} 1.0' in text
    assert f'pylogd_audit_messages{{kind="missing",stage="serving",topic="{TOPIC}"}} 1.0' in text
    assert f'pylogd_audit_judged_until_seconds{{stage="table",topic="{TOPIC}"}} 3.600001e+06' in text
    assert "alice" not in text
    metrics.failed()
    assert "pylogd_audit_failures_total 1.0" in metrics.text().decode()


def test_alert_rules_are_about_metrics_that_there_are(audited: AuditedLedger) -> None:
    text = AuditMetrics(lambda: audited.ledger, lambda: START).text().decode()
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    rules = (CHECKOUT / "etc" / "audit-alerts.yml").read_text()
    used = set(re.findall(r"pylogd_audit_\w+", rules))
    assert used and used <= known, used - known


def test_pages_over_http(audited: AuditedLedger) -> None:
    web = AuditWeb(MemoryReactorClock(), "tcp:0", lambda: audited.ledger, lambda: b"metrics", maybeDeferred)

    def get(name: str) -> bytes:
        request = DummyRequest([name.encode()])
        resource = web.root.getChildWithDefault(name.encode(), request)
        assert resource.render(request) == NOT_DONE_YET
        assert request.finished == 1
        return b"".join(request.written)

    assert get("metrics") == b"metrics"
    assert b"<svg" in get("")
    assert [row["verdict"] for row in json.loads(get("windows.json"))] == [
        "complete",
        "complete",
        "incomplete",
        "pending",
    ]
    assert get("health") == b"ok\n"
