"""A reader that polls a table as a query would: which rows can be read now, and since when.

Strategy: each poll lists the files of complete commits, as the format's own readers do, and reads the time stamps of
the rows of new files with pyarrow. A row counts as seen when that read has returned. The clock is the one that the time
stamps come from, that of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pylogd.base.clock import wall_ms
from pylogd.services.audit.opening import open_table


class Listing(Protocol):
    """What is in a table now."""

    def files(self) -> set[str]:
        """Return the paths of the files that a query reads."""


class LakeListing:
    """The lake of `pylogd load`: the files of its complete commits."""

    def __init__(self, directory: Path) -> None:
        self._table = open_table(str(directory))

    def files(self) -> set[str]:
        """Return the files of the lake's commits."""
        self._table.refresh()
        return {file.path for file in self._table.files()}


class StreamListing:
    """The output of Spark's streaming file sink: the files that its log of batches names."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "_spark_metadata"
        self._found: set[str] = set()
        self._read: set[str] = set()

    def files(self) -> set[str]:
        """Return the files of finished batches."""
        names = {path.name for path in self._log.glob("[0-9]*")} if self._log.exists() else set()
        for name in names - self._read:
            lines = (self._log / name).read_text().splitlines()[1:]  # the first one is the log's version
            self._found.update(json.loads(line)["path"].removeprefix("file://") for line in lines)
        self._read |= names
        return self._found


class PollingReader:
    """Reads what is new. `rows`: how many were seen. `seen`: pairs of an array of time stamps, and when they were."""

    def __init__(self, listing: Listing, now_ms: Callable[[], int] = wall_ms) -> None:
        self._listing = listing
        self._now_ms = now_ms
        self._files: set[str] = set()
        self.rows = 0
        self.polls = 0
        self.seen: list[tuple[np.ndarray[Any, Any], int]] = []

    def poll(self) -> None:
        """Read the rows of files that are new."""
        self.polls += 1
        for path in sorted(self._listing.files() - self._files):
            try:
                sent = sent_ms(path)
            except FileNotFoundError:
                continue  # committed, but not moved to its path yet: a query would not see it either
            self._files.add(path)
            self.rows += len(sent)
            self.seen.append((sent, self._now_ms()))

    @property
    def commits(self) -> int:
        """The number of files that were read."""
        return len(self._files)

    def latencies(self, begin_ms: int, end_ms: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the time stamps of rows sent from `begin_ms` to `end_ms`, and how long each was invisible."""
        times, latencies = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for sent, at_ms in self.seen:
            mine = sent[(sent >= begin_ms) & (sent < end_ms)]
            times.append(mine)
            latencies.append(at_ms - mine)
        return np.concatenate(times), np.concatenate(latencies)


def sent_ms(path: str) -> np.ndarray[Any, Any]:
    """Return the time stamps of a file's rows, in milliseconds since 1970."""
    with pq.ParquetFile(path) as file:
        column = file.read(columns=["timestamp"]).column(0).cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    return np.asarray(column.to_numpy(), np.int64)
