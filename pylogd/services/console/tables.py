"""Tables into which topics are loaded: their positions, and their last commits. Needs the tables' extras.

Strategy: a child process (`table_child`) opens all tables, reports their state, and ends, because the libraries of the
formats and the history of a table need more memory than the rest of the console, and because a process that hangs on a
store can be killed. The lag of a table is computed when a page is made, from the log ends of the last sample.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pylogd.services.console.sample import Sample
from pylogd.services.console.series import UNKNOWN

_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table.

    location: the table's name, such as `delta:/data/flights`.
    properties: the properties of the table's catalog or storage.
    """

    location: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)


class Snapshot(NamedTuple):
    """A commit of a table, without its ranges of offsets, which are large. The fields are those of `Committed`."""

    number: int
    kind: str
    at_ms: int
    rows: int
    quarantined: int
    files: int
    bytes: int
    replaced: int


class TableState(NamedTuple):
    """The state of a table at its last reading.

    problem: the reason why it could not be read, or "".
    offsets: the next offset of each partition, by topic.
    commits: the last commits, the newest first.
    commit_count: the number of commits that the table keeps.
    """

    name: str
    location: str
    problem: str = ""
    format: str = ""
    exists: bool = False
    offsets: Mapping[tuple[str, int], int] = {}
    commits: Sequence[Snapshot] = ()
    commit_count: int = 0


class PartitionBehind(NamedTuple):
    """A partition of a topic in a table.

    end, lag: the log's end, and the lag; None if the end is unknown.
    """

    topic: str
    partition: int
    offset: int
    end: int | None
    lag: int | None


class TableReader:
    """Reads tables. It blocks. Only one thread at a time may use it, but any thread may call `stop`."""

    def __init__(self, tables: Mapping[str, TableOptions]) -> None:
        self._options = {name: (one.location, dict(one.properties)) for name, one in tables.items()}
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def read(self) -> Mapping[str, TableState]:
        """Return the present state of all tables by name. Raises OSError if the child process fails."""
        command = [sys.executable, "-m", "pylogd.services.console.table_child"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as child:
            self._child = child
            try:
                if self._stopped:
                    raise OSError("the console stops")
                output, errors = child.communicate(json.dumps(self._options).encode(), _SECONDS)
            except subprocess.TimeoutExpired:
                raise OSError(f"the tables were not read in {_SECONDS:.0f} s") from None
            finally:
                child.kill()
                self._child = None
        if child.returncode:
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(f"reading tables ended with exit code {child.returncode}: {last}")
        return {name: from_document(one) for name, one in json.loads(output).items()}

    def stop(self) -> None:
        """End a read in progress, and let no other begin."""
        self._stopped = True
        if (child := self._child) is not None:
            child.kill()


def as_document(state: TableState) -> dict[str, Any]:
    """Return a table's state for JSON."""
    return state._asdict() | {"offsets": [(*key, offset) for key, offset in state.offsets.items()]}


def from_document(document: Mapping[str, Any]) -> TableState:
    """Return the state from the result of `as_document`."""
    offsets = {(topic, index): offset for topic, index, offset in document["offsets"]}
    commits = tuple(Snapshot(*one) for one in document["commits"])
    return TableState(**{**document, "offsets": offsets, "commits": commits})


def behind(table: TableState, sample: Sample) -> list[PartitionBehind]:
    """Return a table's lag behind each partition of its topics, by the log ends of a sample.

    They include partitions without rows in the table, whose lag is their whole log.
    """
    found = []
    for topic in sorted({name for name, _ in table.offsets}):
        state = sample.topics.get(topic)
        ends = () if state is None else state.series.ends
        count = max(len(ends), *(index + 1 for name, index in table.offsets if name == topic))
        for index in range(count):
            end = ends[index] if index < len(ends) and ends[index] != UNKNOWN else None
            begin = _begin(sample, topic, index)
            offset = table.offsets.get((topic, index), begin)
            lag = None if end is None else max(end - max(offset, begin), 0)
            found.append(PartitionBehind(topic, index, offset, end, lag))
    return found


def _begin(sample: Sample, topic: str, index: int) -> int:
    """Return the first offset of a partition's log; 0 if it is unknown."""
    state = sample.topics.get(topic)
    known = state is not None and index < len(state.begins)
    return max(state.begins[index], 0) if state is not None and known else 0


def total(rows: Sequence[PartitionBehind]) -> int | None:
    """Return the lag of all partitions together; None if the lag of a partition is unknown."""
    lags = [row.lag for row in rows]
    return None if None in lags else sum(lag for lag in lags if lag is not None)
