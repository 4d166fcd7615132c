"""Tell jobs that a period, such as an hour, is complete at a stage.

Strategy: once a period is over and all of its windows have their verdict at a stage, a marker has the period's verdict:
a record in a compacted topic, with the key STAGE/TOPIC/START, and a file if the period is complete. A period without
messages has a marker too: its last window is judged even if it is empty. If late data change a verdict, the marker is
published again with the next revision, and the file is replaced, or removed if the period is no longer complete.

Must not know: how markers are written (`state`).

Write the markers of complete periods as files, which jobs can wait for without a client.

    DIRECTORY/STAGE/TOPIC/2026-11-23T07.json        for all stages, in a separate directory
    TABLE/_complete/TOPIC/2026-11-23T07.json        for a table, in the table's directory

Strategy: a file is written under another name and renamed, so that it is whole once it exists. The directory may be on
any file system that pyarrow knows (`hdfs://`, `s3://`, a local path); an object store writes an object as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pylogd.base.errors import PylogdError
from pylogd.services.audit.judging import Judgement, Verdict
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.windows import Change

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


#: The most empty periods that are decided at once, and the most periods before now at the first start, because each has
#: windows in memory.
_MOST_PERIODS: Final = 1000
_COUNTS: Final = (
    "reported", "received", "missing", "lost", "duplicates", "unreported", "recovered", "unstamped",
)  # fmt: skip
#: Fields that markers of earlier releases do not have.
_ADDED: Final = {"recovered": 0, "unstamped": 0}


class InvalidMarker(PylogdError):
    """A record of the topic of markers is not a marker."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The verdict on a period of a topic at a stage, with the sums of its windows' counts.

    offsets: the stage has all messages below these offsets of its source's topic.
    revision: 1, and one more for each change of the marker by late data.
    """

    stage: str
    topic: str
    start_ms: int
    end_ms: int
    verdict: Verdict
    reported: int
    received: int
    missing: int
    lost: int
    duplicates: int
    unreported: int
    recovered: int = 0
    unstamped: int = 0
    offsets: Mapping[str, int] = field(default_factory=dict)
    revision: int = 1
    decided_at_ms: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every message of the period is at the stage exactly once."""
        return self.verdict is Verdict.COMPLETE

    @property
    def counts(self) -> tuple[Verdict, tuple[int, ...]]:
        """The verdict and the counts, a change of which makes a later revision."""
        return self.verdict, tuple(getattr(self, name) for name in _COUNTS)

    @property
    def key(self) -> bytes:
        """The key of the marker's record."""
        return f"{self.stage}/{self.topic}/{self.start_ms}".encode()

    @property
    def period(self) -> str:
        """The period's start in UTC, such as `2026-11-23T07`, with minutes and seconds if they are not 0."""
        return period_name(self.start_ms)

    def encode(self) -> bytes:
        """Return the marker as JSON. It has `complete` for readers that need no other verdict."""
        return json.dumps({**asdict(self), "complete": self.is_complete, "period": self.period}).encode()

    @classmethod
    def decode(cls, value: bytes) -> Marker:
        """Return the marker in JSON. Raises InvalidMarker."""
        try:
            document: dict[str, Any] = {**_ADDED, **json.loads(value)}
            document["verdict"] = Verdict(document["verdict"])
            return cls(**{name: document[name] for name in cls.__dataclass_fields__})
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidMarker(f"not a marker of pylogd's audit: {error!r}") from error


def window_name(start_ms: int) -> str:
    """Return the start of a window in UTC, to the second."""
    return datetime.fromtimestamp(start_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def period_name(start_ms: int) -> str:
    """Return the start of a period in UTC, in the form of file names and of `pylogd audit wait`."""
    moment = datetime.fromtimestamp(start_ms / 1000, UTC)
    text = moment.strftime("%Y-%m-%dT%H-%M-%S")
    return text if start_ms % 60_000 else text[:-3] if start_ms % 3_600_000 else text[:-6]


class Periods:
    """The periods that have markers. `published` has the last marker of each period that the ledger still keeps."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._period_ms = ledger.options.period_ms
        first = -(-ledger.options.from_ms // self._period_ms) * self._period_ms
        # 0 means from the first window on, which is known once a row was read
        self._next = {(stage, topic): first for stage in ledger.stages for topic in ledger.topics}
        self.published: dict[tuple[str, str, int], Marker] = {}
        self._changed: set[tuple[str, str, int]] = set()

    def restore(self, markers: Iterable[Marker]) -> None:
        """Continue after markers that were published before."""
        for marker in markers:
            which = marker.stage, marker.topic
            if which in self._next and marker.end_ms - marker.start_ms == self._period_ms:
                self._next[which] = max(self._next[which], marker.end_ms)
                self.published[*which, marker.start_ms] = marker

    def begin(self, now_ms: int) -> None:
        """Have the ledger judge the last window of each period that is over, although it may be empty."""
        options = self._ledger.options
        latest = (now_ms - options.grace_ms) // self._period_ms * self._period_ms
        for topic in self._ledger.topics:
            if not self._first_of(topic) and not self._find_first(topic, now_ms):
                continue
            for first in {start for (_, each), start in self._next.items() if each == topic}:
                ends = range(first + self._period_ms, latest + 1, self._period_ms)
                for end in ends[:_MOST_PERIODS]:  # later periods follow once these are published
                    self._ledger.ensure(topic, end - options.width_ms)

    def due(self, changes: Iterable[Change], now_ms: int) -> Iterator[Marker]:
        """Yield the markers to publish: those of newly decided periods, and those changed by `changes`.

        Call `note` once the markers are published; until then they are yielded again.
        """
        self._changed |= {
            (change.stage, change.topic, change.start_ms - change.start_ms % self._period_ms) for change in changes
        }
        for key in sorted(self._changed & self.published.keys()):
            marker, before = self._marker(*key, now_ms), self.published[key]
            if marker is None:
                continue  # one of its windows has no verdict at the moment
            if marker.counts == before.counts:
                self._changed.discard(key)
            else:
                yield replace(marker, revision=before.revision + 1)
        for which, first in self._next.items():
            start = first
            while (marker := self._marker(*which, start, now_ms)) is not None:
                yield marker
                start = marker.end_ms

    def note(self, markers: Iterable[Marker]) -> None:
        """Record that markers were published."""
        for marker in markers:
            which = marker.stage, marker.topic
            self.published[*which, marker.start_ms] = marker
            self._changed.discard((*which, marker.start_ms))
            self._next[which] = max(self._next[which], marker.end_ms)

    def done(self) -> dict[str, int]:
        """Return, for each topic, the end of the last period that has markers of all stages."""
        return {topic: self._first_of(topic) for topic in self._ledger.topics}

    def forget(self) -> None:
        """Forget the markers of periods that the ledger has closed."""
        kept = {(topic, start - start % self._period_ms) for topic, start in self._ledger.windows}
        self.published = {each: marker for each, marker in self.published.items() if each[1:] in kept}

    def _find_first(self, topic: str, now_ms: int) -> bool:
        """Begin with the period of the first window, at most `_MOST_PERIODS` ago. Return whether there is a window."""
        starts = [start for each, start in self._ledger.windows if each == topic]
        if not starts:
            return False
        first = max(min(starts), now_ms - _MOST_PERIODS * self._period_ms) // self._period_ms * self._period_ms
        for which, start in self._next.items():
            if which[1] == topic:
                self._next[which] = start or first
        return True

    def _first_of(self, topic: str) -> int:
        return min(start for (_, each), start in self._next.items() if each == topic)

    def _marker(self, stage: str, topic: str, start: int, now_ms: int) -> Marker | None:
        """Return the marker of a period; None if it is not over, or a window has no verdict yet."""
        ledger = self._ledger
        end = start + self._period_ms
        last = ledger.windows.get((topic, end - ledger.options.width_ms))
        if last is None or now_ms < end + ledger.options.grace_ms:
            return None
        windows = [
            ledger.windows[topic, at].stages[stage]
            for at in range(start, end, ledger.options.width_ms)
            if (topic, at) in ledger.windows
        ]
        if not all(window.verdict.is_final and window.passed_at_ms is not None for window in windows):
            return None
        found = [window.judgement for window in windows if window.judgement is not None]
        spec = ledger.stages[stage]
        bound = last.stages[stage if spec.has_offsets else spec.source].bound or {}
        offsets = {str(partition): offset for partition, offset in sorted(bound.items())}
        return Marker(stage, topic, start, end, _worst(found), **_sums(found), offsets=offsets, decided_at_ms=now_ms)


def _worst(found: Iterable[Judgement]) -> Verdict:
    verdicts = {each.verdict for each in found}
    order = (Verdict.INCOMPLETE, Verdict.UNKNOWN)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.COMPLETE)


def _sums(found: Iterable[Judgement]) -> dict[str, int]:
    each = list(found)
    return {name: sum(getattr(one, name) for one in each) for name in _COUNTS}


#: The directory in a table. Readers of Parquet, Delta and Iceberg ignore names with an underscore in front, and so do
#: programs that delete files that no commit names.
_IN_TABLE: Final = "_complete"


class MarkerFiles:
    """The directory with the files. Methods block on the file system, and raise OSError."""

    def __init__(self, location: str, *, in_table: bool = False) -> None:
        """location: a path, or a URI that pyarrow knows.
        in_table: whether the location is that of a table.

        Raises PylogdError for a location that pyarrow does not know.
        """
        self._files, self._root = open_location(location)
        self._in_table = in_table

    def write(self, marker: Marker) -> None:
        """Write the file of a marker for a complete period; remove the file of any other marker."""
        directory = f"{self._root}/{_IN_TABLE if self._in_table else marker.stage}/{marker.topic}"
        path = f"{directory}/{marker.period}.json"
        if not marker.is_complete:
            self._remove(path)
            return
        self._files.create_dir(directory, recursive=True)
        draft = f"{directory}/.{marker.period}.json.new"
        with self._files.open_output_stream(draft) as stream:
            stream.write(marker.encode() + b"\n")
        self._files.move(draft, path)

    def _remove(self, path: str) -> None:
        from pyarrow.fs import FileType  # noqa: PLC0415 - slow to load

        if self._files.get_file_info(path).type is not FileType.NotFound:
            self._files.delete_file(path)


def open_location(location: str) -> tuple[FileSystem, str]:
    """Return the file system of a path or URI, and the path in it. Raises PylogdError."""
    from pathlib import Path  # noqa: PLC0415

    from pyarrow import ArrowInvalid  # noqa: PLC0415 - slow to load
    from pyarrow.fs import FileSystem, LocalFileSystem  # noqa: PLC0415

    if "://" not in location and not location.startswith("file:"):
        return LocalFileSystem(), str(Path(location).absolute())
    try:
        files, path = FileSystem.from_uri(location.replace("s3a://", "s3://", 1))
    except (ArrowInvalid, OSError) as error:
        raise PylogdError(f"can't open {location}: {error}") from error
    return files, path.rstrip("/")
