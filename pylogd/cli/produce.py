"""`pylogd produce`: send lines as records.

Strategy: input is read as it arrives and split at newlines. The producer's thread sends a batch after its linger time,
so a line typed at a terminal, or written by `tail -f`, is sent before the next one arrives.

Whatever ends the command in the middle of its input (a bad line, a broker's error, Ctrl-C, SIGTERM), the lines before
are delivered first, and the command says how many are acknowledged and which `--skip-lines` goes on after them.
"""

# ruff: noqa: PLC0415 - rich is imported only for a terminal
from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import click

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.cli.common import bootstrap_option, connect, format_bytes
from pylogd.cli.input_lines import InputLines, Written
from pylogd.cli.names import topic_names
from pylogd.cli.output import note, one_line
from pylogd.cli.record_input import BadInput, Fixed, InputFormat, JsonFormat, LineFormat
from pylogd.cli.schema_options import encoders_of, written_schemas
from pylogd.cli.stopping import ended_by_sigterm
from pylogd.cli.waiting import note_if_slow
from pylogd.client import Admin, BatchResult, Cluster, NewTopic, Producer
from pylogd.lake.typed.errors import NotEncoded

#: The seconds to deliver the records that were read before Ctrl-C or SIGTERM.
_LAST_SECONDS: Final = 5.0


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
                metavar="[FILE]...")  # fmt: skip
@click.option("--create", is_flag=True, help="Create the topic if it does not exist, as the brokers' defaults say.")
@click.option("-f", "--format", "form", type=click.Choice(["lines", "json"]), default="lines", show_default=True,
              help="lines, or a JSON object on each line as `pylogd consume --format json` prints it.")  # fmt: skip
@click.option("--keep-partitions", is_flag=True, help="With --format json: write to the partition that it names.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Split lines into key and value at this text.")
@click.option("-k", "--key", help="The key of every record that has none.")
@click.option(
    "-p", "--partition", type=click.IntRange(0), help="Partition of every record  [default: by the key's hash]"
)
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record. Repeatable."
)
@click.option(
    "--null-value", metavar="TEXT", help="Send lines with this value as null, which deletes the key on compaction."
)
@click.option("-a", "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True,
              help="Wait for all in-sync replicas, for the leader, or for nobody.")  # fmt: skip
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none",
              show_default=True, help="Compression of the batches.")  # fmt: skip
@click.option("--batch-bytes", type=click.IntRange(1), default=256 * 1024, show_default=True,
              help="Size of a batch, before compression.")  # fmt: skip
@click.option(
    "--linger-ms", type=click.IntRange(0), default=5, show_default=True, help="How long a batch waits for more records."
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Limit in records per second.")
@click.option("--skip-lines", type=click.IntRange(0), default=0, metavar="N",
              help="Leave out the first N lines of all FILES together: to go on after an error.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Don't show progress.")
@written_schemas
@bootstrap_option
def produce(
    topic: str, files: Sequence[Path], create: bool, rate: float | None, quiet: bool, acks: str, compression: str,
    batch_bytes: int, linger_ms: int, skip_lines: int, bootstrap: str, **given: Any,
) -> None:  # fmt: skip
    """Send each line of FILES, or of standard input, to TOPIC as a record.

    The line end is not part of the record. Exit status 1 if a record can't be written. A line that is no record ends
    the command when all lines before it are delivered; so do a broker's error and Ctrl-C. Standard error then says how
    many lines are acknowledged, and with which --skip-lines the same command goes on.

    With --format json a line needs a "value" or "value_base64"; "value": null deletes the key on compaction. It may
    have "key" or "key_base64", "headers", "timestamp" and what else `pylogd consume` prints, but no other fields.

    \b
    pylogd produce events < access.log
    echo "user-7:signed in" | pylogd produce events -K :
    pylogd produce events --compression zstd monday.log tuesday.log
    pylogd consume events --to end -f json | pylogd produce copy -f json
    echo '{"id": 7}' | pylogd produce orders --value-schema latest
    pylogd produce events -f json events.json --skip-lines 50000
    """
    form = _input_format(topic, given)
    tally, lines = _Tally(), InputLines(files, skip_lines)
    written = Written(lines, skip_lines, confirmed=acks != "0")
    options: Any = {"acks": "all" if acks == "all" else int(acks)}
    connected = connect(bootstrap)
    producer = Producer(
        connected, compression=compression, batch_bytes=batch_bytes, linger_ms=linger_ms, on_batch=tally.add, **options
    )
    with connected:
        _find_topic(connected, topic, create)
        with ended_by_sigterm(), producer, _progress(files, quiet) as progress:
            try:
                problem = _write(producer, topic, lines, form, _RateLimit(rate), (tally, written), progress)
            except KeyboardInterrupt:
                _deliver_last(producer)
                if told := written.interruption():
                    note(told)
                raise
            if problem is not None:
                raise click.ClickException(problem)
    if sys.stderr.isatty() and not quiet:
        note(tally.summary())


def _input_format(topic: str, given: Mapping[str, Any]) -> InputFormat:
    """Return the format that parses the input, according to the command's options. Raises UsageError."""
    key, separator = given["key"], given["key_separator"]
    if key is not None and separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other")
    fixed = Fixed(None if key is None else key.encode(), given["partition"], _headers(given["headers"]))
    encoders = encoders_of(topic, given)
    if given["form"] == "json":
        if separator is not None or given["null_value"] is not None:
            raise click.UsageError("--key-separator and --null-value are for --format lines")
        return JsonFormat(fixed, encoders, keep_partitions=given["keep_partitions"])
    if given["keep_partitions"]:
        raise click.UsageError("--keep-partitions is for --format json")
    return LineFormat(fixed, separator, given["null_value"], encoders)


def _find_topic(connected: Cluster, name: str, create: bool) -> None:
    """Check that a topic exists, or create it. Raises ClickException with the nearest name as a proposal."""
    connected.brokers()
    try:
        connected.refresh([name])
        return
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return  # no leader yet, or nothing may be asked about it: the producer has its own errors
    with Admin(connected) as admin:
        if not create:
            near = difflib.get_close_matches(name, [topic.name for topic in admin.list_topics()], 1)
            hint = f"did you mean {near[0]}?" if near else "--create creates it"
            raise click.ClickException(f"there is no topic {name}: {hint}")
        refused = admin.create_topics([NewTopic(name)])[name]
        if refused is not None and refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise refused
        admin.describe_topic(name)


class _Tally:
    """Count written records, and keep the first error."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.error: PylogdError | None = None
        self._began = time.monotonic()

    def add(self, result: BatchResult) -> None:
        if result.error is None:
            self.records += result.records
        elif self.error is None:
            self.error = result.error

    def summary(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        return (
            f"{self.records:,} records, {format_bytes(self.bytes)} in {seconds:.2f} s: "
            f"{self.records / seconds:,.0f} records/s, {format_bytes(self.bytes / seconds)}/s"
        )


class _RateLimit:
    """Limit records to `rate` per second; None for no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._began = time.monotonic()
        self._sent = 0

    def wait(self) -> None:
        """Wait until the next record may be sent."""
        if self._rate is None:
            return
        while (left := self._began + self._sent / self._rate - time.monotonic()) > 0:
            time.sleep(left)
        self._sent += 1


def _write(
    producer: Producer, topic: str, lines: InputLines, form: InputFormat, limit: _RateLimit,
    followed: tuple[_Tally, Written], progress: Any,
) -> str | None:  # fmt: skip
    """Write all lines. Return None, or a message with the cause of a failure and the line to continue at."""
    tally, written = followed
    try:
        _send_lines(producer, topic, lines, form, limit, followed, progress)
    except (PylogdError, OSError) as error:
        _deliver(producer)
        return written.failure(None if error is tally.error else error, one_line)
    return None if _deliver(producer) else written.failure(None, one_line)


def _send_lines(
    producer: Producer, topic: str, lines: InputLines, form: InputFormat, limit: _RateLimit,
    followed: tuple[_Tally, Written], progress: Any,
) -> None:  # fmt: skip
    """Send all lines. Raises the first error of a batch, or the error of the line after the last one that was sent."""
    tally, written = followed
    for chunk in lines.chunks():
        for line in chunk:
            limit.wait()
            try:
                record = form.read(line)
                delivery = producer.send(
                    topic, record.value, record.key, partition=record.partition, timestamp=record.timestamp,
                    headers=record.headers,
                )  # fmt: skip
            except (NotEncoded, ValueError, TypeError) as error:  # such as a time stamp beyond all years
                raise BadInput(str(error)) from error
            written.add(delivery)
            tally.bytes += len(line) + 1
        written.settle()
        if tally.error is not None:
            raise tally.error
        if progress is not None:
            progress.update(progress.task_ids[0], completed=lines.bytes)


def _deliver(producer: Producer) -> bool:
    """Wait until every record has a result. Return whether all are written."""
    try:
        with note_if_slow(lambda: "waiting for the brokers to confirm the last records"):
            producer.flush()
    except PylogdError:
        return False
    return True


def _deliver_last(producer: Producer) -> None:
    """Wait a limited time for the results of sent records; a second Ctrl-C or SIGTERM ends the wait."""
    told = (
        f"waiting up to {_LAST_SECONDS:g} s for the brokers to confirm the last records; interrupt again to end at once"
    )
    with suppress(PylogdError, KeyboardInterrupt), note_if_slow(lambda: told):
        producer.flush(_LAST_SECONDS)


def _headers(words: Sequence[str]) -> list[tuple[str, bytes]]:
    headers = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--header")
        headers.append((name, value.encode()))
    return headers


def _progress(files: Sequence[Path], quiet: bool) -> AbstractContextManager[Any]:
    """Return a progress bar if standard error is a terminal and the size of the input is known."""
    sizes = [path.stat().st_size for path in files if path.is_file()]
    if quiet or not sys.stderr.isatty() or not sizes or len(sizes) < len(files):
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    progress = Progress(
        BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    progress.add_task("produce", total=sum(sizes))
    return progress
