"""The part of `pylogd demo` that uses a lake: Spark loads the flights and counts delays, DuckDB counts them again.

Strategy: one Spark session loads, counts and audits, with its log output in a file. Where Spark can't run, one line
says why, and the demo continues without it. The query by DuckDB and the chart know neither brokers nor Spark.
"""

# ruff: noqa: PLC0415 - Spark, DuckDB and matplotlib are imported when they are used
from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from pylogd.cli.spark import session
from pylogd.client.core.audit import AUDIT_TOPIC

#: Carrier and hour -> flights, cancelled, minutes of delay of the others.
Counts = dict[tuple[str, int], list[int]]
_COUNT_DELAYS: Final = """\
SELECT event ->> '$.carrier' AS carrier, CAST(event ->> '$.hour' AS INT) AS hour, count(*) AS flights,
       count(*) FILTER (event ->> '$.dep_delay' IS NULL) AS cancelled,
       coalesce(sum(CAST(event ->> '$.dep_delay' AS INT)), 0) AS minutes_late
FROM (SELECT CAST(decode(value) AS JSON) AS event FROM read_parquet('{files}'))
GROUP BY ALL"""
#: The oldest version of Java on which Spark runs.
_JAVA: Final = 17
_PROBE_SECONDS: Final = 30
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True, slots=True)
class Findings:
    """The results: the lake's counts by carrier and hour, and whether it has every message exactly once."""

    lake: Path
    counts: Counts
    complete: bool


def what_is_missing() -> str | None:
    """Return the software to install before Spark can run here; None if it can run."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        return "pip install 'pylogd-broker[spark]'"
    if not _use_java():
        return f"Spark needs Java {_JAVA} or newer: apt-get install default-jre-headless, or set JAVA_HOME"
    return None


def _use_java() -> bool:
    """Find a Java that is new enough, and set JAVA_HOME to it for Spark. Return whether one was found."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    found = [Path(home, "bin/java")] if home else []
    found += [Path(on_path)] if on_path else []
    for java in [*found, *sorted(Path("/usr/lib/jvm").glob("*/bin/java"))]:
        if _version(java) >= _JAVA:
            os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
            return True
    return False


def _version(java: Path) -> int:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
        return int(said.stderr.split('"')[1].split(".")[0])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return 0


def explore(address: str, topic: str, directory: Path, say: Callable[[str], None]) -> Findings:
    """Load the topic into a lake below `directory`, count the delays there, and audit the lake."""
    with _stderr_in_file(directory / "spark.log"):
        clock = _Clock(say)
        spark = session("local[2]", _SETTINGS, "pylogd demo")
        try:
            clock.report("session on two threads of this machine")
            return _explore(spark, address, topic, directory / "lake", clock)
        finally:
            gateway = spark.sparkContext._gateway
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()


def _explore(spark: Any, address: str, topic: str, root: Path, clock: _Clock) -> Findings:
    from pylogd.lake.spark.audit import Stage, compare
    from pylogd.lake.spark.load import LoadPlan, load
    from pylogd.lake.spark.opening import open_table

    plan = LoadPlan(address, ("subscribe", topic), by="topic")  # a year of hours would be thousands of files
    commit = load(spark, open_table(spark, str(root)), plan)
    if commit is None:
        raise click.ClickException("Spark found nothing to load")
    clock.report(f"loaded {commit.rows:,} rows into {commit.files} Parquet files")
    lake = spark.read.parquet(str(root))
    counts = _count(lake)
    clock.report("counted delays by carrier and hour in the lake")
    reader = spark.read.format("pylogd").option("kafka.bootstrap.servers", address)
    windows = compare(reader.option("subscribe", AUDIT_TOPIC).load(), Stage(lake))
    reported, missing = sum(each.reported for each in windows), sum(each.missing for each in windows)
    duplicates = sum(each.duplicates for each in windows)
    clock.report(
        f"audit: {reported:,} delivered by the producer; "
        f"in the lake {missing:,} are missing and {duplicates:,} duplicate"
    )
    return Findings(root, counts, bool(windows) and all(each.is_complete for each in windows))


def _count(lake: Any) -> Counts:
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), "carrier string, hour int, dep_delay int").alias("e")
    grouped = lake.select(event).select("e.*").groupBy("carrier", "hour")
    rows = grouped.agg(f.count("*"), f.count_if(f.isnull("dep_delay")), f.coalesce(f.sum("dep_delay"), f.lit(0)))
    return {(row[0], row[1]): [row[2], row[3], row[4]] for row in rows.collect()}


class _Clock:
    """Report each step, and the time since the step before."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._at = time.monotonic()

    def report(self, what: str) -> None:
        now = time.monotonic()
        self._say(f"spark     {what} ({now - self._at:.1f} s)")
        self._at = now


@contextmanager
def _stderr_in_file(log: Path) -> Iterator[None]:
    """Send standard error, this process's and its children's, to a file: Spark's log output is long."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def query(lake: Path, topic: str, say: Callable[[str], None]) -> Counts | None:
    """Count flights and delays in a lake's files, and show the query. Return None if DuckDB is not installed."""
    if importlib.util.find_spec("duckdb") is None:
        say("duckdb    not run: pip install duckdb")
        return None
    import duckdb

    text = _COUNT_DELAYS.format(files=f"{lake}/topic={topic}/*.parquet")
    began = time.monotonic()
    with duckdb.connect() as connection:
        rows = connection.execute(text).fetchall()
    say(f"duckdb    counted delays by carrier and hour in the lake ({time.monotonic() - began:.1f} s):")
    for line in text.splitlines():
        say(f"          {line}")
    return {(carrier, hour): list(counts) for carrier, hour, *counts in rows}


def draw(counts: Counts, picture: Path | None, say: Callable[[str], None]) -> None:
    """Draw the delays into a PNG or SVG file (by default a temporary file) if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        say("chart     not drawn: pip install 'pylogd-broker[plot]'")
        return
    picture = picture or _new_picture()
    _draw_delays(counts, picture)
    say(f"chart     drawn: {picture}")


def _new_picture() -> Path:
    handle, path = tempfile.mkstemp(prefix="pylogd-demo-", suffix=".svg")
    os.close(handle)
    return Path(path)


def _draw_delays(counts: Counts, picture: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    for axes, at, name in zip(both, (1, 0), ("scheduled hour", "carrier"), strict=True):
        late = _average_delays(counts, at)
        axes.bar([str(each) for each in late], list(late.values()))
        axes.set_xlabel(name)
    both[0].set_ylabel("minutes late on average")
    figure.suptitle("Departures from New York's airports in 2013")
    figure.savefig(picture)
    plt.close(figure)


def _average_delays(counts: Counts, at: int) -> Mapping[str | int, float]:
    """Return the average delay in minutes by one part of the key: 0 for the carrier, 1 for the hour."""
    sums: dict[Any, list[int]] = {}
    for key, (flights, cancelled, minutes) in counts.items():
        found = sums.setdefault(key[at], [0, 0])
        found[0] += flights - cancelled
        found[1] += minutes
    return {name: minutes / flew for name, (flew, minutes) in sorted(sums.items()) if flew}
