"""`pylogd load`: load topics into a table with Spark, each record exactly once."""

# ruff: noqa: PLC0415 - Spark is imported when the command runs
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pylogd.base.clock import wall_ms
from pylogd.cli.commands import Function, add_options, needs_extra
from pylogd.cli.common import assignments, bootstrap_option, format_bytes, format_time, kafka_options, registry_settings
from pylogd.cli.output import note, output_format, output_option, print_line, print_records
from pylogd.cli.spark import (
    check_topics,
    kafka_setting_option,
    on_spark,
    spark_options,
    starting_spark,
    stopped_in_order,
)

if TYPE_CHECKING:
    from pylogd.lake.spark.load import LoadPlan
    from pylogd.lake.tables.interface import Committed, Table
    from pylogd.lake.typed.rows import SchemaSource

_MEGABYTE = 1 << 20
#: The options that replace loading by another action.
_MODES = ("compact", "expire", "list_files", "history", "find", "clean")
#: The largest number of offsets of a commit that is made while Spark starts: about a second's work.
_OFFSETS_HERE = 100_000
_CLEAN_AFTER_MS = 7 * 24 * 3_600_000
_ISOLATION_LEVEL = "kafka.isolation.level"


def _record(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, int, int] | None:
    if text is None:
        return None
    topic, *numbers = text.rsplit(":", 2)
    if len(numbers) != 2 or not all(map(_is_number, numbers)):
        raise click.BadParameter(f"{text!r} is not TOPIC:PARTITION:OFFSET, such as flights:0:12345")
    return topic, int(numbers[0]), int(numbers[1])


def _commit(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | tuple[str, int, int] | None:
    """Return the number of a commit, or a record."""
    return int(text) if text is not None and _is_number(text) else _record(ctx, parameter, text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def schema_options(function: Function) -> Function:
    """Add the options of typed tables, `--schema-registry`, `--subject` and `--message`, to a command."""
    return add_options(
        function,
        click.option("--schema-registry", "registry", metavar="URL", help="Make a typed table, with a column for each "
                     "field of the registered schema. Credentials: schema.registry.* in --command-config."),
        click.option("--subject", default="", metavar="NAME", help="The subject whose versions make the columns; else "
                     "TOPIC-value."),
        click.option("--message", default="", metavar="NAME", help="Protobuf: the message type that makes the columns; "
                     "else the first of the file."),
    )  # fmt: skip


def schema_source(given: Mapping[str, Any]) -> SchemaSource | None:
    """Return the source of a typed table's columns, by the command's options; None for a table of records."""
    if given["registry"] is None:
        if given["subject"] or given["message"]:
            raise click.UsageError("--subject and --message need --schema-registry")
        return None
    with needs_extra("typed"):
        from pylogd.lake.typed.rows import SchemaSource
    try:
        return SchemaSource.at(given["registry"], registry_settings(), given["subject"], given["message"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--schema-registry") from None


@click.command()
@click.argument("topics", nargs=-1)
@bootstrap_option
@click.option(
    "--table",
    "table",
    metavar="FORMAT:NAME",
    help="The table: parquet:PATH, iceberg:WAREHOUSE/NAMESPACE.TABLE, iceberg:NAMESPACE.TABLE or delta:PATH.",
)
@click.option("--to", "root", metavar="PATH", help="A Parquet lake, the same as --table parquet:PATH.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", callback=assignments,
              help="A property of Iceberg's catalog or of Delta's storage. Repeatable.")  # fmt: skip
@click.option("--pattern", metavar="REGEX", help="Load the topics whose full name matches this regular expression.")
@kafka_setting_option
@spark_options
@schema_options
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
@click.option("--isolation", type=click.Choice(["uncommitted", "committed"]),
              help="committed: no records of open and aborted transactions. By default committed.")  # fmt: skip
@click.option("--compact", is_flag=True, help="Merge small files of the table; load nothing.")
@click.option("--target-mb", type=click.IntRange(1), default=128, show_default=True, help="With --compact: file size.")
@click.option("--clean", is_flag=True, help="Delete files of loaders that died, 7 days after; load nothing.")
@click.option("--expire", is_flag=True, help="Delete old commits, and files that only they have; load nothing.")
@click.option("--keep-days", type=click.FloatRange(0), default=7.0, show_default=True,
              help="With --expire: keep the commits of so many days.")  # fmt: skip
@click.option("--keep-commits", type=click.IntRange(1), default=1, show_default=True,
              help="With --expire: keep so many commits, however old.")  # fmt: skip
@click.option("--files", "list_files", is_flag=True, help="Show the paths of the table's data files; load nothing.")
@click.option("--as-of", metavar="COMMIT|TOPIC:PARTITION:OFFSET", callback=_commit,
              help="With --files: the files as of this commit, or as of the one that loaded this record.")  # fmt: skip
@click.option("--history", is_flag=True, help="Show the table's commits; load nothing.")
@click.option("--find", metavar="TOPIC:PARTITION:OFFSET", callback=_record,
              help="Show the commit that loaded this record; load nothing.")  # fmt: skip
@output_option
def load(
    topics: tuple[str, ...], table: str | None, root: str | None, properties: dict[str, str], master: str,
    remote: str | None, confs: dict[str, str], **given: Any,
) -> None:  # fmt: skip
    """Load the records of TOPICS that are not in the table yet, up to the current end, as Parquet files.

    Files are partitioned by topic, date and hour (of the records' time stamps, UTC). Data and offsets are committed
    together: run the command again after any failure, and no record is lost or duplicated. Records with time stamps
    outside of the years 1 to 9999 go to the table's quarantine. Needs the extra `pylogd-broker[spark]`, and Java; for
    Iceberg and Delta also `[iceberg]` or `[delta]`.

    \b
    pylogd load flights --to /data/lake
    pylogd load flights --table iceberg:/data/warehouse/demo.flights --follow
    pylogd load flights --table iceberg:demo.flights --property type=rest \\
        --property uri=http://catalog:8181
    pylogd load flights --table delta:s3://bucket/flights \\
        --property AWS_REGION=eu-central-1
    pylogd load flights --to /data/lake --set kafka.client.rack=a \\
        --set kafka.max.partition.fetch.bytes=4194304
    pylogd load flights --table delta:/data/flights --remote sc://spark:15002
    pylogd load --table delta:/data/flights --history
    pylogd load --table delta:/data/flights --find flights:0:12345
    pylogd load --to /data/lake --compact
    pylogd load --to /data/lake --expire --keep-days 30
    pylogd load --to /data/lake --files --as-of 42
    pylogd load --table delta:/data/flights --files --as-of flights:0:12345
    """
    _check_usage(topics, table, root, given)
    from pylogd.lake.spark.opening import open_table
    from pylogd.lake.tables.opening import parse_table

    given["client"] = _client(given["isolation"])
    name = f"parquet:{root}" if table is None else table
    kind, _ = parse_table(name)
    if topics or given["pattern"]:
        check_topics(given["bootstrap"], topics)
    if kind != "parquet" and not (topics or given["pattern"]):
        _run(None, open_table(None, name, properties), topics, given)  # needs no Spark
        return
    if given["follow"] and remote is None:
        _follow(name, properties, topics, given, master, confs)
        return
    with on_spark(master, remote, confs, "pylogd load") as spark, stopped_in_order(lambda: spark) as stop:
        _run(spark, open_table(spark, name, properties, codec=given["codec"]), topics, given, stop.wait)


def _check_usage(topics: tuple[str, ...], table: str | None, root: str | None, given: Mapping[str, Any]) -> None:
    """Raise UsageError unless the options name one table and one action."""
    modes = (bool(topics), bool(given["pattern"]), *(bool(given[name]) for name in _MODES))
    if (table is None) == (root is None):
        raise click.UsageError("give either --table or --to")
    if sum(modes) != 1:
        raise click.UsageError(
            "give either TOPICS, --pattern, --compact, --expire, --files, --history, --find or --clean"
        )


def _run(
    spark: Any, table: Table, topics: tuple[str, ...], given: Mapping[str, Any],
    wait: Callable[[float], bool] = lambda _: False,
) -> None:  # fmt: skip
    from pylogd.lake.spark import load as loading

    if any(given[name] for name in _MODES):
        if not table.exists:
            raise click.ClickException(f"{table.location} is not a table: it has no commits")
        if given["clean"]:
            note(f"deleted {table.clean(wall_ms() - _CLEAN_AFTER_MS)} files")
            return
        if given["expire"] or given["list_files"]:
            _expire_or_list_files(table, given)
            return
        if not given["compact"]:
            record = given["find"]
            _print_commits(list(table.history()) if record is None else [_commit_with(table, record)])
            return
        done = loading.compact(spark, table, target_bytes=given["target_mb"] * _MEGABYTE, codec=given["codec"])
    elif given["follow"]:
        loading.follow(
            spark, table, _plan(topics, given), seconds=given["interval"],
            on_commit=lambda commit: _print_loaded(table, commit), wait=wait,
        )  # fmt: skip
        return
    else:
        done = loading.load(spark, table, _plan(topics, given))
    if done is None:
        note("nothing to do: the table is up to date")
    else:
        _print_loaded(table, done)


def _follow(
    name: str, properties: dict[str, str], topics: tuple[str, ...], given: Mapping[str, Any], master: str,
    confs: Mapping[str, str],
) -> None:  # fmt: skip
    """Load until a signal comes. While Spark starts, this process loads in small commits; then Spark loads."""
    from pylogd.lake.spark.load import follow
    from pylogd.lake.spark.opening import open_here, open_table

    plan, codec = _plan(topics, given), given["codec"]

    def load_on(spark: Any, table: Table, plan: LoadPlan, wait: Callable[[float], bool]) -> None:
        told = partial(_print_loaded, table)
        follow(spark, table, plan, seconds=given["interval"], on_commit=told, wait=wait)

    with (
        starting_spark(master, confs, "pylogd load") as starting,
        stopped_in_order(starting.found, starting.give_up) as stop,
    ):
        here = open_here(name, properties, codec=codec, master=master, settings=confs)
        if here is not None:
            most = min(plan.max_offsets or _OFFSETS_HERE, _OFFSETS_HERE)
            load_on(None, here, replace(plan, max_offsets=most), starting.wait)
        starting.wait()
        if not stop.asked:
            spark = starting.session()
            load_on(spark, open_table(spark, name, properties, codec=codec), plan, stop.wait)


def _plan(topics: tuple[str, ...], given: Mapping[str, Any]) -> LoadPlan:
    from pylogd.lake.spark.load import LoadPlan

    return LoadPlan(
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
        client=given["client"],
        schemas=schema_source(given),
    )


def _client(isolation: str | None) -> dict[str, str]:
    """Return the options of the source's client. Raises click.UsageError if `--isolation` contradicts `--set`."""
    found = kafka_options()
    level = found.get(_ISOLATION_LEVEL)
    if isolation is None:
        return found
    if level not in (None, f"read_{isolation}"):
        raise click.UsageError(f"--isolation {isolation} contradicts --set {_ISOLATION_LEVEL}={level}")
    return {**found, _ISOLATION_LEVEL: f"read_{isolation}"}


def _commit_with(table: Table, record: tuple[str, int, int]) -> Committed:
    """Return the commit that loaded a record."""
    from pylogd.lake.tables.interface import commit_with

    found = commit_with(table.history(), *record)
    if found is None:
        raise click.ClickException("no commit in the table's history loaded this record")
    return found


def _expire_or_list_files(table: Table, given: Mapping[str, Any]) -> None:
    """Expire commits, or show files."""
    from pylogd.lake.tables.parquet.table import LakeTable

    if given["expire"]:
        if not isinstance(table, LakeTable):
            raise click.ClickException(
                f"--expire is for Parquet lakes, and {table.location} is a table of {table.format}, whose own tools do "
                "it"
            )
        older_than_ms = wall_ms() - int(given["keep_days"] * 86_400_000)
        done = table.expire(older_than_ms=older_than_ms, keep=given["keep_commits"])
        print_records([">floor", ">commits", ">files"], [asdict(done)], lines=True)
        return
    as_of = given["as_of"]
    files = table.files(_commit_with(table, as_of).number if isinstance(as_of, tuple) else as_of)
    if output_format() in ("json", "yaml"):
        print_records([], [{"path": file.path, "rows": file.rows, "bytes": file.bytes} for file in files], lines=True)
        return
    for file in files:  # prints only the paths, since other programs read them
        print_line(file.path)


def _print_loaded(table: Table, commit: Committed) -> None:
    _print_commits([commit])
    if commit.quarantined:
        note(f"{commit.quarantined} records were not loaded, but written to {table.quarantine} with the reason")


def _print_commits(commits: list[Committed]) -> None:
    rows = [commit.as_row() for commit in commits]
    columns = [
        ">commit", "kind", "at_ms", ">offsets", ">rows", ">quarantined", ">files", ">bytes", ">replaced"
    ]  # fmt: skip
    print_records(columns, rows, {"at_ms": format_time, "bytes": format_bytes}, lines=True)
