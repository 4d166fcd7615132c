"""`pylogd consume`: print records on standard output."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO, Literal

import click

from pylogd.cli.common import (
    bootstrap_option,
    connect,
    format_time,
    member_settings,
    parse_time,
    text_or_base64,
)
from pylogd.cli.output import note
from pylogd.cli.stopping import Stop, terminable
from pylogd.client import Consumer, Record, TopicPartition
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.process.printable import printable, printable_json

_NUMBER = re.compile(r"-?\d+")
_POLL_SECONDS = 1.0
Render = Callable[[Record], bytes]


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Read only this partition. Repeatable.",
)
@click.option("-g", "--group", metavar="GROUP",
              help="Join this consumer group: share its partitions, start at its committed offsets, and commit "
              "what is printed.")  # fmt: skip
@click.option("--group-protocol", "protocol", type=click.Choice(["classic", "consumer"]),
              help="With --group: classic, in which members assign the partitions, or consumer (KIP-848), in which the "
              "broker does  [default: group.protocol of --command-config, else classic]")  # fmt: skip
@click.option("-f", "--from", "start", default="beginning", show_default=True, metavar="WHERE",
              help="Where to start: beginning, end, an offset, -N for the last N of each partition, or a time: "
              "2026-11-21T08:00, @1795219200 (seconds since 1970), or 15m, 2h, 3d ago.")  # fmt: skip
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many records.")
@click.option("--follow/--until-end", default=True, show_default="follow",
              help="Wait for new records, or stop at the current end.")  # fmt: skip
@click.option("-t", "--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="Stop when no record arrives for this long.")  # fmt: skip
@click.option("-o", "--format", "form", type=click.Choice(["plain", "key-value", "json"]), default="plain",
              show_default=True, help="Output format. json has offset, time and headers as well.")  # fmt: skip
@click.option("--raw", is_flag=True,
              help="On a terminal, print keys and values as they are. By default control characters are escaped "
              "there.")  # fmt: skip
@click.option(
    "-K", "--key-separator", default="\t", metavar="TEXT", help="Text between key and value  [default: a tab]"
)
@click.option("--rack", metavar="RACK", help="Prefer replicas in this rack (the brokers' broker.rack, "
              "KIP-392).")  # fmt: skip
@bootstrap_option
def consume(
    topics: Sequence[str], partitions: Sequence[int], group: str | None, protocol: str | None, start: str,
    count: int | None, follow: bool, timeout: float | None, form: str, raw: bool, key_separator: str, rack: str | None,
    bootstrap: str,
) -> None:  # fmt: skip
    """Print the records of TOPICS as they arrive, one per line.

    \b
    pylogd consume events                                  from the beginning, until interrupted
    pylogd consume events --from end                       only new records
    pylogd consume events --until-end --format json | jq .value
    pylogd consume events --from -10 --until-end           the last ten of each partition
    pylogd consume events --from 15m --count 100
    pylogd consume events --group billing                  as a member of a group, which shares the partitions
    pylogd consume events --group billing --group-protocol consumer

    In a pipe or a file, keys and values are written as they are. On a terminal, control characters in them are shown
    as escapes such as \\x1b, unless --raw is given.

    On SIGTERM or Ctrl-C the command prints what it has read, commits and leaves its group, and ends.
    """
    render = _renderer(form, key_separator.encode(), escaped=sys.stdout.isatty() and not raw)
    if group is not None:
        _check_for_group(partitions, start)
        reset: Literal["earliest", "latest"] = "earliest" if start == "beginning" else "latest"
        options = ConsumerOptions(
            group_id=group, auto_offset_reset=reset, client_rack=rack, **member_settings(protocol)
        )  # fmt: skip
        with terminable() as stop, connect(bootstrap) as connected, Consumer(connected, options) as consumer:
            for topic in topics:
                consumer.partitions(topic)  # raises for an unknown topic, which would otherwise be waited for
            ends = _Ends(consumer, grouped=True)
            consumer.subscribe(topics, on_assign=ends.assigned, on_revoke=ends.revoked)
            _run(consumer, _Output(sys.stdout.buffer, render, stop), count, timeout, None if follow else ends)
        return
    with terminable() as stop, connect(bootstrap) as connected, Consumer(connected, client_rack=rack) as consumer:
        chosen = [p for topic in topics for p in _partitions(consumer, topic, partitions)]
        consumer.assign(_start(consumer, chosen, start))
        ends = _Ends(consumer)
        if not follow:
            ends.assigned(chosen)
        _run(consumer, _Output(sys.stdout.buffer, render, stop), count, timeout, None if follow else ends)


def _check_for_group(partitions: Sequence[int], start: str) -> None:
    if partitions:
        raise click.UsageError("--partition can't be used with --group: the group assigns the partitions")
    if start not in ("beginning", "end"):
        raise click.UsageError(
            "a group starts at its committed offsets; --from can be beginning or end, for a group without any. "
            "To move a group, use pylogd groups reset-offsets"
        )


class _Ends:
    """The end offsets of the partitions that are read, at the time of their assignment."""

    def __init__(self, consumer: Consumer, *, grouped: bool = False) -> None:
        self._consumer = consumer
        self._grouped = grouped
        # In the newer protocol the first partitions may come later, when other members have given them up.
        self._may_be_none = consumer.options.group_protocol == "classic"
        self._ends: dict[TopicPartition, int] = {}
        self._begun = False

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """Look up the end offsets of partitions that are read from now on."""
        self._begun |= bool(partitions) or self._may_be_none
        self._ends.update(self._consumer.end_offsets(partitions))

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Forget partitions that are no longer read."""
        for partition in partitions:
            self._ends.pop(partition, None)

    def reached(self) -> bool:
        """Return whether every partition was read up to its end offset."""
        return self._begun and all(self._consumer.position(p) >= end for p, end in self._ends.items())

    def within(self, records: list[Record]) -> list[Record]:
        """Return the records before the end offsets. In a group all of them, since the group has read them."""
        if self._grouped:
            return records
        return [r for r in records if r.offset < self._ends.get(TopicPartition(r.topic, r.partition), 0)]


class _Output:
    """Write records to a stream and flush it after each poll. `stop` says whether the command was asked to end."""

    def __init__(self, stream: BinaryIO, render: Render, stop: Stop) -> None:
        self._stream = stream
        self._render = render
        self.stop = stop

    def write(self, records: list[Record]) -> None:
        with self.stop.while_writing():
            left = memoryview(b"".join(map(self._render, records)))
            while left:  # unbuffered (PYTHONUNBUFFERED), a write that a signal interrupts takes a part only
                left = left[self._stream.write(left) :]
            self._stream.flush()


def _run(consumer: Consumer, output: _Output, count: int | None, timeout: float | None, ends: _Ends | None) -> None:
    left = count
    last = time.monotonic()
    while not output.stop.asked and (ends is None or not ends.reached()):
        wait = _POLL_SECONDS if timeout is None else max(0.0, min(_POLL_SECONDS, last + timeout - time.monotonic()))
        records = consumer.poll(wait, left)
        now = time.monotonic()
        if not records:
            if timeout is not None and now - last >= timeout:
                return
            continue
        last = now
        if ends is not None:
            records = ends.within(records)
        output.write(records)
        if left is not None:
            left -= len(records)
            if not left:
                return


def _partitions(consumer: Consumer, topic: str, wanted: Sequence[int]) -> list[TopicPartition]:
    there = consumer.partitions(topic)
    if missing := set(wanted) - {p.partition for p in there}:
        raise click.ClickException(f"topic {topic} has no partition {min(missing)}: it has {len(there)}")
    return [p for p in there if not wanted or p.partition in wanted]


def _start(consumer: Consumer, partitions: list[TopicPartition], start: str) -> dict[TopicPartition, int]:
    """Return the offset in each partition that `--from` stands for."""
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
                note(f"{partition}: offset {offset} is after the end; reading from the end, {ends[partition]}")
        return {p: max(begins[p], min(offset, ends[p])) for p, offset in wanted.items()}
    timestamp = parse_time(start)
    if timestamp is None:
        raise click.BadParameter(
            f"{start!r}: use beginning, end, an offset, -N, or a time such as 15m", param_hint="--from"
        )
    found = consumer.offsets_for_times(dict.fromkeys(partitions, timestamp))
    return {p: ends[p] if answer is None else answer.offset for p, answer in found.items()}


def _renderer(form: str, separator: bytes, *, escaped: bool) -> Render:
    if form == "json":
        return _as_json
    shown = _escaped if escaped else _raw
    if form == "key-value":
        return lambda record: b"%b%b%b\n" % (shown(record.key), separator, shown(record.value))
    return lambda record: b"%b\n" % shown(record.value)


def _raw(data: bytes | None) -> bytes:
    return data or b""


def _escaped(data: bytes | None) -> bytes:
    """Return what a terminal can show safely: UTF-8 whose line ends and tabs are kept, all else escaped."""
    return printable((data or b"").decode("utf-8", "backslashreplace"), keep="\n\t").encode()


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
    return printable_json(json.dumps(fields, ensure_ascii=False)).encode() + b"\n"
