"""`pylogd audit`: whether everything arrived that producers say they delivered."""

# ruff: noqa: PLC0415 - Spark is imported when the command runs
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pylogd.cli.common import bootstrap_option, format_time, json_option, print_json, print_table
from pylogd.cli.spark import check_there, on_spark, spark_options
from pylogd.client.blocking.audit import AUDIT_TOPIC
from pylogd.clock import wall_ms

if TYPE_CHECKING:
    from pylogd.spark.audit import Completeness

INCOMPLETE = 1


@click.command()
@click.argument("topics", nargs=-1, required=True)
@bootstrap_option
@click.option("--reports", default=AUDIT_TOPIC, show_default=True, metavar="TOPIC", help="The audit topic.")
@click.option("--received", metavar="HOST:PORT", help="Count what arrived on the cluster there, not on this one.")
@click.option("--lake", metavar="PATH", help="Count what arrived in a lake of `pylogd load`.")
@click.option("--grace", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECONDS",
              help="Judge windows that ended so long ago.")  # fmt: skip
@click.option("--plot", "picture", type=click.Path(path_type=Path), metavar="FILE", help="Draw it: PNG or SVG.")
@spark_options
@json_option
@click.pass_context
def audit(
    ctx: click.Context, topics: tuple[str, ...], bootstrap: str, reports: str, received: str | None, lake: str | None,
    grace: float, picture: Path | None, master: str, confs: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Compare what producers delivered to TOPICS with what was received, window by window.

    Producers report to the audit topic if they are audited (`pylogd.client.AuditedProducer`). Exit code 0 if all is
    there once, 1 if not. Needs the extra `pylogd-broker[spark]`, and Java.

    \b
    pylogd audit flights --lake /data/lake
    pylogd audit flights --received mirror:9092 --plot completeness.svg
    """
    if received and lake:
        raise click.UsageError("say --received or --lake, not both")
    until = wall_ms() - int(grace * 1000)
    check_there(bootstrap, [reports] if received or lake else [reports, *topics])
    if received:
        check_there(received, topics)
    with on_spark(master, confs, "pylogd audit") as spark:
        windows = _compare(spark, topics, bootstrap, reports, received, lake, until)
    if picture is not None:
        _draw(windows, picture)
    _tell(windows, as_json)
    ctx.exit(0 if windows and all(window.is_complete for window in windows) else INCOMPLETE)


def _compare(
    spark: Any,
    topics: tuple[str, ...],
    bootstrap: str,
    reports: str,
    received: str | None,
    lake: str | None,
    until: int,
) -> list[Completeness]:
    from pylogd.spark.audit import compare
    from pylogd.spark.hadoop import HadoopFiles
    from pylogd.spark.lake import Lake

    def rows_of(address: str, names: str) -> Any:
        reader = spark.read.format("pylogd").option("kafka.bootstrap.servers", address).option("subscribe", names)
        return reader.option("includeHeaders", "true").load()

    if lake is None:
        arrived = rows_of(received or bootstrap, ",".join(topics))
    else:
        files = HadoopFiles(spark, lake)
        paths = [files.path(path) for path in sorted(Lake(files).files())]
        if not paths:
            raise click.ClickException(f"{lake} holds nothing")
        arrived = spark.read.option("basePath", files.root).parquet(*paths)
        arrived = arrived.where(arrived["topic"].isin(*topics))
    found = compare(rows_of(bootstrap, reports), arrived, until_ms=until)
    return [window for window in found if window.topic in topics]


def _draw(windows: list[Completeness], picture: Path) -> None:
    from pylogd.spark.audit import plot

    try:
        plot(windows, picture)
    except (ImportError, ValueError, OSError) as error:
        raise click.ClickException(f"{picture} can't be drawn: {error}") from error


def _tell(windows: list[Completeness], as_json: bool) -> None:
    if not windows:
        click.echo("no window has ended yet: nothing to compare", err=True)
    columns = ["topic", "window", "reported", "received", "missing", "duplicates", "unreported", "complete"]
    rows = [
        (w.topic, format_time(w.start_ms), w.reported, w.rows, w.missing, w.duplicates, w.unreported, f"{w.share:.2%}")
        for w in windows
    ]
    if as_json:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)))
    else:
        print_table(columns, rows)
