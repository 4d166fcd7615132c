"""`pylogd consume`: records on standard output."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

import click

from pylogd.cli.common import bootstrap_option, connect, format_time, note, parse_time, text_or_base64
from pylogd.client import Consumer, Record, TopicPartition

_NUMBER = re.compile(r"-?\d+")
_POLL_SECONDS = 1.0
Render = Callable[[Record], bytes]


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only these.")
@click.option("-f", "--from", "start", default="beginning", show_default=True, metavar="WHERE",
              help="beginning, end, an offset, -N for the last N of each partition, or a time: 2026-11-21T08:00, "
              "@1795219200 (seconds since 1970), or 15m, 2h, 3d ago.")  # fmt: skip
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after so many records.")
@click.option("--follow/--until-end", default=True, show_default="follow",
              help="Wait for more, or stop at what is the end now.")  # fmt: skip
@click.option("-t", "--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="Stop when nothing has come for so long.")  # fmt: skip
@click.option("-o", "--format", "form", type=click.Choice(["plain", "key-value", "json"]), default="plain",
              show_default=True, help="json: one object a line, with offset, time and headers.")  # fmt: skip
@click.option("-K", "--key-separator", default="\t", metavar="TEXT", help="For key-value; a tab by default.")
@bootstrap_option
def consume(
    topics: Sequence[str], partitions: Sequence[int], start: str, count: int | None, follow: bool,
    timeout: float | None, form: str, key_separator: str, bootstrap: str,
) -> None:  # fmt: skip
    """Print the records of TOPICS as they come, one a line.

    \b
    pylogd consume events                                  from the beginning, and on and on
    pylogd consume events --from end                       only what comes from now on
    pylogd consume events --until-end --format json | jq .value
    pylogd consume events --from -10 --until-end           the last ten of each partition
    pylogd consume events --from 15m --count 100
    """
    render = _renderer(form, key_separator.encode())
    with connect(bootstrap) as connected, Consumer(connected) as consumer:
        chosen = [p for topic in topics for p in _choose(consumer, topic, partitions)]
        consumer.assign(_start(consumer, chosen, start))
        ends = None if follow else consumer.end_offsets(chosen)
        _run(consumer, _Output(sys.stdout.buffer, render), count, timeout, ends)


class _Output:
    """Writes records, and forgets none in a buffer while it waits for the next."""

    def __init__(self, stream: BinaryIO, render: Render) -> None:
        self._stream = stream
        self._render = render

    def write(self, records: list[Record]) -> None:
        self._stream.write(b"".join(map(self._render, records)))
        self._stream.flush()


def _run(
    consumer: Consumer, output: _Output, count: int | None, timeout: float | None,
    ends: dict[TopicPartition, int] | None,
) -> None:  # fmt: skip
    left = count
    last = time.monotonic()
    while ends is None or any(consumer.position(p) < end for p, end in ends.items()):
        wait = _POLL_SECONDS if timeout is None else max(0.0, min(_POLL_SECONDS, last + timeout - time.monotonic()))
        records = consumer.poll(wait)
        now = time.monotonic()
        if not records:
            if timeout is not None and now - last >= timeout:
                return
            continue
        last = now
        if ends is not None:
            records = [r for r in records if r.offset < ends[TopicPartition(r.topic, r.partition)]]
        if left is not None:
            records = records[:left]
            left -= len(records)
        output.write(records)
        if left == 0:
            return


def _choose(consumer: Consumer, topic: str, wanted: Sequence[int]) -> list[TopicPartition]:
    there = consumer.partitions(topic)
    if missing := set(wanted) - {p.partition for p in there}:
        raise click.ClickException(f"topic {topic} has no partition {min(missing)}: it has {len(there)}")
    return [p for p in there if not wanted or p.partition in wanted]


def _start(consumer: Consumer, partitions: list[TopicPartition], start: str) -> dict[TopicPartition, int]:
    """The offset in each partition that `--from` means."""
    begins = consumer.beginning_offsets(partitions)
    if start == "beginning":
        return begins
    ends = consumer.end_offsets(partitions)
    if start == "end":
        return ends
    if _NUMBER.fullmatch(start):
        number = int(start)
        wanted = {p: ends[p] + number if start.startswith("-") else number for p in partitions}
        for partition, offset in wanted.items():
            if offset > ends[partition]:
                note(f"{partition}: offset {offset} is behind the end; reading from the end, {ends[partition]}")
        return {p: max(begins[p], min(offset, ends[p])) for p, offset in wanted.items()}
    timestamp = parse_time(start)
    if timestamp is None:
        raise click.BadParameter(f"{start!r} is no place and no time", param_hint="--from")
    found = consumer.offsets_for_times(dict.fromkeys(partitions, timestamp))
    return {p: ends[p] if answer is None else answer.offset for p, answer in found.items()}


def _renderer(form: str, separator: bytes) -> Render:
    if form == "json":
        return _as_json
    if form == "key-value":
        return lambda record: b"%b%b%b\n" % (record.key or b"", separator, record.value or b"")
    return lambda record: b"%b\n" % (record.value or b"")


def _as_json(record: Record) -> bytes:
    fields: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": format_time(record.timestamp),
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
    }
    if record.headers:
        fields["headers"] = [{"name": name, **text_or_base64("value", value)} for name, value in record.headers]
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
