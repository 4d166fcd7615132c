"""`pylogd load`: load topics into a lake of Parquet files with Spark, each record exactly once."""

# ruff: noqa: PLC0415 - Spark is imported when the command runs
from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pylogd.cli.common import bootstrap_option, format_bytes, format_time, json_option, kafka_options
from pylogd.cli.output import note, print_json, print_table
from pylogd.cli.spark import check_there, on_spark, spark_options

if TYPE_CHECKING:
    from pylogd.tables.interface import Committed

_MEGABYTE = 1 << 20


@click.command()
@click.argument("topics", nargs=-1)
@bootstrap_option
@click.option("--to", "root", required=True, metavar="PATH", help="The lake: a Hadoop path (file:, hdfs:, s3a:).")
@click.option("--pattern", metavar="REGEX", help="Load the topics whose full name matches this regular expression.")
@spark_options
@click.option("--value", type=click.Choice(["binary", "string"]), default="binary", show_default=True,
              help="Type of the value column.")  # fmt: skip
@click.option("--codec", default="zstd", show_default=True, help="Compression of the files.")
@click.option("--by", type=click.Choice(["hour", "day", "topic"]), default="hour", show_default=True,
              help="A directory for each hour, for each day, or only for each topic.")  # fmt: skip
@click.option(
    "--gather", is_flag=True, help="Write one file per directory and commit: fewer files, at the cost of a shuffle."
)
@click.option("--max-offsets", type=click.IntRange(1), metavar="N", help="At most about this many records in a commit.")
@click.option("--min-tasks", type=click.IntRange(1), metavar="N", help="Read with at least this many tasks.")
@click.option("--follow", is_flag=True, help="Keep loading new records until interrupted.")
@click.option("--interval", type=click.FloatRange(0.1), default=60.0, show_default=True, metavar="SECONDS",
              help="With --follow: time from one load's start to the next.")  # fmt: skip
@click.option("--accept-data-loss", is_flag=True, help="Continue even if records were deleted before loading.")
@click.option("--on-recreated", type=click.Choice(["error", "restart"]), default="error", show_default=True,
              help="A topic that was deleted and created again: fail, or load it from its beginning.")  # fmt: skip
@click.option("--isolation", type=click.Choice(["uncommitted", "committed"]), default="uncommitted", show_default=True,
              help="committed: load no records of transactions that are open or aborted.")  # fmt: skip
@click.option("--compact", is_flag=True, help="Merge small files of the lake; load nothing.")
@click.option("--target-mb", type=click.IntRange(1), default=128, show_default=True, help="With --compact: file size.")
@click.option("--history", is_flag=True, help="Show the lake's commits; load nothing.")
@json_option
def load(
    topics: tuple[str, ...], root: str, master: str, confs: dict[str, str], as_json: bool, **given: Any
) -> None:  # fmt: skip
    """Load the records of TOPICS that are not in the lake yet, up to the current end, as Parquet files.

    Files are partitioned by topic, date and hour (of the records' time stamps, UTC). Data and offsets are committed
    together: run the command again after any failure, and no record is lost or duplicated. Records with time stamps
    outside of the years 1 to 9999 go to `_pylogd/quarantine`. Needs the extra `pylogd-broker[spark]`, and Java.

    \b
    pylogd load flights --to /data/lake
    pylogd load flights --to hdfs://namenode/lake --follow --interval 300
    pylogd load --to /data/lake --history
    pylogd load --to /data/lake --compact
    """
    modes = (bool(topics), bool(given["pattern"]), given["compact"], given["history"])
    if sum(modes) != 1:
        raise click.UsageError("give either TOPICS, --pattern, --compact or --history")
    if topics or given["pattern"]:
        check_there(given["bootstrap"], topics)
    with on_spark(master, confs, "pylogd load") as spark:
        _run(spark, root, topics, as_json, given)


def _run(spark: Any, root: str, topics: tuple[str, ...], as_json: bool, given: Mapping[str, Any]) -> None:
    from pylogd.spark import load as loading
    from pylogd.spark.opening import open_table

    table = open_table(spark, root)
    if given["history"] or given["compact"]:
        if not table.exists:
            raise click.ClickException(f"{root} is not a lake: it has no commits")
        if given["history"]:
            _tell(list(table.history()), as_json)
            return
    if given["compact"]:
        done = loading.compact(spark, table, target_bytes=given["target_mb"] * _MEGABYTE, codec=given["codec"])
    else:
        plan = loading.LoadPlan(
            given["bootstrap"],
            ("subscribePattern", f"^({given['pattern']})$") if given["pattern"] else ("subscribe", ",".join(topics)),
            max_offsets=given["max_offsets"],
            value=given["value"],
            codec=given["codec"],
            fail_on_data_loss=not given["accept_data_loss"],
            tasks=given["min_tasks"],
            by=given["by"],
            gather=given["gather"],
            restart_recreated=given["on_recreated"] == "restart",
            client={**kafka_options(), "kafka.isolation.level": f"read_{given['isolation']}"},
        )
        if given["follow"]:
            loading.follow(
                spark, table, plan, seconds=given["interval"],
                on_commit=lambda commit: _tell_loaded(root, commit, as_json), wait=threading.Event().wait,
            )  # fmt: skip
        done = loading.load(spark, table, plan)
    if done is None:
        note("nothing to do: the lake is up to date")
    else:
        _tell_loaded(root, done, as_json)


def _tell_loaded(root: str, commit: Committed, as_json: bool) -> None:
    _tell([commit], as_json)
    if commit.quarantined:
        note(
            f"{commit.quarantined} records were not loaded, but written to {root.rstrip('/')}/_pylogd/quarantine with "
            "the reason"
        )


def _tell(commits: list[Committed], as_json: bool) -> None:
    rows = [commit.as_row() for commit in commits]
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ["commit", "kind", "at", "offsets", "rows", "quarantined", "files", "bytes", "replaced"],
        [
            (
                row["commit"],
                row["kind"],
                format_time(row["at_ms"]),
                row["offsets"],
                row["rows"],
                row["quarantined"],
                row["files"],
                format_bytes(row["bytes"]),
                row["replaced"],
            )
            for row in rows
        ],
    )
