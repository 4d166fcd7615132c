"""What is in the logs and in what order: shared by the checks of both topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pylogd.wire.records import decode_batch, iter_batches
from tests.chaos.workload import ConfluentWriter, PylogdWriter

Writer = ConfluentWriter | PylogdWriter
#: Offset and value.
Message = tuple[int, bytes]


def bytes_of(folders: Sequence[Path], topic: str, index: int) -> bytes:
    """Return the bytes of a replica, from the log directory that has it."""
    segments = [path for folder in folders for path in sorted((folder / f"{topic}-{index}").glob("*.log"))]
    return b"".join(path.read_bytes() for path in segments)


def messages_in(raw: bytes) -> list[Message]:
    """Return the messages in the bytes of a log."""
    return [
        (record.offset, bytes(record.value or b""))
        for header, view in iter_batches(raw)
        for record in decode_batch(view, header)
    ]


def lost(writer: Writer, log: Mapping[int, bytes]) -> list[str]:
    """Return acknowledged messages that are missing. If librdkafka loses the response to a message, a later one tells
    it that the message was stored, but not at which offset.
    """
    there = set(log.values())
    missing = []
    for sequence, offset in writer.acked.items():
        value = f"{writer.number}:{sequence}".encode()
        if (value not in there) if offset is None else (log.get(offset) != value):
            found = None if offset is None else log.get(offset)
            missing.append(f"{writer.name}: {sequence} was acknowledged at {offset}, which has {found!r}")
    return [f"{len(missing)} lost: {missing[0]}"] if missing else []


def out_of_order(index: int, messages: Iterable[Message]) -> list[str]:
    """Return the first message that comes after a later one of its producer."""
    last: dict[bytes, int] = {}
    for offset, value in messages:
        number, _, sequence = value.partition(b":")
        if int(sequence) <= last.get(number, -1):
            return [f"partition {index}, offset {offset}: {value!r} comes after {last[number]}"]
        last[number] = int(sequence)
    return []
