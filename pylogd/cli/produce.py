"""`pylogd produce`: send lines as records.

Strategy: input is read as it arrives and split at newlines. The producer's thread sends a batch after its linger time,
so a line typed at a terminal, or written by `tail -f`, is sent before the next one arrives.
"""

# ruff: noqa: PLC0415 - rich is imported only for a terminal
from __future__ import annotations

import difflib
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from pylogd.cli.common import bootstrap_option, connect, format_bytes
from pylogd.cli.completing import topic_names
from pylogd.cli.output import note
from pylogd.cli.record_input import BadInput, Fixed, InputFormat, JsonFormat, LineFormat
from pylogd.cli.schema_options import encoders_of, written_schemas
from pylogd.cli.waiting import saying
from pylogd.client import Admin, BatchResult, Cluster, NewTopic, Producer
from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.typed.errors import NotEncoded

_READ_BYTES = 1 << 18
_LONGEST_LINE = 64 * 1024 * 1024
_IDLE_SECONDS = 0.1


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
@click.option("-q", "--quiet", is_flag=True, help="Don't show progress.")
@written_schemas
@bootstrap_option
def produce(
    topic: str, files: Sequence[Path], create: bool, rate: float | None, quiet: bool, acks: str, compression: str,
    batch_bytes: int, linger_ms: int, bootstrap: str, **given: Any,
) -> None:  # fmt: skip
    """Send each line of FILES, or of standard input, to TOPIC as a record.

    The line end is not part of the record. Exit status 1 if a record can't be written.

    \b
    pylogd produce events < access.log
    echo "user-7:signed in" | pylogd produce events -K :
    pylogd produce events --compression zstd monday.log tuesday.log
    pylogd consume events --to end -f json | pylogd produce copy -f json
    echo '{"id": 7}' | pylogd produce orders --value-schema latest
    """
    form = _input_format(topic, given)
    tally = _Tally()
    options: Any = {"acks": "all" if acks == "all" else int(acks)}
    connected = connect(bootstrap)
    producer = Producer(
        connected, compression=compression, batch_bytes=batch_bytes, linger_ms=linger_ms, on_batch=tally.add, **options
    )
    with connected:
        _find_topic(connected, topic, create)
        with producer, _progress(files, quiet) as progress:
            for source in files or [Path("-")]:
                with _open(source) as stream:
                    _send_lines(producer, topic, stream, form, _RateLimit(rate), tally, progress)
            with saying(lambda: f"waiting for {bootstrap} to confirm the last records"):
                producer.flush()
    if sys.stderr.isatty() and not quiet:
        note(tally.summary())


def _input_format(topic: str, given: Mapping[str, Any]) -> InputFormat:
    """Return what makes records of the input, by the command's options. Raises UsageError."""
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
    """Check that a topic exists, or create it. Raises ClickException that proposes the nearest name."""
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


def _send_lines(
    producer: Producer, topic: str, stream: BinaryIO, form: InputFormat, limit: _RateLimit, tally: _Tally, progress: Any
) -> None:
    number = 0
    for lines in _read_lines(stream):
        for line in lines:
            number += 1
            limit.wait()
            try:
                record = form.read(line)
            except (BadInput, NotEncoded) as error:
                raise click.ClickException(f"line {number}: {error}") from None
            producer.send(
                topic, record.value, record.key, partition=record.partition, timestamp=record.timestamp,
                headers=record.headers,
            )  # fmt: skip
            tally.bytes += len(line) + 1
        if tally.error is not None:
            raise tally.error
        if progress is not None:
            progress.update(progress.task_ids[0], completed=tally.bytes)


def _read_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines that arrive together; [] from time to time while none do, so that errors are noticed."""
    descriptor = stream.fileno()
    tail = b""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    while True:
        while not waiting.poll(_IDLE_SECONDS * 1000):
            yield []
        chunk = os.read(descriptor, _READ_BYTES)
        if not chunk:
            break
        lines = (tail + chunk).split(b"\n")
        tail = lines.pop()
        if len(tail) > _LONGEST_LINE:
            raise click.ClickException(f"a line has more than {format_bytes(_LONGEST_LINE)}")
        yield lines
    if tail:
        yield [tail]


def _open(source: Path) -> AbstractContextManager[BinaryIO]:
    if str(source) == "-":
        return nullcontext(cast(BinaryIO, sys.stdin.buffer))
    return source.open("rb")


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
