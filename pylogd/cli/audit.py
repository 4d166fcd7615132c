"""`pylogd audit`: verify that every record that producers reported arrived."""

# ruff: noqa: PLC0415 - Spark is imported when the command runs
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pylogd.base.clock import wall_ms
from pylogd.cli.audit_service import report, serve, wait
from pylogd.cli.commands import Commands
from pylogd.cli.common import bootstrap_option, format_time, kafka_options
from pylogd.cli.output import note, output_option, print_records
from pylogd.cli.spark import check_there, on_spark, spark_options
from pylogd.client.core.audit import AUDIT_TOPIC

if TYPE_CHECKING:
    from pylogd.lake.spark.audit import Completeness

#: Exit status by verdict.
EXIT_INCOMPLETE = 1
EXIT_UNKNOWN = 3


class _AuditGroup(Commands):
    """A group of commands, of which `check` need not be named: `pylogd audit TOPIC...` is `pylogd audit check ...`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name the command, if there is none."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["check", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_AuditGroup)
def audit() -> None:
    """Verify that every record that producers reported arrived.

    Producers report to the audit topic if they are audited (`pylogd.client.AuditedProducer`).

    \b
    pylogd audit flights --lake /data/lake            check once, with Spark
    pylogd audit serve flights                        check continuously
    pylogd audit report flights                       what that found
    pylogd audit wait flights 2026-11-23T07         wait until an hour is complete
    """


audit.add_command(serve)
audit.add_command(report)
audit.add_command(wait)


@audit.command()
@click.argument("topics", nargs=-1, required=True)
@bootstrap_option
@click.option(
    "--reports",
    default=AUDIT_TOPIC,
    show_default=True,
    metavar="TOPIC",
    help="The audit topic, to which producers report.",
)
@click.option(
    "--received",
    metavar="HOST:PORT",
    help="Audit the topics on this cluster, or the lake loaded from it, instead of those on --bootstrap-server.",
)
@click.option("--lake", metavar="PATH", help="Audit a lake written by `pylogd load`.")
@click.option("--grace", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECONDS",
              help="Judge only windows that ended this long ago.")  # fmt: skip
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Plot completeness over time to a PNG or SVG file.",
)
@spark_options
@output_option
@click.pass_context
def check(
    ctx: click.Context, topics: tuple[str, ...], bootstrap: str, reports: str, received: str | None, lake: str | None,
    grace: float, picture: Path | None, master: str, remote: str | None, confs: dict[str, str],
) -> None:  # fmt: skip
    """Compare what producers delivered to TOPICS with what was received, window by window.

    This command may be left out: `pylogd audit TOPICS`. A window is complete if every delivered record was received
    exactly once, and incomplete otherwise. It is unknown if the number of delivered records is unknown (a producer died
    before its report, or the report has expired), or if missing records may have been deleted by retention or are not
    loaded yet. A lake is judged up to its committed offsets.

    Exit status: 0 all windows are complete, 1 a window is incomplete, or an error, 3 no window is incomplete but one is
    unknown, or there are no windows. Needs the extra `pylogd-broker[spark]`, and Java.

    \b
    pylogd audit flights --lake /data/lake
    pylogd audit flights --received mirror:9092 --plot completeness.svg
    """
    until = wall_ms() - int(grace * 1000)
    check_there(bootstrap, [reports] if received or lake else [reports, *topics])
    if received:
        check_there(received, topics)
    with on_spark(master, remote, confs, "pylogd audit") as spark:
        windows = _compare(spark, topics, bootstrap, reports, received, lake, until)
    if picture is not None:
        _draw(windows, picture)
    _print(windows)
    ctx.exit(_exit_code(windows))


def _exit_code(windows: list[Completeness]) -> int:
    from pylogd.lake.spark.audit import INCOMPLETE

    if any(window.verdict == INCOMPLETE for window in windows):
        return EXIT_INCOMPLETE
    return 0 if windows and all(window.is_complete for window in windows) else EXIT_UNKNOWN


def _compare(
    spark: Any,
    topics: tuple[str, ...],
    bootstrap: str,
    reports: str,
    received: str | None,
    lake: str | None,
    until: int,
) -> list[Completeness]:
    from pylogd.lake.spark.audit import compare
    from pylogd.lake.spark.load import find_source
    from pylogd.lake.spark.options import COMMITTED
    from pylogd.lake.spark.stages import of_lake, of_topics

    find_source(spark)
    address = received or bootstrap
    client = kafka_options()
    stage = of_lake(spark, lake, address, topics, client) if lake else of_topics(spark, address, topics, client)
    if stage.unknown_topics:
        note(
            f"{', '.join(stage.unknown_topics)}: the lake was loaded from another topic than that on {address}, or "
            "nothing of it was: what is still to be loaded is not known. Name the cluster with --received"
        )
    reader = spark.read.format("pylogd").options(**{**COMMITTED, **client})
    reader = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", reports)
    found = compare(reader.load(), stage, until_ms=until)
    return [window for window in found if window.topic in topics]


def _draw(windows: list[Completeness], picture: Path) -> None:
    from pylogd.lake.spark.audit import plot

    try:
        plot(windows, picture)
    except (ImportError, ValueError, OSError) as error:
        raise click.ClickException(f"can't plot to {picture}: {error}") from error


def _print(windows: list[Completeness]) -> None:
    if not windows:
        note("nothing to compare: no window has ended yet")
    columns = [
        "topic", "window", "reported", "received", "missing", "duplicates", "unreported", "pending", "gaps",
        "recovered", "lost", "unstamped", "complete", "verdict",
    ]  # fmt: skip
    rows = [
        (
            w.topic, format_time(w.start_ms), w.reported, w.rows, w.missing, w.duplicates, w.unreported, w.pending,
            w.gaps, w.recovered, w.lost, w.unstamped, f"{w.share:.2%}", w.verdict,
        )
        for w in windows
    ]  # fmt: skip
    print_records(columns, [dict(zip(columns, row, strict=True)) for row in rows], lines=True)
