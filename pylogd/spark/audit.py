"""Completeness: what producers say that they delivered, compared with what was received at a later stage.

Strategy: the audit topic has reports (`client.audit`): counts by producer, topic and window. The messages carry who
sent them, when, and as which number, so at any later stage (this cluster's topic, another cluster's, a lake) the
distinct messages of each window can be counted. Fewer than reported are a loss; more rows than distinct messages,
duplicates.

Rules: only windows that ended before `until_ms` are judged, since later ones may be under way. Reports that came twice
count once. Messages of a window that nobody reported (their producer died before it could) are shown as unreported.
Must not know: how the received rows were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pylogd.client.blocking.audit import HEADER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REPORT: Final = (
    "producer string, server string, topic string, "
    "window_start_ms bigint, window_ms bigint, count bigint, number bigint"
)
_STAMP: Final = r"^(\d+)/([^/]*)/(\d+)/(.*)$"


@dataclass(frozen=True, slots=True)
class Completeness:
    """A topic's window: messages reported, rows received, and of those the distinct messages.

    missing: messages that were delivered and not received. unreported: received, and in no report. Both are counted for
    each producer by itself, so that the one does not make up for the other.
    """

    topic: str
    start_ms: int
    end_ms: int
    reported: int
    rows: int
    distinct: int
    missing: int
    unreported: int

    @property
    def duplicates(self) -> int:
        """Rows beyond the first of a message."""
        return self.rows - self.distinct

    @property
    def is_complete(self) -> bool:
        """Whether every message is there once."""
        return not self.missing and not self.duplicates

    @property
    def share(self) -> float:
        """Of the messages that were reported, those that were received, from 0 to 1."""
        return 1.0 if not self.reported else 1.0 - self.missing / self.reported


def compare(reports: DataFrame, received: DataFrame, *, until_ms: int | None = None) -> list[Completeness]:
    """Each topic's windows, in order.

    reports: rows of the audit topic, with `value`. received: rows with `topic` and `headers` (array of key and value),
    of messages of audited producers; others are not looked at.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - needs a session

    parsed = reports.select(f.from_json(reports["value"].cast("string"), _REPORT).alias("r")).select("r.*")
    parsed = parsed.dropna().dropDuplicates(["producer", "number"])
    widths = parsed.select("producer", "topic", "window_ms").distinct()
    window = ["topic", "window_start_ms", "window_ms"]
    expected = parsed.groupBy(*window, "producer").agg(f.sum("count").alias("reported"))

    header = f.expr(f"get(filter(headers, h -> h.key = '{HEADER}'), 0).value").cast("string")
    stamped = received.select("topic", header.alias("stamp")).where(f.col("stamp").rlike(_STAMP))
    parts = [f.regexp_extract("stamp", _STAMP, group) for group in (1, 2, 3)]
    messages = stamped.select(
        "topic", parts[0].try_cast("bigint").alias("time_ms"), parts[1].alias("producer"), parts[2].alias("n")
    ).dropna()
    counted = (
        messages.join(widths, ["producer", "topic"], "left")
        .fillna({"window_ms": 60_000})
        .withColumn("window_start_ms", f.expr("time_ms - time_ms % window_ms"))
        .groupBy(*window, "producer", "n").count()
        .groupBy(*window, "producer")
        .agg(f.sum("count").alias("rows"), f.count("*").alias("distinct"))
    )  # fmt: skip
    joined = expected.join(counted, [*window, "producer"], "full").fillna(0)
    if until_ms is not None:
        joined = joined.where(f.col("window_start_ms") + f.col("window_ms") <= until_ms)
    sums = {
        "reported": "reported",
        "rows": "rows",
        "distinct": "`distinct`",  # a word of SQL
        "missing": "greatest(reported - `distinct`, 0)",
        "unreported": "greatest(`distinct` - reported, 0)",
    }
    totals = joined.groupBy(*window).agg(*(f.sum(f.expr(each)).alias(name) for name, each in sums.items()))
    return [
        Completeness(row[0], row[1], row[1] + row[2], **{name: row[name] for name in sums})
        for row in totals.orderBy(*window).collect()
    ]


def plot(windows: Sequence[Completeness], path: Path) -> None:
    """Draw the share of each window that arrived, a line for each topic; PNG or SVG by the path's suffix."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load, and few draw

    mpl.use("Agg")
    from datetime import UTC, datetime  # noqa: PLC0415

    from matplotlib import dates  # noqa: PLC0415
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for topic in sorted({window.topic for window in windows}):
        mine = [window for window in windows if window.topic == topic]
        moments = [datetime.fromtimestamp(window.start_ms / 1000, UTC) for window in mine]
        times = [float(at) for at in dates.date2num(moments)]  # type: ignore[no-untyped-call]
        axes.step(times, [100 * window.share for window in mine], where="post", label=topic)
        faults = [(at, window) for at, window in zip(times, mine, strict=True) if not window.is_complete]
        axes.plot([at for at, _ in faults], [100 * window.share for _, window in faults], "rx")
    axes.xaxis_date()
    axes.set_ylabel("received, % of reported")
    axes.set_xlabel("window (UTC); x marks a loss or a duplicate")
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
