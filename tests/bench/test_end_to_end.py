"""How `make bench-end-to-end` finds when a row can be seen, and what its page says of events that were not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.end_to_end.arms import ArmResult, _add_latencies
from bench.end_to_end.page import draw, lines
from bench.end_to_end.reading import PollingReader, StreamListing, sent_ms

BEGIN = 1_700_000_000_000


class Listed:
    """A listing that the test sets."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def files(self) -> set[str]:
        return self.paths


def written(path: Path, *times: int) -> str:
    pq.write_table(
        pa.table({"timestamp": pa.array([1000 * (BEGIN + at) for at in times], pa.timestamp("us", "UTC"))}), path
    )
    return str(path)


def test_a_row_is_seen_when_its_file_was_read(tmp_path: Path) -> None:
    listing, now = Listed(), [BEGIN + 100]
    reader = PollingReader(listing, lambda: now[0])
    listing.paths = {written(tmp_path / "a", 0, 50), str(tmp_path / "not moved yet")}
    reader.poll()
    now[0] = BEGIN + 300
    listing.paths.add(written(tmp_path / "b", 60))
    reader.poll()
    reader.poll()
    assert (reader.rows, reader.commits, reader.polls) == (3, 2, 3)
    times, latencies = reader.latencies(BEGIN + 50, BEGIN + 61)
    assert (times.tolist(), latencies.tolist()) == ([BEGIN + 50, BEGIN + 60], [50, 240])
    written(tmp_path / "not moved yet", 5)
    reader.poll()
    assert reader.rows == 4
    assert sent_ms(str(tmp_path / "b")).tolist() == [BEGIN + 60]


def test_the_stream_s_files_are_those_of_its_log(tmp_path: Path) -> None:
    listing = StreamListing(tmp_path)
    assert listing.files() == set()
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for batch in range(2):
        (log / str(batch)).write_text("v1\n" + json.dumps({"path": f"file:///x/{batch}", "action": "add"}))
        (log / f".{batch}.crc").write_bytes(b"")
        assert listing.files() == {f"/x/{each}" for each in range(batch + 1)}


def result(**given: Any) -> ArmResult:
    return ArmResult("follow", 1000, 120.0, 1.0, 100, 100, **{"behind": 0, **given})


def test_events_that_were_not_seen_count_as_slower_than_all_others() -> None:
    latencies = np.arange(1, 101)
    times = BEGIN + np.arange(100) * 20
    all_seen, half_seen = result(), result(behind=100)
    for each in (all_seen, half_seen):
        _add_latencies(each, times, latencies, BEGIN)
    assert (all_seen.p50, all_seen.p99, all_seen.most, all_seen.mean) == (51, 100, 100, 50.5)
    assert (half_seen.p50, half_seen.p99) == (100, 100), "at least"
    assert all_seen.median_by_second == [25.5, 75.5]
    _add_latencies(nothing := result(behind=100), times[:0], latencies[:0], BEGIN)
    assert nothing.p50 == 0


def test_the_page_has_a_row_for_each_arm(tmp_path: Path) -> None:
    arm = {
        "loader": "follow", "rate": 10_000, "seconds": 120.0, "interval": 1.0, "sent": 5, "seen": 4, "behind": 1,
        "p50": 1234.0, "p99": 5678.0, "mean": 2000.0, "most": 9000.0, "poll_ms": 105.0,
        "cores": {"broker": 0.1, "jvm": 1.25, "python": 0.5}, "median_by_second": [1000.0, 2000.0],
    }  # fmt: skip
    about = {name: name for name in ("commit", "processor", "cores", "memory", "system", "python")}
    found = {"arms": {"follow 10000": arm}, "machine": about, "date": "2026-11-23", "state": ""}
    row = "| `pylogd load --follow` | 10,000 | 1.23 | 5.68 | 2.00 | 9.00 | 5 | 1 | 0.10 | 1.25 | 0.50 |"
    assert row in lines(found)
    draw(found, tmp_path)
    assert "10,000 events/s" in (tmp_path / "end-to-end-follow.svg").read_text()
