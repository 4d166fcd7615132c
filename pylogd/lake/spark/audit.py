"""Compare the messages that producers report as delivered with the messages received at a later stage.

Strategy: the audit topic contains reports (`client.core.audit`): counts by producer, topic and window of time. Each
message has a header, its stamp, with its producer, its time and its number. So at any later stage (this cluster's
topic, another cluster's, a lake) the distinct messages of each window can be counted. If there are fewer than reported,
messages were lost; if there are more rows than distinct messages, there are duplicates.

A message that is absent need not be lost:
- A lake is audited up to its committed offsets: later messages of the topic are not loaded yet.
- If a log or a lake does not begin with offset 0, retention may have deleted messages that are older than its first.
- If neither a producer nor its journal reported a window (it crashed, or the report has expired), it is unknown how
  many   of its messages were delivered; gaps in their numbers prove nothing. In each of these cases the verdict on a
  window is "unknown", unless other messages prove it incomplete.

A message that an audited producer copied has several stamps. The last one whose producer reports on this topic counts,
or if there is none the last one. Messages without stamps, of clients that are not audited, are counted by their own
time stamps: there are no reports to compare them with.

Rules: only windows that ended before `until_ms` are judged, since later ones may not be complete. A report that is
stored twice counts once. Must not know: how the rows of a stage were read (`stages` does).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pylogd.client.core.audit import HEADER
from pylogd.client.core.audit import WINDOW_MS as _WIDTH_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMPLETE: Final = "complete"
INCOMPLETE: Final = "incomplete"
UNKNOWN: Final = "unknown"

_REQUIRED: Final = ("producer", "server", "topic", "window_start_ms", "window_ms", "count", "number")
_REPORT: Final = (
    "producer string, server string, topic string, window_start_ms bigint, window_ms bigint, count bigint, "
    "number bigint, first bigint, last bigint, failed array<array<bigint>>, recovered boolean"
)
_STAMP: Final = r"^(\d+)/([^/]*)/(\d+)/(.*)$"
_COLUMNS: Final = ("topic", "partition", "offset", "headers")
_WINDOW: Final = ("topic", "window_start_ms", "window_ms")
#: How the counts of a producer are computed; they are added for each window.
_SUMS: Final = {
    "reported": "reported",
    "rows": "rows",
    "distinct": "`distinct`",  # a reserved word of SQL
    "missing": "greatest(reported - found - awaited, 0)",
    "unreported": "greatest(found + awaited - reported - given, 0)",
    "pending": "pending",
    "gaps": "gaps",
    "recovered": "least(found, given)",
    "lost": "greatest(given - found - awaited, 0)",
}


@dataclass(frozen=True, slots=True)
class Completeness:
    """The result for one window of a topic.

    reported: messages that producers report as delivered.
    rows: rows received.
    distinct: distinct messages received.
    missing: messages reported and not received.
    unreported: messages received and not reported.
    pending: messages in the topic that are not loaded yet.
    gaps: numbers of a producer for which there is neither a report nor a message; counted in its last window.
    recovered, lost: messages that a dead producer was given according to its journal: received, and not received.
    unstamped: rows of clients that are not audited; they are in no other count, except in `pending` while not loaded.
    may_be_deleted: whether retention may have deleted the missing messages.

    All counts are computed for each producer and added, so that one producer's surplus does not hide another's loss.
    """

    topic: str
    start_ms: int
    end_ms: int
    reported: int
    rows: int
    distinct: int
    missing: int
    unreported: int
    pending: int = 0
    gaps: int = 0
    recovered: int = 0
    lost: int = 0
    unstamped: int = 0
    may_be_deleted: bool = False

    @property
    def duplicates(self) -> int:
        """The number of duplicate rows: rows beyond the first of each message."""
        return self.rows - self.distinct

    @property
    def verdict(self) -> str:
        """COMPLETE if every delivered message was received exactly once; INCOMPLETE if some message was not; else
        UNKNOWN.
        """
        absent = self.missing + self.lost
        if self.duplicates or (absent and not self.may_be_deleted):
            return INCOMPLETE
        return UNKNOWN if absent or self.unreported or self.pending or self.gaps else COMPLETE

    @property
    def is_complete(self) -> bool:
        """Whether the verdict is COMPLETE."""
        return self.verdict == COMPLETE

    @property
    def share(self) -> float:
        """The share of the messages of producers that is not missing or lost, from 0 to 1."""
        wanted = self.reported + self.recovered + self.lost
        return 1.0 if not wanted else 1.0 - (self.missing + self.lost) / wanted


@dataclass(frozen=True, slots=True)
class Stage:
    """The place that is audited.

    received: rows with `topic`, `partition`, `offset`, `headers` (array of key and value) and optionally `timestamp`,
    or the result of `with_times` for them.
    unloaded: the rows of the topics that are not loaded yet, or None.
    trimmed: the partitions that do not begin with offset 0.
    unknown_topics: the topics whose unloaded rows are unknown.
    """

    received: DataFrame
    unloaded: DataFrame | None = None
    trimmed: Collection[tuple[str, int]] = ()
    unknown_topics: Collection[str] = ()


def compare(reports: DataFrame, stage: Stage, *, until_ms: int | None = None) -> list[Completeness]:
    """Return the result for each window of each topic, sorted.

    reports: rows of the audit topic, with the column `value`.
    until_ms: only windows that ended by then are judged, in milliseconds since 1970.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - needs a session

    parsed = reports.select(f.from_json(reports["value"].cast("string"), _REPORT).alias("r")).select("r.*")
    parsed = parsed.dropna(subset=list(_REQUIRED)).dropDuplicates(["producer", "number"])
    failed = f.expr("coalesce(aggregate(failed, 0L, (sum, run) -> sum + run[1] - run[0] + 1), 0L)")
    parsed = parsed.withColumn("recovered", f.expr("coalesce(recovered, false)"))
    expected = parsed.withColumn("failures", failed).groupBy(*_WINDOW, "producer").agg(
        f.sum("count").alias("reported"),
        f.expr("coalesce(sum(if(recovered, null, failures)), sum(failures))").alias("failed"),
        f.min(f.expr("if(first >= 0, first, null)")).alias("first"),
        f.max(f.expr("if(last >= 0, last, null)")).alias("last"),
        f.expr("every(recovered)").alias("dead"),  # true if only the journal has reported the window
    )  # fmt: skip
    messages = _messages(stage, parsed)
    joined = expected.join(_counted(messages, parsed), [*_WINDOW, "producer"], "full")
    joined = joined.fillna(0, ["reported", "failed", "rows", "distinct", "found", "awaited"]).fillna(False, ["dead"])
    # a journal may be behind; numbers have no gaps, so all messages up to the last received one were given
    joined = joined.withColumn("given", f.expr("if(dead, greatest(last, most) - first + 1 - failed, 0)"))
    if until_ms is not None:
        joined = joined.where(f.col("window_start_ms") + f.col("window_ms") <= until_ms)
    totals = (
        _with_gaps(joined).groupBy(*_WINDOW).agg(*(f.sum(f.expr(each)).alias(name) for name, each in _SUMS.items()))
    )
    counts = {(row[0], row[1], row[2]): {name: row[name] or 0 for name in _SUMS} for row in totals.collect()}
    for window, (unstamped, pending) in _unstamped(stage, parsed, until_ms).items():
        found = counts.setdefault(window, dict.fromkeys(_SUMS, 0))
        found["unstamped"] = unstamped
        found["pending"] += pending
    deleted = _deleted_until(messages, stage)
    return [
        Completeness(
            topic, start, start + width, **found, may_be_deleted=start <= deleted.get(topic, -math.inf)
        )
        for (topic, start, width), found in sorted(counts.items())
    ]  # fmt: skip


def with_times(rows: DataFrame) -> DataFrame:
    """Return the columns of a stage's rows. `sent_ms` is null if the rows have no time stamps.

    Quarantined rows have the times as `timestampMs`. The column `timestamp` of a typed table need not be a time.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    kinds = dict(rows.dtypes)
    if "sent_ms" in kinds:
        return rows
    of_timestamp = {"timestamp": "unix_millis(timestamp)", "bigint": "timestamp"}
    time = of_timestamp.get(kinds.get("timestamp", ""), "cast(null as bigint)")
    return rows.select(*_COLUMNS, f.expr("timestampMs" if "timestampMs" in kinds else time).alias("sent_ms"))


def _unstamped(stage: Stage, reports: DataFrame, until_ms: int | None) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Return the number of rows without stamps in each window: those received, and those not loaded yet.

    The windows of a topic are as long as those of its reports, the longest ones if they differ.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    widths = reports.groupBy("topic").agg(f.max("window_ms").alias("window_ms"))
    has_stamp = f.expr(f"coalesce(exists(headers, h -> h.key = '{HEADER}'), false)")
    each = (
        _rows(stage, "sent_ms")
        .where(~has_stamp)
        .where("sent_ms >= 0")
        .join(widths, "topic", "left")
        .fillna({"window_ms": _WIDTH_MS})
        .withColumn("window_start_ms", f.expr("sent_ms - sent_ms % window_ms"))
    )
    if until_ms is not None:
        each = each.where(f.col("window_start_ms") + f.col("window_ms") <= until_ms)
    sums = each.groupBy(*_WINDOW).agg(f.sum("is_loaded"), f.sum(1 - f.col("is_loaded")))
    return {(row[0], row[1], row[2]): (row[3], row[4]) for row in sums.collect()}


def _rows(stage: Stage, *more: str) -> DataFrame:
    """Return all rows of a stage with `is_loaded`: 1, or 0 for rows that are not loaded yet.

    more: further columns.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    rows = with_times(stage.received).select(*_COLUMNS, *more, f.lit(1).alias("is_loaded"))
    if stage.unloaded is None:
        return rows
    return rows.unionByName(with_times(stage.unloaded).select(*_COLUMNS, *more, f.lit(0).alias("is_loaded")))


def _messages(stage: Stage, reports: DataFrame) -> DataFrame:
    """Return producer, time and number of each row; `is_loaded` is 1, or 0 for rows that are not loaded yet."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    rows = _rows(stage)
    known = [f"{row[0]}/{row[1]}" for row in reports.select("topic", "producer").distinct().collect()]
    all_stamps = f.expr(f"transform(filter(headers, h -> h.key = '{HEADER}'), h -> cast(h.value as string))")
    stamped = rows.withColumn("stamps", all_stamps).where(f.size("stamps") > 0)

    def is_known(stamp: Any) -> Any:
        return f.concat(f.col("topic"), f.lit("/"), f.regexp_extract(stamp, _STAMP, 2)).isin(known)

    copied = f.when(f.size("stamps") > 1, f.get(f.reverse(f.filter("stamps", is_known)), f.lit(0))) if known else None
    last = f.try_element_at("stamps", f.lit(-1))
    stamped = stamped.withColumn("stamp", last if copied is None else f.coalesce(copied, last))
    parts = [f.regexp_extract("stamp", _STAMP, group) for group in (1, 2, 3)]
    return stamped.where(f.col("stamp").rlike(_STAMP)).select(
        "topic", "partition", "offset", "is_loaded", parts[0].try_cast("bigint").alias("time_ms"),
        parts[1].alias("producer"), parts[2].try_cast("bigint").alias("n"),
    ).dropna()  # fmt: skip


def _counted(messages: DataFrame, reports: DataFrame) -> DataFrame:
    """Count rows and distinct messages by window and producer.

    found, awaited: the received messages, and those not loaded yet, without those that the producer reported as failed.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    widths = reports.select("producer", "topic", "window_ms").distinct()
    failed = (
        reports.select("producer", "topic", f.explode("failed").alias("run"))
        .select("producer", "topic", f.explode(f.expr("sequence(run[0], run[1])")).alias("n"))
        .distinct()
        .withColumn("has_failed", f.lit(1))
    )
    each = (
        messages.join(widths, ["producer", "topic"], "left")
        .fillna({"window_ms": _WIDTH_MS})
        .withColumn("window_start_ms", f.expr("time_ms - time_ms % window_ms"))
        .groupBy(*_WINDOW, "producer", "n")
        .agg(f.sum("is_loaded").alias("rows"))
        .join(failed, ["producer", "topic", "n"], "left")
        .fillna({"has_failed": 0})
    )
    return each.groupBy(*_WINDOW, "producer").agg(
        f.sum("rows").alias("rows"),
        f.sum(f.expr("int(rows > 0)")).alias("distinct"),
        f.sum(f.expr("int(rows = 0)")).alias("pending"),
        f.sum(f.expr("int(rows > 0 and has_failed = 0)")).alias("found"),
        f.sum(f.expr("int(rows = 0 and has_failed = 0)")).alias("awaited"),
        f.min("n").alias("least"),
        f.max("n").alias("most"),
    )


def _with_gaps(joined: DataFrame) -> DataFrame:
    """Add the column `gaps`: how many numbers between a producer's first and last number are not accounted for."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    whole = Window.partitionBy("topic", "producer")
    begin = f.min(f.least("first", "least")).over(whole)
    end = f.max(f.greatest("last", "most")).over(whole)
    accounted = f.sum(f.expr("greatest(reported + given, found + awaited) + failed")).over(whole)
    is_last = f.row_number().over(whole.orderBy(f.desc("window_start_ms"))) == 1
    return joined.withColumn("gaps", f.when(is_last, f.greatest(end - begin + 1 - accounted, f.lit(0))).otherwise(0))


def _deleted_until(messages: DataFrame, stage: Stage) -> Mapping[str, float]:
    """Return the time in milliseconds before which messages may have been deleted; without complete topics."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    found: dict[str, float] = dict.fromkeys(stage.unknown_topics, math.inf)
    if not stage.trimmed:
        return found
    loaded = messages.where("is_loaded = 1").groupBy("topic", "partition").agg(f.min_by("time_ms", "offset"))
    first = {(row[0], row[1]): row[2] for row in loaded.collect()}
    for topic, partition in stage.trimmed:  # infinite if the partition has no messages at all
        found[topic] = max(found.get(topic, -math.inf), first.get((topic, partition), math.inf))
    return found


def plot(windows: Sequence[Completeness], path: Path) -> None:
    """Draw the received share of each window, with a line for each topic. The path's suffix selects PNG or SVG."""
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
        for verdict, mark in ((INCOMPLETE, "rx"), (UNKNOWN, "k.")):
            marked = [(at, window) for at, window in zip(times, mine, strict=True) if window.verdict == verdict]
            axes.plot([at for at, _ in marked], [100 * window.share for _, window in marked], mark)
    axes.xaxis_date()
    axes.set_ylabel("received, % of reported")
    axes.set_xlabel("window (UTC); x: a loss or a duplicate, dot: unknown")
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
