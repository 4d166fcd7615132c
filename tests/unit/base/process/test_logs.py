"""Where a process's log goes: files that are reopened at a signal, and Python's own messages in a JSON log."""

from __future__ import annotations

import io
import json
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import globalLogPublisher

from pylogd.base.process.logs import JSON, LoggingBridge, LogOutput, file_observer, log_what_python_prints


class Reactor:
    """Runs calls from signal handlers at once."""

    def callFromThread(self, function: Callable[..., object], *arguments: object) -> None:
        function(*arguments)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Undo signal handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_reopens_the_file(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "registry.log"
    output = LogOutput(str(path))
    output.reopen_on(Reactor(), signal.SIGHUP, signal.SIGUSR1)
    assert output.file is not None
    output.file.write("one\n")
    path.rename(tmp_path / "registry.log.1")
    signal.raise_signal(number)
    output.file.write("two\n")
    output.file.flush()
    assert path.read_text() == "two\n"
    assert (tmp_path / "registry.log.1").read_text() == "one\n"


@pytest.mark.usefixtures("handlers")
def test_a_file_that_can_not_be_reopened_stays_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    output = LogOutput(str(folder / "x"))
    output.reopen_on(Reactor(), signal.SIGUSR1)
    folder.rename(tmp_path / "moved")
    signal.raise_signal(signal.SIGUSR1)
    assert output.file is not None
    output.file.write("still here\n")
    output.file.flush()
    assert (tmp_path / "moved" / "x").read_text() == "still here\n"


@pytest.mark.usefixtures("handlers")
def test_without_a_file_the_signal_ends_nothing() -> None:
    output = LogOutput()
    output.reopen_on(Reactor(), signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    output.reopen()


def test_only_a_log_of_text_has_an_announcement_beside_it() -> None:
    lines: list[str] = []
    LogOutput().announce(lines.append)("text")
    LogOutput(style=JSON).announce(lines.append)("json")
    assert lines == ["text"]


@pytest.fixture
def json_log() -> Iterator[io.StringIO]:
    """The JSON log of this process, with what Python would print. All of it is undone."""
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    root = logging.getLogger()
    handlers = list(root.handlers)
    stream = io.StringIO()
    observer = file_observer(stream, JSON)
    globalLogPublisher.addObserver(observer)
    log_what_python_prints()
    try:
        yield stream
    finally:
        globalLogPublisher.removeObserver(observer)
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
        logging.captureWarnings(False)
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_uncaught_exception_is_a_line(json_log: io.StringIO) -> None:
    try:
        raise KeyError("k")
    except KeyError as error:
        sys.excepthook(KeyError, error, error.__traceback__)
    (line,) = lines_of(json_log)
    assert (line["level"], line["error"]["type"]) == ("critical", "KeyError")


def test_an_exception_in_a_thread_is_a_line(json_log: io.StringIO) -> None:
    def fail() -> None:
        raise OSError(5, "I/O error")

    thread = threading.Thread(target=fail, name="reader")
    thread.start()
    thread.join()
    (line,) = lines_of(json_log)
    assert line["fields"] == {"thread": "reader"}
    assert line["error"]["text"] == "[Errno 5] I/O error"


def test_a_warning_is_a_line(json_log: io.StringIO) -> None:
    logging.getLogger("py.warnings").propagate = True
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.showwarning("old\nthing", UserWarning, "f.py", 1)
    assert [line["level"] for line in lines_of(json_log)] == ["warn"]


def test_a_record_of_logging_keeps_its_exception(json_log: io.StringIO) -> None:
    logger = logging.Logger("pylogd.client")
    logger.addHandler(LoggingBridge())
    try:
        raise ValueError("v")
    except ValueError:
        logger.exception("group %s: %d lost", "g", 3)
    (line,) = lines_of(json_log)
    assert (line["message"], line["logger"], line["level"]) == ("group g: 3 lost", "pylogd.client", "error")
    assert line["error"]["type"] == "ValueError"
