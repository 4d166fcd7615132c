"""`pylogd audit`: verify that every record that producers reported arrived, once with Spark, or as a service."""

# ruff: noqa: PLC0415 - Spark, Twisted, and modules that need an extra, are imported when a command runs
from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pylogd.base.clock import wall_ms
from pylogd.cli.commands import Commands, needs_extra
from pylogd.cli.common import bootstrap_option, connect, format_time, kafka_options, parse_time
from pylogd.cli.common import security as client_security
from pylogd.cli.output import note, output_option, print_document, print_line, print_records
from pylogd.cli.service_options import begin_log, http_endpoint, log_options, run_service
from pylogd.cli.spark import check_topics, on_spark, spark_options
from pylogd.client.core.audit import AUDIT_TOPIC

if TYPE_CHECKING:
    from pylogd.lake.spark.audit import Completeness
    from pylogd.services.audit.judging import Verdict
    from pylogd.services.audit.markers import Marker
    from pylogd.services.audit.opening import StageDescription
    from pylogd.services.audit.report import Row
    from pylogd.services.audit.service import AuditOptions

#: Exit status by verdict.
EXIT_INCOMPLETE = 1
EXIT_UNKNOWN = 3
_PERIODS = {"hour": 3_600_000, "day": 86_400_000}
_STATE = "pylogd-audit-state"
_MARKERS = "pylogd-audit-complete"
_POLL_SECONDS = 0.5


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
    check_topics(bootstrap, [reports] if received or lake else [reports, *topics])
    if received:
        check_topics(received, topics)
    with on_spark(master, remote, confs, "pylogd audit") as spark:
        windows = _compare(spark, topics, bootstrap, reports, received, lake, until)
    if picture is not None:
        _draw(windows, picture)
    _print_windows(windows)
    ctx.exit(_status_of_windows(windows))


def _status_of_windows(windows: list[Completeness]) -> int:
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


def _print_windows(windows: list[Completeness]) -> None:
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


_state_option = click.option(
    "--state", default=_STATE, show_default=True, metavar="TOPIC", help="The compacted topic with all verdicts."
)
_markers_option = click.option(
    "--markers", default=_MARKERS, show_default=True, metavar="TOPIC", help="The compacted topic of markers."
)

_NOTHING: Final = (
    "no window was judged since then: a service judges a window some seconds after its end (--grace), and begins with "
    "the first whole window after its first start, unless --since says otherwise"
)


@audit.command()
@click.argument("topics", nargs=-1, required=True)
@bootstrap_option
@click.option("--stage", "stages", multiple=True, metavar="NAME=KIND:WHERE",
              help="A later stage: NAME=table:PATH, or NAME=cluster:HOST:PORT. Repeat it for each stage.")  # fmt: skip
@click.option("--reports", default=AUDIT_TOPIC, show_default=True, metavar="TOPIC", help="The topic of reports.")
@_state_option
@_markers_option
@click.option("--marker-files", metavar="DIR", help="Write a file here for each complete period: a path or URI.")
@click.option("--period", default="hour", show_default=True, metavar="hour|day|SECONDS",
              help="What a marker is about.")  # fmt: skip
@click.option("--window", type=click.FloatRange(0.001), default=60.0, show_default=True, metavar="SECONDS",
              help="The length of windows; that of the producers, or a multiple.")  # fmt: skip
@click.option("--grace", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECONDS",
              help="How long after its end a window is judged.")  # fmt: skip
@click.option("--late", type=click.FloatRange(0), default=3600.0, show_default=True, metavar="SECONDS",
              help="How long after its period late data can change a verdict.")  # fmt: skip
@click.option("--since", default="now", show_default=True, metavar="TIME",
              help="Where the first run begins: now, beginning, or a time such as 2h.")  # fmt: skip
@click.option("--keep", type=click.FloatRange(0), default=7.0, show_default=True, metavar="DAYS",
              help="How long verdicts are kept.")  # fmt: skip
@click.option("--interval", type=click.FloatRange(0.1), default=5.0, show_default=True, metavar="SECONDS",
              help="How often to look for new commits of tables.")  # fmt: skip
@click.option("-l", "--listen", metavar="HOST:PORT",
              help="Serve metrics and the report here by HTTP; port 0 picks a free port.")  # fmt: skip
@log_options
@click.pass_context
def serve(ctx: click.Context, /, topics: tuple[str, ...], bootstrap: str, listen: str | None, **given: Any) -> None:
    """Audit TOPICS continuously, until SIGTERM or Ctrl-C.

    Each window is judged at the cluster with the audit topic (stage `serving`) and at each later stage, up to what the
    stage has committed. Verdicts and the position are kept in a topic: restart the command at any time. Needs the extra
    `pylogd-broker[audit]`.

    \b
    pylogd audit serve flights --listen 127.0.0.1:8090
    pylogd audit serve flights --stage lake=table:/data/lake,markers=true
    pylogd audit serve flights --stage mirror=cluster:mirror:9092,via=mirror
    """
    with needs_extra("audit"):
        from pylogd.services.audit import opening

    descriptions = [opening.StageDescription.parse(text) for text in given["stages"]]
    opening.check_stages(descriptions)
    options = _options(topics, bootstrap, given)
    ctx.exit(_serve(options, descriptions, given, listen))


def _options(topics: Sequence[str], bootstrap: str, given: dict[str, Any]) -> AuditOptions:
    from pylogd.services.audit.service import AuditOptions

    since = {"now": None, "beginning": 0}.get(given["since"], -1)
    if since == -1:
        since = parse_time(given["since"])
        if since is None:
            raise click.BadParameter(f"{given['since']!r} is neither now, beginning nor a time", param_hint="--since")
    return AuditOptions(
        sorted(set(topics)), bootstrap, given["reports"], given["state"], given["markers"], since,
        round(given["keep"] * _PERIODS["day"]), given["marker_files"], client_security(),
    )  # fmt: skip


def _period_ms(text: str) -> int:
    try:
        found = _PERIODS.get(text) or round(float(text) * 1000)
    except ValueError:
        found = 0
    if found <= 0:
        raise click.BadParameter(f"{text!r} is neither hour, day nor a number of seconds", param_hint="--period")
    return found


def _serve(
    options: AuditOptions, descriptions: Sequence[StageDescription], given: dict[str, Any], listen: str | None
) -> int:
    from pylogd.base.process.shell import process_reactor
    from pylogd.services.audit.process import AuditProcess
    from pylogd.services.audit.windows import LedgerOptions

    reactor = process_reactor()
    windows = LedgerOptions(
        round(given["window"] * 1000), _period_ms(given["period"]), round(given["grace"] * 1000),
        round(given["late"] * 1000),
    )  # fmt: skip
    if windows.period_ms % windows.width_ms:
        raise click.BadParameter("a period has to be a multiple of a window", param_hint="--window")
    output = begin_log(reactor, given["logfile"], given["log_format"])
    address = listen and http_endpoint(listen)
    process = AuditProcess(
        reactor, options, windows, descriptions, listen=address, look_seconds=given["interval"], now_ms=wall_ms
    )  # fmt: skip
    return run_service(reactor, process, "pylogd audit serve", output)


@audit.command()
@click.argument("topics", nargs=-1)
@bootstrap_option
@_state_option
@click.option("--since", default="6h", show_default=True, metavar="TIME", help="Only windows that began since then.")
@click.option("--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with a chart.")
@click.option("--svg", "picture", type=click.Path(path_type=Path), metavar="FILE", help="Write the chart.")
@click.option("--all", "everything", is_flag=True, help="Also print windows that are complete.")
@output_option
@click.pass_context
def report(
    ctx: click.Context, /, topics: tuple[str, ...], bootstrap: str, state: str, since: str, page: Path | None,
    picture: Path | None, everything: bool,
) -> None:  # fmt: skip
    """Show what `pylogd audit serve` found: windows by stage, of TOPICS or of all.

    Exit status: 0 all windows are complete, 1 a window is incomplete, 3 no window is incomplete but one is unknown or
    pending, or there are none.

    \b
    pylogd audit report flights --since 24h
    pylogd audit report --html audit.html
    """
    with needs_extra("audit"):
        from pylogd.services.audit.report import as_html, as_svg

    begin = parse_time(since)
    if begin is None:
        raise click.BadParameter(f"{since!r} is not a time", param_hint="--since")
    found, width_ms = _read_rows(bootstrap, state)
    rows = [row for row in found if row.start_ms >= begin and (not topics or row.topic in topics)]
    stages = list(dict.fromkeys(["serving", *(row.stage for row in rows)]))
    if page is not None:
        page.write_text(as_html(rows, stages, width_ms), "utf-8")
    if picture is not None:
        picture.write_text(as_svg(rows, stages, width_ms), "utf-8")
    verdicts = {row.judgement.verdict for row in rows}
    _print_rows([row for row in rows if everything or row.judgement.verdict != "complete"])
    complete = sum(row.judgement.verdict == "complete" for row in rows)
    note(f"{complete} of {len(rows)} windows are complete" if rows else _NOTHING)
    ctx.exit(_exit_status(verdicts))


def _exit_status(verdicts: set[Verdict]) -> int:
    if "incomplete" in verdicts:
        return EXIT_INCOMPLETE
    return 0 if verdicts == {"complete"} else EXIT_UNKNOWN


def _print_rows(rows: Sequence[Row]) -> None:
    documents = [row.as_document() for row in rows]
    if documents:
        print_records(list(documents[0]), documents, lines=True)


def _read_rows(bootstrap: str, state: str) -> tuple[list[Row], int]:
    """Return the verdicts in the state topic, and the length of windows in milliseconds."""
    from pylogd.services.audit.report import Row, sort_rows
    from pylogd.services.audit.state import RESUME, judgement_of

    width_ms = 60_000
    latest: dict[bytes, Row] = {}
    for key, value in _records(bootstrap, state, None):
        if key == RESUME:
            width_ms = json.loads(value)["width_ms"]
        elif key.startswith(b"window/"):
            stage, topic, start = key.decode().removeprefix("window/").rsplit("/", 2)
            try:
                document = json.loads(value)
                latest[key] = Row(stage, topic, int(start), judgement_of(document), document["revision"])
            except (ValueError, KeyError, TypeError) as error:
                note(f"ignoring {key.decode()}, which this version can't read: {error!r}")
    return sort_rows(latest.values(), ["serving"]), width_ms


def _records(bootstrap: str, topic: str, deadline: Callable[[], bool] | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of a topic's records up to its end; with `deadline` until it returns true."""
    from pylogd.client import Consumer

    with connect(bootstrap) as cluster, Consumer(cluster, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(consumer.beginning_offsets(partitions))
        while any(consumer.position(each) < ends[each] for each in partitions) or (deadline and not deadline()):
            for record in consumer.poll(_POLL_SECONDS):
                if record.key is not None and record.value is not None:
                    yield record.key, record.value


@audit.command()
@click.argument("topic")
@click.argument("period")
@partial(bootstrap_option, timeout="--broker-timeout")
@click.option("--stage", "stages", multiple=True, default=("serving",), show_default=True,
              help="The stage. Repeat it for one verdict on several stages.")  # fmt: skip
@_markers_option
@click.option("--timeout", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
              help="How long to wait for the marker; by default not at all.")  # fmt: skip
@output_option
@click.pass_context
def wait(
    ctx: click.Context, /, topic: str, period: str, bootstrap: str, stages: tuple[str, ...], markers: str,
    timeout: float,
) -> None:  # fmt: skip
    """Wait until the PERIOD of a TOPIC is decided at all stages, and say whether it is complete.

    PERIOD is its start in UTC, as in markers: 2026-11-23T07. Exit status: 0 it is complete at all stages, 1 it is
    incomplete at one, 3 it is unknown, or not decided within --timeout.

    \b
    pylogd audit wait flights 2026-11-23T07 --stage serving --stage lake \\
        --timeout 3600 && spark-submit daily.py
    """
    wanted = list(dict.fromkeys(stages))
    found = _find_markers(bootstrap, markers, topic, period, wanted, timeout)
    for stage in wanted:
        if stage not in found:
            note(f"{topic} {period} is not decided at {stage} yet")
    verdicts = {each.verdict for each in found.values()}
    status = _exit_status(verdicts)
    if len(found) < len(wanted):
        ctx.exit(EXIT_INCOMPLETE if status == EXIT_INCOMPLETE else EXIT_UNKNOWN)
    _print_markers(topic, period, [found[stage] for stage in wanted], status)
    ctx.exit(status)


def _print_markers(topic: str, period: str, found: Sequence[Marker], status: int) -> None:
    """Print the marker of each stage, and of several stages the verdict on all."""
    documents = [json.loads(each.encode()) for each in found]
    verdict = {0: "complete", EXIT_INCOMPLETE: "incomplete"}.get(status, "unknown")
    chain = {"topic": topic, "period": period, "verdict": verdict, "complete": not status, "stages": documents}
    if print_document(documents[0] if len(documents) == 1 else chain):
        return
    for each in found:
        print_line(
            f"{topic} {period} at {each.stage}: {each.verdict}. Reported {each.reported}, recovered {each.recovered}, "
            f"received {each.received}, missing {each.missing}, lost {each.lost}, duplicates {each.duplicates}, "
            f"unreported {each.unreported}, unstamped {each.unstamped}"
        )
    if len(found) > 1:
        print_line(f"{topic} {period}: {verdict}")


def _find_markers(
    bootstrap: str, markers: str, topic: str, period: str, stages: Sequence[str], timeout: float
) -> dict[str, Marker]:
    """Return the latest marker of each stage that has one, waiting up to `timeout` seconds for all of them."""
    with needs_extra("audit"):
        from pylogd.services.audit.markers import Marker

    end = time.monotonic() + timeout
    found: dict[str, Marker] = {}
    for _, value in _records(bootstrap, markers, lambda: len(found) == len(stages) or time.monotonic() >= end):
        marker = Marker.decode(value)
        if (marker.topic, marker.period) == (topic, period) and marker.stage in stages:
            found[marker.stage] = marker
    return found
