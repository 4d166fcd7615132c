"""What a process does on SIGHUP, with a thread that the test runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher

from pylogd.base.process.logs import LogFile
from pylogd.broker.process.reload import Reloader
from pylogd.config import Settings


class Case:
    """A reloader of a settings file. `run` executes what was given to the thread."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pylogd.toml"
        self.path.write_text("")
        self.settings = Settings.load(self.path)
        self.opened = 0
        self.fails: OSError | None = None
        self.waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []
        self.lines: list[str] = []
        self.reloader = Reloader(self.settings, self.in_thread, self.reopen)

    def in_thread(self, function: Callable[[], Any]) -> Deferred[Any]:
        self.waiting.append((function, Deferred()))
        return self.waiting[-1][1]

    def run(self) -> None:
        function, done = self.waiting.pop(0)
        maybeDeferred(function).chainDeferred(done)

    def reopen(self) -> None:
        self.opened += 1
        if self.fails is not None:
            raise self.fails

    def note(self, event: Any) -> None:
        self.lines.append(formatEvent(event))

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@pytest.fixture
def case(tmp_path: Path) -> Any:
    made = Case(tmp_path)
    observer = cast(ILogObserver, made.note)
    globalLogPublisher.addObserver(observer)
    yield made
    globalLogPublisher.removeObserver(observer)


def test_the_log_file_first_then_the_settings(case: Case) -> None:
    case.path.write_text('"message.max.bytes" = 2000\n"node.id" = 7\n')
    case.reloader.reload()
    assert case.opened == 1
    assert not case.said("2000")
    case.run()
    assert case.settings["message.max.bytes"] == 2000
    assert case.said("SIGHUP: changed message.max.bytes from 1048588 to 2000")
    assert case.said("SIGHUP: node.id = 7 needs a restart; until then 1 applies")


def test_signals_meanwhile_make_for_one_more(case: Case) -> None:
    case.reloader.reload()
    case.path.write_text('"message.max.bytes" = 2000\n')
    case.reloader.reload()
    case.reloader.reload()
    assert len(case.waiting) == 1
    case.run()
    case.path.write_text('"message.max.bytes" = 3000\n')
    assert len(case.waiting) == 1
    case.run()
    assert case.settings["message.max.bytes"] == 3000
    assert not case.waiting


def test_failures_are_logged_and_survived(case: Case) -> None:
    case.fails = PermissionError(13, "Permission denied")
    case.path.write_text("nonsense = 1\n")
    case.reloader.reload()
    case.run()
    assert case.said("can't reopen the log file")
    assert case.said("no setting was changed")
    case.path.write_text('"message.max.bytes" = 2000\n')
    case.reloader.reload()
    case.run()
    assert case.settings["message.max.bytes"] == 2000


def test_a_dynamic_value_that_overrules_the_file_is_named(case: Case) -> None:
    case.settings.set_dynamic({"message.max.bytes": "500"}, {})
    case.path.write_text('"message.max.bytes" = 2000\n')
    case.reloader.reload()
    case.run()
    assert case.said("message.max.bytes in") and case.said("has no effect: a value set at run time overrides it")


def test_a_log_file_goes_on_where_its_name_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(str(path))
    file.write("one\n")
    path.rename(tmp_path / "old")
    file.write("two\n")
    file.reopen()
    file.write("three\n")
    file.flush()
    assert (tmp_path / "old").read_text() == "one\ntwo\n"
    assert path.read_text() == "three\n"
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        file.reopen()
    file.write("four\n")
    file.flush()
