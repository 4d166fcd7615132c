"""The journal of an audited producer: what survives, in whatever way the process or the machine ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.client.blocking.audit_journal import Journal, JournalInUse, JournalWindow, _line, read_journal

START, WIDTH = 1_700_000_040_000, 60_000


def opened(path: Path, fsync: float | None = 0) -> Journal:
    return Journal(path, fsync=fsync)


def left(journal: Journal) -> list[tuple[str, int, int, int, list[tuple[int, int]]]]:
    return [(each.topic, each.start, each.first, each.last, each.failed) for each in journal.recovered]


def test_what_was_not_reported_is_recovered_until_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = opened(path)
    assert first.recovered == []
    reported = first.begin("p", "here", "t", START, WIDTH, 0)
    first.given(reported, 9)
    first.done(reported)
    open_ = first.begin("p", "here", "t", START + WIDTH, WIDTH, 10)
    first.given(open_, 14)
    first.given(open_, 12)  # numbers never go back
    first.failed(open_, [(11, 12)])
    empty = first.begin("p", "here", "u", START + WIDTH, WIDTH, 0)
    first.close()
    second = opened(path)
    assert left(second) == [("t", START + WIDTH, 10, 14, [(11, 12)]), ("u", START + WIDTH, 0, -1, [])]
    told = second.recovered[0].report()
    assert (told.producer, told.server, told.count, told.first, told.last) == ("p", "here", 0, 10, 14)
    assert told.recovered and told.failed == ((11, 12),)
    second.done(open_)
    second.close()
    third = opened(path)
    assert [each.id for each in third.recovered] == [empty]
    assert third.begin("q", "here", "t", START, WIDTH, 0) > empty, "numbers of reports are not used twice"
    third.close()


def test_a_line_survives_the_process_without_close(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = opened(path, None)
    journal.given(journal.begin("p", "here", "t", START, WIDTH, 0), 41)
    found = read_journal(path.read_bytes(), "journal")
    assert [window.last for window in found.values()] == [41]
    journal.close()


@given(st.data())
def test_whatever_the_machine_left_of_the_end_is_a_beginning(data: st.DataObject) -> None:
    """A cut or damaged end costs what is behind it and nothing else."""
    windows = [JournalWindow(at, "p", server, "t", START, WIDTH, at, 7) for at, server in ((1, "here"), (2, "é"))]
    lines = [_line(line) for window in windows for line in window.lines()]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    found = read_journal(whole[:cut] + data.draw(st.binary(max_size=30)).replace(b"\n", b""), "journal")
    kept, size = 0, 0
    while kept < len(lines) and size + len(lines[kept]) <= cut:
        size += len(lines[kept])
        kept += 1
    assert found == read_journal(b"".join(lines[:kept]), "journal")
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    before = whole[:at].count(b"\n")
    assert read_journal(bytes(damaged), "journal") in (
        read_journal(b"".join(lines[:before]), "journal"), read_journal(whole, "journal")
    )  # fmt: skip


def test_a_journal_belongs_to_one_producer(tmp_path: Path) -> None:
    first = opened(tmp_path / "journal")
    with pytest.raises(JournalInUse, match="in use by another producer"):
        opened(tmp_path / "journal")
    first.close()
    opened(tmp_path / "journal").close()


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pylogd.client.blocking.audit_journal._MOST_BYTES", 2000)
    path = tmp_path / "journal"
    journal = opened(path, None)
    window = journal.begin("p", "here", "t", START, WIDTH, 0)
    for number in range(1000):
        journal.given(window, number)
        assert path.stat().st_size <= 2000 + 100
    journal.close()
    again = opened(path)
    assert left(again) == [("t", START, 0, 999, [])]
    again.close()


@pytest.mark.parametrize(("fsync", "least"), [(0, 3), (None, 0)])
def test_when_lines_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: float | None, least: int
) -> None:
    journal = opened(tmp_path / "journal", fsync)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    window = journal.begin("p", "here", "t", START, WIDTH, 0)
    journal.given(window, 1)
    journal.done(window)
    assert len(synced) == least
    journal.close()


def test_lines_are_synced_within_the_time_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    journal = opened(tmp_path / "journal", 0.001)
    monkeypatch.setattr(os, "fsync", lambda _file: done.set())
    journal.begin("p", "here", "t", START, WIDTH, 0)
    assert done.wait(60)
    journal.close()


def test_a_full_disk_ends_the_journal_and_not_the_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path / "journal")
    window = journal.begin("p", "here", "t", START, WIDTH, 0)

    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        journal.given(window, 1)
        journal.given(window, 2)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No space left on device" in caplog.text and "the audit does not detect its lost messages" in caplog.text
    journal.close()


def test_an_impossible_interval_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seconds"):
        opened(tmp_path / "journal", -1)
