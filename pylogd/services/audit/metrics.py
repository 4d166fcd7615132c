"""The audit's metrics for Prometheus, computed from the ledger on request.

Labels are stages, topics and verdicts, whose number the service's options limit. No label has producers or partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pylogd.services.audit.judging import Verdict
from pylogd.services.audit.markers import Marker
from pylogd.services.audit.service import Observer
from pylogd.services.audit.windows import Change

if TYPE_CHECKING:
    from pylogd.services.audit.ledger import Ledger

_KINDS = (
    "reported", "recovered", "received", "missing", "lost", "duplicates", "unreported", "unstamped", "pending",
)  # fmt: skip
_BY_STAGE = ("stage", "topic")


class AuditMetrics(Observer):
    """Count the events of the service; a collector of `prometheus_client`."""

    def __init__(self, ledger: Callable[[], Ledger], now_ms: Callable[[], int]) -> None:
        """`ledger` returns the service's ledger. `now_ms` is the wall clock."""
        self._ledger = ledger
        self._now_ms = now_ms
        self._verdicts: Counter[tuple[str, str, str]] = Counter()
        self._markers: Counter[tuple[str, str, str]] = Counter()
        self._failures = 0
        self._turned_ms = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def turned(self, changes: Sequence[Change], markers: Sequence[Marker]) -> None:
        """Count verdicts and markers."""
        self._turned_ms = self._now_ms()
        self._verdicts.update((each.stage, each.topic, str(each.judgement.verdict)) for each in changes)
        self._markers.update((each.stage, each.topic, str(each.verdict)) for each in markers)

    def failed(self) -> None:
        """Count a failure."""
        self._failures += 1

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        ledger = self._ledger()
        yield from self._window_metrics(ledger)
        totals = (
            ("verdicts", "Verdicts on windows, with those that late data changed", self._verdicts),
            ("markers", "Markers of periods that were published", self._markers),
        )
        for name, text, counter in totals:
            family = CounterMetricFamily(f"pylogd_audit_{name}", text, labels=(*_BY_STAGE, "verdict"))
            for labels, count in sorted(counter.items()):
                family.add_metric(labels, count)
            yield family
        singles = (
            ("late", "Messages and reports that came after their window was closed", ledger.late),
            ("invalid", "Stamps, time stamps and reports that make no sense", ledger.invalid),
            ("failures", "Attempts to read, judge or store that failed", self._failures + ledger.failures),
        )
        for name, text, count in singles:
            yield CounterMetricFamily(f"pylogd_audit_{name}", text, value=count)
        yield GaugeMetricFamily("pylogd_audit_counts", "Counts of producers kept in memory", value=ledger.counts)
        text = "When windows were last judged and stored, in seconds since 1970"
        yield GaugeMetricFamily("pylogd_audit_last_turn_seconds", text, value=self._turned_ms / 1000)

    def _window_metrics(self, ledger: Ledger) -> Iterator[Metric]:
        windows = GaugeMetricFamily(
            "pylogd_audit_windows", "Windows kept in memory, by verdict", labels=(*_BY_STAGE, "verdict")
        )
        messages = GaugeMetricFamily(
            "pylogd_audit_messages", "Messages of the windows kept in memory", labels=(*_BY_STAGE, "kind")
        )
        text = (
            "The start of the first window that is over and has no verdict, in seconds since 1970; now if there is none"
        )
        judged = GaugeMetricFamily("pylogd_audit_judged_until_seconds", text, labels=_BY_STAGE)
        options = ledger.options
        now = self._now_ms()
        for stage in ledger.stages:
            for topic in sorted(ledger.topics):
                mine = [
                    (start, window.stages[stage]) for (each, start), window in ledger.windows.items() if each == topic
                ]
                verdicts = Counter(window.verdict for _, window in mine)
                for verdict in Verdict:
                    windows.add_metric((stage, topic, str(verdict)), verdicts[verdict])
                for kind in _KINDS:
                    total = sum(getattr(window.judgement, kind) for _, window in mine if window.judgement)
                    messages.add_metric((stage, topic, kind), total)
                waiting = [start for start, window in mine if not window.verdict.is_final]
                over = [start for start in waiting if start + options.width_ms + options.grace_ms <= now]
                judged.add_metric((stage, topic), min(over, default=now) / 1000)
        yield from (windows, messages, judged)
