"""`pylogd consume`: print records on standard output."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Literal

import click

from pylogd.cli.common import bootstrap_option, connect, member_settings, parse_time
from pylogd.cli.names import check_partitions, group_names, matching, regex_option, topic_names
from pylogd.cli.output import note
from pylogd.cli.schema_options import open_codec, read_schemas
from pylogd.cli.stopping import Stop, terminable
from pylogd.cli.templates import Decoding, Render, renderer
from pylogd.client import Admin, Cluster, Consumer, Record, TopicPartition
from pylogd.client.core.consumer.options import ConsumerOptions

_NUMBER = re.compile(r"-?\d+")
_POLL_SECONDS = 1.0


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=topic_names)
@regex_option
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Read only this partition. Repeatable.",
)
@click.option("-g", "--group", metavar="GROUP", shell_complete=group_names,
              help="Join this consumer group: share its partitions, start at its committed offsets, and commit "
              "what is printed.")  # fmt: skip
@click.option("--group-protocol", "protocol", type=click.Choice(["classic", "consumer"]),
              help="With --group: classic, in which members assign the partitions, or consumer (KIP-848), in which the "
              "broker does  [default: group.protocol of --command-config, else classic]")  # fmt: skip
@click.option("--from", "start", default="beginning", show_default=True, metavar="WHERE",
              help="Where to start: beginning, end, an offset, -N for the last N of each partition, or a time: "
              "2026-11-21T08:00, @1795219200 (seconds since 1970), or 15m, 2h, 3d ago.")  # fmt: skip
@click.option("--to", "bound", metavar="WHERE",
              help="Where to stop: end, an offset of each partition, or a time, but not after the present end. The "
              "record there is not printed.")  # fmt: skip
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many records.")
@click.option("--follow/--until-end", default=True, show_default="follow",
              help="Wait for new records, or stop at the current end, as with --to end.")  # fmt: skip
@click.option("-t", "--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="Stop when no record arrives for this long.")  # fmt: skip
@click.option("-f", "-o", "--format", "form", default="plain", show_default=True, metavar="FORMAT",
              help="plain (values), key-value, json (a line with offset, time and headers too), or a template such as "
              "'%k %v\\n'.")  # fmt: skip
@click.option("--raw", is_flag=True,
              help="On a terminal, print keys and values as they are. By default control characters are escaped "
              "there.")  # fmt: skip
@click.option(
    "-K", "--key-separator", default="\t", metavar="TEXT", help="Text between key and value  [default: a tab]"
)
@click.option("--rack", metavar="RACK", help="Prefer replicas in this rack (the brokers' broker.rack, "
              "KIP-392).")  # fmt: skip
@read_schemas
@partial(bootstrap_option, timeout="--broker-timeout")
def consume(
    topics: Sequence[str], regex: bool, partitions: Sequence[int], group: str | None, protocol: str | None, start: str,
    bound: str | None, count: int | None, follow: bool, timeout: float | None, form: str, raw: bool,
    key_separator: str, rack: str | None, bootstrap: str, decode: str | None, registry: str | None,
) -> None:  # fmt: skip
    """Print the records of TOPICS as they arrive, one per line. SIGTERM and Ctrl-C end it, after what was read.

    \b
    pylogd consume events                                from the beginning on
    pylogd consume events --from end                     only new records
    pylogd consume events --until-end -f json | jq .value
    pylogd consume events --from 2h --to 1h              an hour
    pylogd consume --regex 'orders-.*' -f '%t/%p/%o %k=%v\\n'
    pylogd consume events --from -10 --until-end         the last ten
    pylogd consume events --group billing                as a member of a group

    Fields of templates: %t topic, %p partition, %o offset, %k key, %v value, %K and %V their lengths in bytes (-1 for
    null), %d time in milliseconds, %D in ISO 8601, %h headers, %H their number, %% a percent sign; escapes are \\n,
    \\t, \\r, \\\\ and \\xHH.

    In a pipe or a file, keys and values are written as they are. On a terminal, control characters in them are shown
    as escapes such as \\x1b, unless --raw is given.
    """
    render = _render(form, key_separator, raw, (decode, registry))
    bound = bound or (None if follow else "end")
    with terminable() as stop, connect(bootstrap) as connected:
        topics = _topics(connected, topics, regex)
        output = _Output(sys.stdout.buffer, render, stop)
        if group is not None:
            _check_for_group(partitions, start, bound)
            reset: Literal["earliest", "latest"] = "earliest" if start == "beginning" else "latest"
            options = ConsumerOptions(
                group_id=group, auto_offset_reset=reset, client_rack=rack, **member_settings(protocol)
            )  # fmt: skip
            _as_member(connected, options, topics, output, (count, timeout, bound))
            return
        with Consumer(connected, client_rack=rack) as consumer:
            chosen = [p for topic in topics for p in _partitions(consumer, topic, partitions)]
            consumer.assign(_start(consumer, chosen, start))
            ends = _Ends(consumer, lambda new: _bounds(consumer, new, bound or ""))
            if bound:
                ends.assigned(chosen)
            _run(consumer, output, count, timeout, ends if bound else None)


def _topics(connected: Cluster, names: Sequence[str], regex: bool) -> Sequence[str]:
    """Return the topics to read. Raises KafkaError for an unknown topic, since a group would wait for it."""
    if regex:
        with Admin(connected) as admin:
            names = matching(names, (topic.name for topic in admin.list_topics()))
    for name in names:
        connected.topic(name)
    return names


def _as_member(
    connected: Cluster, options: ConsumerOptions, topics: Sequence[str], output: _Output,
    limits: tuple[int | None, float | None, str | None],
) -> None:  # fmt: skip
    """Print records as a member of a group.

    limits: the values of --count, --timeout and --to.
    """
    count, timeout, bound = limits
    with Consumer(connected, options) as consumer:
        ends = _Ends(consumer, lambda new: consumer.end_offsets(list(new)), grouped=True)
        consumer.subscribe(topics, on_assign=ends.assigned, on_revoke=ends.revoked)
        _run(consumer, output, count, timeout, ends if bound else None)


def _render(form: str, separator: str, raw: bool, decoding: tuple[str | None, str | None]) -> Render:
    """Return the function that formats records, according to the options.

    decoding: the values of --decode and --schema-registry.

    Raises BadParameter.
    """
    parts, registry = decoding
    try:
        render = renderer(form, separator.encode(), escaped=sys.stdout.isatty() and not raw)
        return render if parts is None else Decoding(render, open_codec(registry).decode, parts)
    except ValueError as error:
        was_from = form in ("beginning", "end") or _NUMBER.fullmatch(form) or parse_time(form) is not None
        hint = f". To start there, use --from {form}" if was_from else ""
        raise click.BadParameter(f"{error}{hint}", param_hint="--format") from None


def _check_for_group(partitions: Sequence[int], start: str, bound: str | None) -> None:
    if bound not in (None, "end"):
        raise click.UsageError("a group can stop at the end only: --to end")
    if partitions:
        raise click.UsageError("--partition can't be used with --group: the group assigns the partitions")
    if start not in ("beginning", "end"):
        raise click.UsageError(
            "a group starts at its committed offsets; --from can be beginning or end, for a group without any. "
            "To move a group, use pylogd groups seek"
        )


class _Ends:
    """The offsets at which to stop. They are looked up when partitions are assigned.

    look_up: returns the offsets of the given partitions.
    """

    def __init__(
        self,
        consumer: Consumer,
        look_up: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]],
        *,
        grouped: bool = False,
    ) -> None:
        self._consumer = consumer
        self._look_up = look_up
        self._grouped = grouped
        # In the newer protocol the first partitions may come later, when other members have given them up.
        self._may_be_none = consumer.options.group_protocol == "classic"
        self._ends: dict[TopicPartition, int] = {}
        self._begun = False

    def assigned(self, partitions: list[TopicPartition]) -> None:
        """Look up the end offsets of partitions that are read from now on."""
        self._begun |= bool(partitions) or self._may_be_none
        self._ends.update(self._look_up(partitions))

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Forget partitions that are no longer read."""
        for partition in partitions:
            self._ends.pop(partition, None)

    def reached(self) -> bool:
        """Return whether every partition was read up to its end offset."""
        return self._begun and all(self._consumer.position(p) >= end for p, end in self._ends.items())

    def within(self, records: list[Record]) -> list[Record]:
        """Return the records before the end offsets. In a group, return all records, since the group has read them."""
        if self._grouped:
            return records
        return [r for r in records if r.offset < self._ends.get(TopicPartition(r.topic, r.partition), 0)]


@dataclass(slots=True)
class _Output:
    """Write records to a stream and flush it after each poll. `stop` tells whether the command was asked to end."""

    stream: BinaryIO
    render: Render
    stop: Stop

    def write(self, records: list[Record]) -> None:
        with self.stop.while_writing():
            left = memoryview(b"".join(map(self.render, records)))
            while left:  # unbuffered (PYTHONUNBUFFERED), a write that a signal interrupts takes a part only
                left = left[self.stream.write(left) :]
            self.stream.flush()


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
    check_partitions(topic, wanted, [p.partition for p in there])
    return [p for p in there if not wanted or p.partition in wanted]


def _bounds(consumer: Consumer, partitions: Sequence[TopicPartition], bound: str) -> dict[TopicPartition, int]:
    """Return each partition's offset for `--to`, limited to the present end."""
    ends = consumer.end_offsets(list(partitions))
    if bound == "end":
        return ends
    if bound.isdecimal():
        return {p: min(end, int(bound)) for p, end in ends.items()}
    timestamp = parse_time(bound)
    if timestamp is None:
        raise click.BadParameter(f"{bound!r}: use end, an offset, or a time such as 15m", param_hint="--to")
    return _offsets_at(consumer, ends, timestamp)


def _start(consumer: Consumer, partitions: list[TopicPartition], start: str) -> dict[TopicPartition, int]:
    """Return each partition's offset for `--from`."""
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
    return _offsets_at(consumer, ends, timestamp)


def _offsets_at(consumer: Consumer, ends: Mapping[TopicPartition, int], timestamp: int) -> dict[TopicPartition, int]:
    """Return the first offset of each partition whose record is at or after a time; its end if there is none."""
    found = consumer.offsets_for_times(dict.fromkeys(ends, timestamp))
    return {p: ends[p] if answer is None else answer.offset for p, answer in found.items()}
