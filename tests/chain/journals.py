"""The truth about a run: the producers' own journals, what is in the log, and what members of groups were handed.

Must not know: processes, and what the audit says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pylogd.client.core.audit import Stamp
from tests.kills.comparing import LakeFault

#: A dead producer's last messages before this time may be unknown to the audit, milliseconds: they were in no journal
#: of its yet.
_TAIL_MS: Final = 500
#: A message that was sent so close to the border of two windows may have the stamp of the other one, milliseconds.
_NEAR_MS: Final = 100
_SHOWN: Final = 5


class Event(NamedTuple):
    """An event of a producer."""

    producer: str
    number: int


@dataclass(slots=True)
class Sent:
    """What a producer's own journal has. sent: by number, when it was sent. acked: its partition and offset."""

    sent: dict[int, int] = field(default_factory=dict)
    acked: dict[int, tuple[int, int]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Sent:
        """Read a journal; of a line that is not complete nothing is known."""
        found = cls()
        for line in path.read_text().split("\n")[:-1] if path.exists() else []:
            kind, number, *more = line.split(" ", 3)
            if kind == "S":
                found.sent[int(number)] = int(more[0])
            elif kind == "A":
                found.acked[int(number)] = (int(more[0]), int(more[1]))
            else:
                found.failed[int(number)] = " ".join(more)
        return found


def events_of(table: pa.Table) -> list[Event]:
    """Return the events of a log's rows."""
    found = []
    for value in table.column("value").to_pylist():
        name, number, _ = value.split(b" ", 2)
        found.append(Event(name.decode(), int(number)))
    return found


def windows_of(table: pa.Table, width_ms: int) -> Counter[int]:
    """Return how many rows each window has, by the stamps of the audit."""
    values = pc.struct_field(pc.list_flatten(table.column("headers")), "value").to_pylist()
    if len(values) != table.num_rows:
        raise LakeFault(f"{table.num_rows} rows have {len(values)} headers; each has one, the audit's")
    times = (Stamp.decode(value).time_ms for value in values)
    return Counter(time - time % width_ms for time in times)


@dataclass(slots=True)
class Window:
    """The truth about a window. received: events that are there. lost: those that a dead producer had sent and that are
    not; unsure: how many of them the audit need not know, or may count in a window beside this one.
    """

    received: int = 0
    lost: int = 0
    unsure: int = 0

    def verdicts(self) -> set[str]:
        """Return the verdicts that are right."""
        if self.lost > self.unsure:
            return {"incomplete"}
        return {"complete", "incomplete"} if self.unsure else {"complete"}


def check_log(logs: Mapping[int, pa.Table], journals: Mapping[str, Sent]) -> set[Event]:
    """Compare the serving cluster's log with the journals. Return the events that are there.

    logs: the rows of each partition. Raises LakeFault if an acknowledged event is not where the producer was told, an
    event is there twice, or one that nobody sent.
    """
    places: dict[Event, tuple[int, int]] = {}
    for partition, table in logs.items():
        offsets = table.column("offset").to_pylist()
        for offset, event in zip(offsets, events_of(table), strict=True):
            if event in places:
                raise LakeFault(f"{event} is in the log twice: {places[event]} and {(partition, offset)}")
            places[event] = (partition, offset)
    for name, sent in journals.items():
        if sent.failed:
            raise LakeFault(f"{name} could not deliver {some(sent.failed.items())}")
        wrong = [number for number, place in sent.acked.items() if places.get(Event(name, number)) != place]
        if wrong:
            raise LakeFault(f"{len(wrong)} acknowledged events of {name} are not where they were: {some(wrong)}")
    strangers = [each for each in places if each.number not in journals[each.producer].sent]
    if strangers:
        raise LakeFault(f"nobody sent {some(strangers)}")
    return set(places)


def windows(
    logs: Iterable[pa.Table], journals: Mapping[str, Sent], killed: Mapping[str, Sequence[int]], width_ms: int
) -> dict[int, Window]:
    """Return the truth about each window with events. killed: the last number of each process of a producer that was
    killed.
    """
    found: defaultdict[int, Window] = defaultdict(Window)
    there: set[Event] = set()
    for table in logs:
        for start, count in windows_of(table, width_ms).items():
            found[start].received += count
        there.update(events_of(table))
    for name, sent in journals.items():
        ends = [sent.sent[number] for number in killed.get(name, ()) if number in sent.sent]
        for number, ms in sent.sent.items():
            if Event(name, number) in there:
                continue
            window = found[ms - ms % width_ms]
            window.lost += 1
            near = {(ms + by) // width_ms * width_ms for by in (-_NEAR_MS, _NEAR_MS)}
            if len(near) > 1 or any(0 <= end - ms <= _TAIL_MS for end in ends):
                for start in near:
                    found[start].unsure += 1
            if not any(ms <= end for end in ends):
                raise LakeFault(f"{name} was not killed after it sent {number}, and that is not there")
    return dict(found)


class Handed(NamedTuple):
    """A run of offsets that a member was handed, or an assignment (`last` is -1)."""

    at: float
    member: str
    partition: int
    first: int
    last: int


def handed(member: str, entries: Iterable[Mapping[str, Any]]) -> Iterator[Handed]:
    """Yield the entries of a member's log."""
    for entry in entries:
        for partition in entry.get("assigned", ()):
            yield Handed(entry["at"], member, partition, 0, -1)
        for partition, first, last in entry.get("got", ()):
            yield Handed(entry["at"], member, partition, first, last)


def check_group(name: str, log: Iterable[Handed], ends: Mapping[int, int]) -> int:
    """Check what the members of a group were handed: each offset below the ends at least once, and nothing by a member
    after another one, to which the partition was assigned later, was handed something. Return the number of records.
    """
    by_partition: defaultdict[int, list[Handed]] = defaultdict(list)
    for each in log:
        by_partition[each.partition].append(each)
    count = 0
    for partition, end in ends.items():
        entries = sorted(by_partition[partition], key=lambda each: (each.at, each.last))
        covered = bytearray(end)
        owner, assigned = "", {}
        for each in entries:
            if each.last < each.first:
                assigned[each.member] = each.at
                continue
            if owner and each.member != owner and assigned.get(each.member, 0.0) < assigned.get(owner, 0.0):
                raise LakeFault(
                    f"{name}: {each.member} was handed {each} after {owner}, which has partition {partition} since "
                    f"{assigned[owner]}, was handed records"
                )
            owner = each.member
            size = each.last + 1 - each.first
            count += size
            covered[each.first : each.last + 1] = b"\1" * size
        missing = [offset for offset in range(end) if not covered[offset]]
        if missing:
            raise LakeFault(
                f"{name}: nobody was handed {len(missing)} offsets of partition {partition}: {some(missing)}"
            )
    return count


def some(found: Iterable[Any]) -> str:
    """Return the first few, for people."""
    return ", ".join(str(each) for each, _ in zip(found, range(_SHOWN), strict=False)) or "none"
