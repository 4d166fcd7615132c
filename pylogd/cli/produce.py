"""`pylogd produce`: lines become records.

Strategy: input is read in pieces as they come and cut at newlines; the producer's thread sends what has lingered, so a
line typed at a terminal, or written by `tail -f`, leaves before the next one comes.
"""

# ruff: noqa: PLC0415 - rich is imported when there is a terminal to draw on
from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from pylogd.cli.common import bootstrap_option, connect, format_bytes, note
from pylogd.client import BatchResult, Producer
from pylogd.errors import PylogdError

_PIECE = 1 << 18
_LONGEST_LINE = 64 * 1024 * 1024
_IDLE_SECONDS = 0.1


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
                metavar="[FILE]...")  # fmt: skip
@click.option("-K", "--key-separator", metavar="TEXT", help="Split lines into key and value at this text.")
@click.option("-k", "--key", help="The key of every record.")
@click.option("-p", "--partition", type=click.IntRange(0), help="Partition; by default the key's hash decides.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record.")
@click.option("--null-value", metavar="TEXT", help="Send this value as null, a delete marker for the key.")
@click.option("-a", "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none",
              show_default=True)  # fmt: skip
@click.option("--batch-bytes", type=click.IntRange(1), default=256 * 1024, show_default=True,
              help="Size of a batch, before compression.")  # fmt: skip
@click.option("--linger-ms", type=click.IntRange(0), default=5, show_default=True, help="How long a batch waits.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Limit in records per second.")
@click.option("-q", "--quiet", is_flag=True, help="Don't show progress.")
@bootstrap_option
def produce(
    topic: str, files: Sequence[Path], key_separator: str | None, key: str | None, partition: int | None,
    headers: Sequence[str], null_value: str | None, acks: str, compression: str, batch_bytes: int, linger_ms: int,
    rate: float | None, quiet: bool, bootstrap: str,
) -> None:  # fmt: skip
    """Send each line of FILES, or of standard input, to TOPIC as a record.

    The line's end is not part of it. It is an error, with exit code 1, if any record can't be written.

    \b
    pylogd produce events < access.log
    echo "user-7:signed in" | pylogd produce events --key-separator :
    pylogd produce events --compression zstd monday.log tuesday.log
    """
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other")
    shape = _Shape(key, key_separator, partition, _headers(headers), null_value)
    tally = _Tally()
    options: Any = {"acks": "all" if acks == "all" else int(acks)}
    connected = connect(bootstrap, auto_create_topics=True)
    producer = Producer(
        connected, compression=compression, batch_bytes=batch_bytes, linger_ms=linger_ms, on_batch=tally.add, **options
    )
    with connected, producer, _progress(files, quiet) as progress:
        for source in files or [Path("-")]:
            with _open(source) as stream:
                _pump(producer, topic, stream, shape, _Pace(rate), tally, progress)
        producer.flush()
    if sys.stderr.isatty() and not quiet:
        note(tally.summary())


class _Shape:
    """How a line becomes a record."""

    def __init__(
        self, key: str | None, separator: str | None, partition: int | None, headers: list[tuple[str, bytes]],
        null_value: str | None,
    ) -> None:  # fmt: skip
        self._key = None if key is None else key.encode()
        self._separator = None if not separator else separator.encode()
        self._null = None if null_value is None else null_value.encode()
        self.partition = partition
        self.headers = headers

    def read(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        """Key and value."""
        key, value = self._key, line
        if self._separator is not None:
            head, found, tail = line.partition(self._separator)
            if found:
                key, value = head, tail
        return key, None if value == self._null else value


class _Tally:
    """What was written so far, and the first error."""

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


class _Pace:
    """At most `rate` records a second; without a rate, no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._began = time.monotonic()
        self._sent = 0

    def step(self) -> None:
        """Wait for the next record's turn."""
        if self._rate is None:
            return
        while (left := self._began + self._sent / self._rate - time.monotonic()) > 0:
            time.sleep(left)
        self._sent += 1


def _pump(
    producer: Producer, topic: str, stream: BinaryIO, shape: _Shape, pace: _Pace, tally: _Tally, progress: Any
) -> None:
    for lines in _pieces(stream):
        for line in lines:
            pace.step()
            key, value = shape.read(line)
            producer.send(topic, value, key, partition=shape.partition, headers=shape.headers)
            tally.bytes += len(line) + 1
        if tally.error is not None:
            raise tally.error
        if progress is not None:
            progress.update(progress.task_ids[0], completed=tally.bytes)


def _pieces(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Whole lines, as many as came at once; [] now and then while none come, to look at what became of others."""
    descriptor = stream.fileno()
    tail = b""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    while True:
        while not waiting.poll(_IDLE_SECONDS * 1000):
            yield []
        piece = os.read(descriptor, _PIECE)
        if not piece:
            break
        lines = (tail + piece).split(b"\n")
        tail = lines.pop()
        if len(tail) > _LONGEST_LINE:
            raise click.ClickException(f"a line of more than {format_bytes(_LONGEST_LINE)}")
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
    """A bar if there is a terminal to draw it on and the end is known."""
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
