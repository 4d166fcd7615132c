"""Log output of a process: Twisted's log and Python's `logging` to one stream, and log files that can be reopened.

Lines are text for people, or JSON for programs (`pylogd.base.process.json_lines`).
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import IO, Any, Final

from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    formatEventAsClassicLogText,
    globalLogBeginner,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogd.base.process.printable import printable

log = Logger()

#: Values of --log-format.
TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)

_LEVELS = {
    logging.DEBUG: LogLevel.debug,
    logging.INFO: LogLevel.info,
    logging.WARNING: LogLevel.warn,
    logging.ERROR: LogLevel.error,
    logging.CRITICAL: LogLevel.critical,
}


class LogFile:
    """A log file that can be reopened under its name, after another program has moved it away.

    It has the part of a text stream's interface that Twisted's log observers use.
    """

    def __init__(self, path: str) -> None:
        """Open the file for appending. Raises OSError."""
        self._path = path
        self._file: IO[str] = self._open()

    def _open(self) -> IO[str]:
        return open(self._path, "a", encoding="utf-8", errors="backslashreplace")

    def write(self, text: str) -> None:
        """Append text, as twisted.logger's file observers do."""
        self._file.write(text)

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def reopen(self) -> None:
        """Continue in the file that has the name now; create it if there is none.

        Raises OSError if it can't be opened. The old file then stays in use.
        """
        fresh = self._open()
        old, self._file = self._file, fresh
        old.close()


class LoggingBridge(logging.Handler):
    """Forward records of `logging`, which packages without Twisted use, to Twisted's log. Safe in any thread."""

    def emit(self, record: logging.LogRecord) -> None:
        failure = {} if record.exc_info is None else {"log_failure": _failure(*record.exc_info)}
        Logger(namespace=record.name).emit(
            _LEVELS.get(record.levelno, LogLevel.info), "{log_text}", log_text=record.getMessage(), **failure
        )


def bridge_logging() -> None:
    """Forward the records of `logging` below "pylogd" to Twisted's log. A second call changes nothing."""
    logger = logging.getLogger("pylogd")
    if not any(isinstance(handler, LoggingBridge) for handler in logger.handlers):
        logger.addHandler(LoggingBridge())
        logger.setLevel(logging.INFO)
        logger.propagate = False


class LogOutput:
    """Where a process writes its log, and in which format."""

    def __init__(self, path: str | None = None, style: str = TEXT) -> None:
        """Open the log file; without a path, the log goes to standard error. Raises OSError.

        style: TEXT or JSON.
        """
        self.file = None if path is None else LogFile(path)
        self.style = style
        #: Names this process in each line, if several write to one log.
        self.process = ""

    @property
    def program(self) -> str:
        """How this process is called in the line that says why it ended."""
        return f"pylogd, {self.process}" if self.process else "pylogd"

    def begin(self) -> None:
        """Begin to write log events, to the file or to standard error."""
        log_to(self._stream, self.style, self.process)

    def logger(self, namespace: str, process: str) -> Logger:
        """Return a logger for a process without a reactor, which writes here and nowhere else.

        process: names it in each line.
        """
        return Logger(namespace, observer=_NamedLines(file_observer(self._stream, self.style), process))

    @property
    def _stream(self) -> Any:
        return sys.stderr if self.file is None else self.file

    def announce(self, announce: Callable[[str], object]) -> Callable[[str], object]:
        """Return the function for the line that says where a service listens: None if every line must be JSON.

        The log has the line too.
        """
        return announce if self.style == TEXT else lambda _line: None

    def reopen(self) -> None:
        """Reopen the log file, if there is one. Raises OSError."""
        if self.file is not None:
            self.file.reopen()

    def reopen_on(self, reactor: Any, *signals: signal.Signals) -> None:
        """Reopen the log file, in the reactor's thread, whenever one of these signals arrives."""

        def handle(number: int, _frame: FrameType | None) -> None:
            reactor.callFromThread(self._reopen, signal.Signals(number).name)

        for number in signals:
            signal.signal(number, handle)

    def _reopen(self, name: str) -> None:
        if self.file is None:
            log.info("{signal}: no log file to reopen, the log goes to standard error", signal=name)
            return
        try:
            self.file.reopen()
        except OSError as error:
            log.error("{signal}: can't reopen the log file, still writing to the old one: {error}", signal=name,
                      error=error)  # fmt: skip
        else:
            log.info("{signal}: reopened the log file", signal=name)


def log_to(stream: Any, style: str = TEXT, process: str = "") -> None:
    """Write log events of level info and above to a text stream or a `LogFile`.

    style: TEXT or JSON. process: see `LogOutput`.
    """
    levels = LogLevelFilterPredicate(defaultLogLevel=LogLevel.info)
    levels.setLogLevelForNamespace("twisted.internet.base", LogLevel.warn)  # starts and ends of the main loop
    levels.setLogLevelForNamespace("log_legacy", LogLevel.warn)  # Twisted's own lines on ports that open and close
    lines = file_observer(stream, style)
    observer = FilteringLogObserver(_NamedLines(lines, process) if process else lines, [levels])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    if style == JSON:
        log_what_python_prints()


def file_observer(stream: Any, style: str = TEXT) -> ILogObserver:
    """Return an observer that writes events as lines. Client ids and the like can't control a terminal."""
    if style == TEXT:
        return FileLogObserver(stream, _format)
    from pylogd.base.process.json_lines import json_line  # noqa: PLC0415 - most brokers log text

    return FileLogObserver(stream, json_line)


@implementer(ILogObserver)
class _NamedLines:
    """Writes lines that name the process."""

    def __init__(self, lines: ILogObserver, process: str) -> None:
        self._lines = lines
        self._process = process

    def __call__(self, event: dict[str, Any]) -> None:
        level = getattr(event.get("log_level"), "name", "info")
        system = event.get("log_system") or f"{event.get('log_namespace', '-')}#{level}"
        self._lines({**event, "log_system": f"{self._process}, {system}", "process": self._process})


def log_what_python_prints() -> None:
    """Log what Python would print on standard error: uncaught exceptions, warnings, records without a handler."""

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        log.failure("Uncaught exception", _failure(kind, error, trace), level=LogLevel.critical)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            failure = _failure(args.exc_type, args.exc_value, args.exc_traceback)
            log.failure(
                "Uncaught exception in the thread {thread}", failure, thread=args.thread.name if args.thread else ""
            )

    def ignored(args: Any) -> None:  # of type sys.UnraisableHookArgs, which exists for type checkers only
        failure = _failure(args.exc_type, args.exc_value, args.exc_traceback)
        log.failure("Exception ignored in {source}", failure, source=repr(args.object)[:200])

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, in_thread, ignored
    logging.captureWarnings(True)
    root = logging.getLogger()
    if not any(isinstance(handler, LoggingBridge) for handler in root.handlers):
        root.addHandler(LoggingBridge(logging.WARNING))


def _failure(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Failure:
    return Failure(error if error is not None else (kind or Exception)(), kind, trace)


def _format(event: dict[str, Any]) -> str | None:
    text = formatEventAsClassicLogText(event)
    return None if text is None else printable(text, keep="\n\t")
