"""Commands that run for a while: `bench`, `top`, and the note that a command waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from textual.widgets import DataTable

from pylogd.base.errors import PylogdError
from pylogd.cli import bench, waiting
from pylogd.cli.bench import Latencies
from pylogd.cli.main import pylogd
from pylogd.cli.stopping import Stop
from pylogd.cli.top_app import TopApp
from pylogd.cli.top_sample import Look
from pylogd.wire.messages import ApiKey
from tests.fakes.broker import FakeBroker, silence

SECOND = 1_000_000_000


class World:
    """A clock, and a producer whose broker stops for a while: `send` does not return before it goes on."""

    def __init__(self, stops_at: int, for_ns: int) -> None:
        self.now = 0
        self.sent: list[tuple[int, int]] = []
        self._stops_at = stops_at
        self._for_ns = for_ns

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)

    def send(self, _topic: str, value: bytes, *, on_delivery: Any) -> None:
        if len(self.sent) == self._stops_at:
            self.now += self._for_ns
        self.sent.append((self.now, len(value)))
        on_delivery(SimpleNamespace(error=None))


def test_a_stop_makes_every_record_late_that_was_due_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(stops_at=10, for_ns=SECOND)
    monkeypatch.setattr(bench, "time", world)
    latencies = Latencies()
    sender = bench._Sender(world, "t", 100, latencies.deliver, 100.0)  # type: ignore[arg-type]
    sender.run(200, None, Stop())
    assert [size for _, size in world.sent] == [100] * 200
    late = [at - number * SECOND // 100 for number, (at, _) in enumerate(world.sent)]
    assert late[:10] == [0] * 10 and late[10] == SECOND and late[110:] == [0] * 90
    assert sum(one > 0 for one in late) == 100, "a hundred records were due while the broker stood still"
    found = latencies.summary()
    assert found["max_ms"] == pytest.approx(1000, rel=0.01)
    assert found["p90_ms"] == pytest.approx(800, rel=0.05), "not only the one that was on its way is late"


def test_a_sender_ends_after_its_time_and_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(stops_at=-1, for_ns=0)
    monkeypatch.setattr(bench, "time", world)
    sender = bench._Sender(world, "t", 16, lambda *_: None, 10.0)  # type: ignore[arg-type]
    sender.run(None, 2.0, Stop())
    assert len(world.sent) == 20
    stop = Stop()
    stop.asked = True
    sender.run(None, 2.0, stop)
    assert len(world.sent) == 20


def test_latencies_are_written_for_the_plotter(tmp_path: Path) -> None:
    latencies = Latencies()
    assert latencies.summary() == {}
    for milliseconds in (1, 2, 3, 4):
        latencies.record(milliseconds * 1_000_000)
    latencies.deliver(0, SimpleNamespace(error=PylogdError("lost")))  # type: ignore[arg-type]
    assert (latencies.count, latencies.errors) == (4, 1)
    assert latencies.summary()["p50_ms"] == pytest.approx(2, rel=0.001)
    latencies.write(tmp_path / "hdr")
    assert "Percentile" in (tmp_path / "hdr").read_text() and "#[Max" in (tmp_path / "hdr").read_text()


def test_a_command_says_that_it_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.05)
    with FakeBroker() as server:
        server.on(ApiKey.METADATA, *[silence] * 20)
        result = CliRunner().invoke(pylogd, ["topics", "list", "-b", server.address, "--timeout", "0.5"])
    assert result.exit_code == 1
    first, *rest = result.output.splitlines()
    assert first.startswith(f"waiting for a broker of {server.address}") and "--timeout" in first
    assert len(rest) == 1 and rest[0].startswith("Error: ")


def test_a_quick_answer_is_not_announced() -> None:
    with FakeBroker() as server:
        result = CliRunner().invoke(pylogd, ["topics", "list", "--names", "-b", server.address])
    assert (result.exit_code, result.output) == (0, "t\n")


def test_a_name_that_is_misspelt_is_proposed() -> None:
    for arguments, near in ((["topcis"], "topics"), (["topics", "lst"], "list"), (["cluster", "helth"], "health"),
                            (["brokers", "maintenance", "enabel"], "enable")):  # fmt: skip
        result = CliRunner().invoke(pylogd, arguments)
        assert result.exit_code == 2 and f"Did you mean {near}" in result.output, result.output
    assert "See 'pylogd --help'." in CliRunner().invoke(pylogd, ["zzz"]).output


LOOK = Look(
    0.0,
    topics=[
        {"topic": name, "partitions": count, "records_per_second": rate, "bytes_per_second": rate, "bytes": 2048,
         "under_replicated": 0, "leaderless": 0}
        for name, count, rate in (("a", 1, None), ("b\x1b[2J", 9, 12.5), ("c", 4, 0.0))
    ],
    groups=[{"group": "g", "state": "Stable", "members": 2, "lag": 10, "lag_change": -5}],
)  # fmt: skip


async def _shown(looks: list[Any], keys: str, cells: int) -> tuple[list[list[str]], str]:
    """Run the screen, press keys, and return the rows of the table and the subtitle."""

    def look() -> Look:
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(found, PylogdError):
            raise found
        return found  # type: ignore[no-any-return]

    app = TopApp(look, "topics", 0.2, "somewhere:9092")
    async with app.run_test(size=(100, 30)) as pilot:
        table: DataTable[Any] = app.query_one(DataTable)
        for _ in range(600):
            if table.row_count == cells and (cells or "no answer" in app.sub_title):
                break
            await pilot.pause(0.1)
        await pilot.press(*keys)
        await pilot.pause()
        rows = [[str(cell) for cell in table.get_row_at(index)] for index in range(table.row_count)]
        return rows, app.sub_title


def test_the_live_screen_sorts_and_changes_its_view() -> None:
    rows, title = asyncio.run(_shown([LOOK], "", 3))
    assert [row[0] for row in rows] == ["a", "b\\x1b[2J", "c"] and title == "3 topics"
    assert rows[0][2:5] == ["-", "-", "2.0 KiB"] and rows[1][2] == "12.5"
    assert [row[1] for row in asyncio.run(_shown([LOOK], "s", 3))[0]] == ["9", "4", "1"]
    assert [row[1] for row in asyncio.run(_shown([LOOK], "sr", 3))[0]] == ["1", "4", "9"]
    silent = replace(LOOK, silent=[2, 3])
    assert asyncio.run(_shown([silent], "", 3))[1] == "3 topics; no answer from brokers 2, 3"
    assert asyncio.run(_shown([LOOK], "g", 3)) == ([["g", "Stable", "2", "10", "-5"]], "1 groups")


def test_the_live_screen_survives_a_look_that_fails() -> None:
    rows, title = asyncio.run(_shown([PylogdError("gone\x1b[2J")], "", 0))
    assert (rows, title) == ([], "no answer: gone\\x1b[2J")


def test_bench_and_top_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hdrh.histogram", None)
    with pytest.raises(click.ClickException, match=r"pylogd-broker\[cli\]"):
        Latencies()
