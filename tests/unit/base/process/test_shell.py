"""A service in its process: start, announcement, stop and exit status, with a reactor that the test runs."""

from __future__ import annotations

import gc
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import CannotListenError, ReactorNotRunning
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from zope.interface import implementer

from pylogd.base.errors import PylogdError
from pylogd.base.process.shell import STOPPING, Shell, run_in_foreground
from pylogd.base.process.tuning import pause_garbage_collector, raise_file_limit, tune_interpreter


class Reactor:
    """The part of a reactor that a shell uses. `run` runs the calls in `turns`."""

    def __init__(self) -> None:
        self.running = False
        self.turns: list[Callable[[], object]] = []
        self.queue: list[Callable[[], object]] = []
        self.signals: list[int] = []  # that its own handlers have seen
        self.stops = 0
        self._first: list[Callable[[], object]] = []
        self._last: list[Callable[[], object]] = []

    def addSystemEventTrigger(self, phase: str, event: str, function: Callable[[], object]) -> None:
        assert (phase, event) == ("before", "shutdown")
        self._last.append(function)

    def callWhenRunning(self, function: Callable[[], object]) -> None:
        self._first.append(function)

    def callFromThread(self, function: Callable[..., object], *arguments: object) -> None:
        self.queue.append(partial(function, *arguments))

    def handle(self, number: int, _frame: object) -> None:
        """Handle SIGTERM and SIGINT as Twisted's reactors do."""
        self.signals.append(number)
        self.callFromThread(self.stop)

    def run_queue(self) -> None:
        """Run the calls that were queued before this turn."""
        queue, self.queue = self.queue, []
        for function in queue:
            function()

    def run(self) -> None:
        for number in STOPPING:
            signal.signal(number, self.handle)
        self.running = True
        for function in [*self._first, *self.turns]:
            if self.running:
                function()
        self.running = False
        for function in self._last:
            function()
        while self.queue:
            self.run_queue()

    def stop(self) -> None:
        self.stops += 1
        if self.stops > 1:
            raise ReactorNotRunning
        self.running = False


class Service:
    """A service whose start ends when the test says so."""

    def __init__(self) -> None:
        self.starting: Deferred[None] = Deferred()
        self.stopped = 0

    def start(self) -> Deferred[None]:
        return self.starting

    def stop(self) -> Deferred[None]:
        self.stopped += 1
        done: Deferred[None] = Deferred()
        done.callback(None)
        return done


@implementer(ILogObserver)
class Case:
    """A shell, its announcements, and its log."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        self.service = Service()
        self.shell = Shell(self.reactor, self.service, lambda: "it listens on port 1")
        self.announced: list[str] = []
        self.shell.announce = self.announced.append
        self.lines: list[str] = []

    def __call__(self, event: Any) -> None:
        self.lines.append(str(formatEvent(event)))

    def run(self, *turns: Callable[[], object]) -> int:
        self.reactor.turns = list(turns)
        return run_in_foreground(self.shell, self.reactor, "name")


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    globalLogPublisher.addObserver(made)
    yield made
    globalLogPublisher.removeObserver(made)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_run_that_is_stopped_ends_with_0(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert case.run(lambda: case.service.starting.callback(None), case.reactor.stop) == 0
    assert case.announced == ["it listens on port 1"]
    assert case.lines == ["it listens on port 1", "Stopping", "Stopped"]
    assert case.service.stopped == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PylogdError("no ZooKeeper"), "no ZooKeeper"),
        (PermissionError(13, "Permission denied", "/data"), "/data: Permission denied"),
        (CannotListenError("127.0.0.1", 1, OSError(98, "Address already in use")),
         "can't listen on 127.0.0.1:1: Address already in use"),
        (CannotListenError("", 1, OSError("no such host")), "can't listen on *:1: no such host"),
        (KeyError("x"), "unexpected KeyError: 'x'"),
    ],
)  # fmt: skip
def test_a_start_that_fails_says_why_and_ends_with_1(
    case: Case, capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    assert case.run(lambda: case.service.starting.errback(error)) == 1
    assert capsys.readouterr().err == f"name: {line}\n"
    assert case.announced == []
    assert any("Unexpected error" in logged for logged in case.lines) == isinstance(error, KeyError)


def test_the_first_reason_is_kept(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    def end() -> None:
        case.shell.end("the disk failed")
        case.shell.end("and the next one")

    assert case.run(lambda: case.service.starting.callback(None), end) == 1
    assert capsys.readouterr().err == "name: the disk failed\n"
    assert "Stopping" not in case.lines


def test_further_signals_are_logged_once(case: Case) -> None:
    def interrupt() -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)

    assert case.run(lambda: case.service.starting.callback(None), interrupt, case.reactor.run_queue) == 0
    assert (case.reactor.signals, case.reactor.stops, case.service.stopped) == ([signal.SIGTERM], 1, 1)
    assert case.lines == ["it listens on port 1", "Stopping", "Already stopping", "Stopped"]
    assert [signal.getsignal(number) for number in STOPPING] == [signal.SIG_IGN] * 2, "Python would reset others"


def test_a_signal_after_a_failure_does_not_stop_the_reactor_again(case: Case) -> None:
    def fail() -> None:
        case.shell.end("the disk failed")
        signal.raise_signal(signal.SIGTERM)

    assert case.run(fail, case.reactor.run_queue) == 1
    assert case.lines == ["Already stopping"]


def test_a_failure_after_a_signal_does_not_stop_the_reactor_again(case: Case) -> None:
    def fail() -> None:
        signal.raise_signal(signal.SIGTERM)
        case.shell.end("the disk failed")

    assert case.run(fail, case.reactor.run_queue) == 1
    assert case.reactor.stops == 1


def test_a_stop_before_the_start_was_done_is_no_failure(case: Case) -> None:
    assert case.run(case.reactor.stop, lambda: None) == 0
    case.service.starting.errback(CancelledError())
    assert case.shell.reason is None
    assert case.announced == []


def test_systemd_is_told(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        case.run(lambda: case.service.starting.callback(None))
        assert manager.recv(100) == b"READY=1"
    case.lines.clear()
    case.shell._started(None)  # nobody listens there any more
    assert any("Can't tell systemd" in line for line in case.lines)


def test_the_interpreter_is_tuned_and_collects_again() -> None:
    thresholds, interval, callbacks = gc.get_threshold(), sys.getswitchinterval(), [*gc.callbacks]
    try:
        pause_garbage_collector()
        assert not gc.isenabled()
        tune_interpreter()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > thresholds[0]
        assert sys.getswitchinterval() < interval
    finally:
        gc.callbacks[:] = callbacks
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        gc.enable()
        sys.setswitchinterval(interval)


def test_the_file_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert raise_file_limit() == (sys.maxsize if hard == resource.RLIM_INFINITY else hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
