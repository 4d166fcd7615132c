"""Read messages of a topic within limits of records, bytes and time, and filter them.

Strategy: a consumer without a group reads from the wanted offsets to the log ends at the beginning of the read.
Messages are decoded, masked, and then filtered, so filters can't reveal masked data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pylogd.base.threads import ThreadPool
from pylogd.client.core.model import TopicPartition
from pylogd.client.deferred import Cluster, Consumer
from pylogd.services.console.answers import Refused
from pylogd.services.console.decoding import Decoded, Decoder
from pylogd.services.console.masking import MASK, Masking
from pylogd.wire.records import Record

#: The limits of one read of messages, and of its time in seconds.
MOST_SCANNED: Final = 50_000
MOST_BYTES: Final = 32 << 20
MOST_SECONDS: Final = 10.0
MOST_SHOWN: Final = 500
MOST_EXPORTED: Final = 10_000
_POLL_SECONDS: Final = 1.0
_AGO: Final = re.compile(r"(\d{1,9})(s|m|h|d)")
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Message(NamedTuple):
    """A message to show: decoded, and masked."""

    partition: int
    offset: int
    timestamp: int
    key: Decoded
    value: Decoded
    headers: tuple[tuple[str, str], ...]

    def document(self) -> dict[str, Any]:
        """Return the message as a JSON object for the export."""
        return {
            "partition": self.partition, "offset": self.offset, "timestamp": self.timestamp, "key": self.key.value,
            "value": self.value.value, "headers": [list(one) for one in self.headers],
        }  # fmt: skip


class Wanted(NamedTuple):
    """A selection of messages.

    partition: the partition; None for all.
    start: `newest`, `oldest`, an offset, or a time or age as in `pylogd consume`.
    text: a text in key, value or headers.
    field: `path=value` in decoded values.
    header: `name=value`.
    """

    topic: str
    partition: int | None = None
    start: str = "newest"
    most: int = 50
    text: str = ""
    field: str = ""
    header: str = ""

    @classmethod
    def of(cls, topic: str, options: Mapping[str, str], most: int = MOST_SHOWN) -> Wanted:
        """Return the parameters of a request. Raises Refused for invalid ones."""
        partition = options.get("partition", "").strip()
        if partition and not (partition.isdecimal() and len(partition) < 10):
            raise Refused(400, "A partition is a number.")
        count = options.get("count", "") or "50"
        if not count.isdecimal() or len(count) > 6 or not 1 <= int(count) <= most:
            raise Refused(400, f"The count is a number from 1 to {most}.")
        fields = {name: options.get(name, "")[:500] for name in ("text", "field", "header")}
        for name in ("field", "header"):
            if fields[name] and "=" not in fields[name]:
                raise Refused(400, f"Write the {name} as name=value.")
        start = options.get("from", "").strip() or "newest"
        return cls(topic, int(partition) if partition else None, start, int(count), **fields)

    def matches(self, message: Message) -> bool:
        """Return whether a message passes the filters."""
        if self.header:
            name, _, value = self.header.partition("=")
            if (name, value) not in message.headers:
                return False
        if self.field:
            path, _, value = self.field.partition("=")
            if not _has_field(message.value.value, path.split("."), value):
                return False
        if not self.text:
            return True
        wanted = self.text.casefold()
        texts = (message.key.text(), message.value.text(), *(f"{name}={value}" for name, value in message.headers))
        return any(wanted in text.casefold() for text in texts)


def _has_field(value: Any, path: Sequence[str], wanted: str) -> bool:
    if isinstance(value, list):
        return any(_has_field(one, path, wanted) for one in value)
    if not path:
        return wanted == (value if isinstance(value, str) else json.dumps(value, default=str))
    return isinstance(value, dict) and path[0] in value and _has_field(value[path[0]], path[1:], wanted)


class FoundMessages(NamedTuple):
    """The messages that were found, the number of messages that were read, and why not all were read, or ""."""

    messages: list[Message]
    scanned: int
    stopped: str


class Messages:
    """Reads messages of clusters."""

    def __init__(self, reactor: Any, masking: Masking, now_ms: Any) -> None:
        self._reactor = reactor
        self._masking = masking
        self._now_ms = now_ms
        self._pool = ThreadPool(reactor, 2, "console-decoding")

    def stop(self) -> None:
        """End the threads that decode messages."""
        self._pool.stop()

    async def read(self, cluster: Cluster, decoder: Decoder, wanted: Wanted, partitions: int) -> FoundMessages:
        """Return messages; for `newest` the newest first, else by time. Raises PylogdError, Refused.

        partitions: the number of the topic's partitions.
        """
        places = self.places(wanted, partitions)
        consumer = self.consumer(cluster)
        try:
            starts, ends = await self._bounds(consumer, wanted, places)
            reading = {place: starts[place] for place in places if starts[place] < ends[place]}
            return await self._scan(consumer, decoder, wanted, reading, ends)
        finally:
            await consumer.close()

    def places(self, wanted: Wanted, partitions: int) -> list[TopicPartition]:
        """Return the partitions to read. Raises Refused."""
        if wanted.partition is None:
            return [TopicPartition(wanted.topic, index) for index in range(partitions)]
        if wanted.partition >= partitions:
            raise Refused(404, f"The topic has no partition {wanted.partition}.")
        return [TopicPartition(wanted.topic, wanted.partition)]

    def consumer(self, cluster: Cluster) -> Consumer:
        """Return a consumer without a group."""
        return Consumer(cluster, auto_commit="off", retry_timeout=_POLL_SECONDS * 5, buffer_bytes=8 << 20,
                        partition_max_bytes=1 << 20, fetch_max_bytes=8 << 20)  # fmt: skip

    async def _bounds(
        self, consumer: Consumer, wanted: Wanted, places: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        begins = await consumer.beginning_offsets(places)
        ends = await consumer.end_offsets(places)
        start = wanted.start
        if start == "newest":
            # With a filter, more messages must be read than are returned.
            depth = wanted.most if not (wanted.text or wanted.field or wanted.header) else MOST_SCANNED // len(places)
            return {place: max(begins[place], ends[place] - depth) for place in places}, ends
        if start == "oldest":
            return begins, ends
        if start.isdecimal() and len(start) < 19:
            return {place: min(max(begins[place], int(start)), ends[place]) for place in places}, ends
        times = await consumer.offsets_for_times(dict.fromkeys(places, parse_time(start, self._now_ms())))
        return {place: ends[place] if at is None else at.offset for place, at in times.items()}, ends

    async def _scan(
        self, consumer: Consumer, decoder: Decoder, wanted: Wanted, reading: dict[TopicPartition, int],
        ends: dict[TopicPartition, int],
    ) -> FoundMessages:  # fmt: skip
        found: list[Message] = []
        scanned = size = 0
        until = self._reactor.seconds() + MOST_SECONDS
        newest = wanted.start == "newest"
        if reading:
            await consumer.assign(reading, until={place: ends[place] for place in reading})
        while reading:
            records = [one for one in await consumer.poll(_POLL_SECONDS) if one.offset < ends[_place(one)]]
            found += await self._pool.defer(self._shown, decoder, wanted, records)
            scanned += len(records)
            size += sum(len(one.key or b"") + len(one.value or b"") for one in records)
            for place in list(reading):
                if await consumer.position(place) >= ends[place]:
                    del reading[place]
            if not newest and len(found) >= wanted.most:
                return FoundMessages(_sorted(found, newest=False)[: wanted.most], scanned, "")
            for passed, reason in (
                (scanned >= MOST_SCANNED, f"after {scanned:,} messages"),
                (size >= MOST_BYTES, f"after {size >> 20} MiB"),
                (self._reactor.seconds() >= until, f"after {MOST_SECONDS:.0f} s"),
            ):
                if passed and reading:
                    return FoundMessages(_sorted(found, newest)[: wanted.most], scanned, reason)
        return FoundMessages(_sorted(found, newest)[: wanted.most], scanned, "")

    async def shown(self, decoder: Decoder, wanted: Wanted, records: Sequence[Record]) -> list[Message]:
        """Return the records to show, decoded and masked."""
        shown: list[Message] = await self._pool.defer(self._shown, decoder, wanted, records)
        return shown

    def _shown(self, decoder: Decoder, wanted: Wanted, records: Sequence[Record]) -> list[Message]:
        decoded = (self.message(decoder, record) for record in records)
        return [one for one in decoded if wanted.matches(one)]

    def message(self, decoder: Decoder, record: Record) -> Message:
        """Decode a record, and mask it."""
        value = decoder.decode(record.value)
        headers = tuple((header[0], _text(header[1])) for header in record.headers)
        key = decoder.decode(record.key)
        if self._masking.concerns(record.topic):
            masked = self._masking.apply(record.topic, value.value)
            value = Decoded("text", MASK) if masked == MASK else value._replace(value=masked)
            if isinstance(key.value, dict | list):
                key = key._replace(value=self._masking.apply(record.topic, key.value))
        return Message(record.partition, record.offset, record.timestamp, key, value, headers)


def parse_time(text: str, now_ms: int) -> int:
    """Parse a time: ISO 8601 (UTC without a zone), `@SECONDS`, or an age such as 15m. Return milliseconds since 1970.

    Raises Refused.
    """
    if found := _AGO.fullmatch(text):
        return now_ms - int(found[1]) * _UNITS[found[2]]
    try:
        if text.startswith("@"):
            return round(float(text[1:]) * 1000)
        moment = datetime.fromisoformat(text)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Refused(
            400,
            f"{text[:40]!r} is not a place to begin: write newest, oldest, an offset, a time or an age such as 15m.",
        ) from None


def _place(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _sorted(found: list[Message], newest: bool) -> list[Message]:
    return sorted(found, key=lambda one: (one.timestamp, one.offset, one.partition), reverse=newest)


def _text(value: bytes | None) -> str:
    return "null" if value is None else value.decode("utf-8", "backslashreplace")
