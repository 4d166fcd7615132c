"""Log output of a process: Twisted's log and Python's `logging` to one stream, and log files that can be reopened."""

from __future__ import annotations

import logging
from typing import IO, Any

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

from pylogd.process.printable import printable

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
        """Append text."""
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
        Logger(namespace=record.name).emit(
            _LEVELS.get(record.levelno, LogLevel.info), "{text}", text=self.format(record)
        )


def bridge_logging() -> None:
    """Forward the records of `logging` below "pylogd" to Twisted's log. A second call changes nothing."""
    logger = logging.getLogger("pylogd")
    if not any(isinstance(handler, LoggingBridge) for handler in logger.handlers):
        logger.addHandler(LoggingBridge())
        logger.setLevel(logging.INFO)
        logger.propagate = False


def log_to(stream: Any) -> None:
    """Write log events of level info and above to a text stream or a `LogFile`."""
    levels = LogLevelFilterPredicate(defaultLogLevel=LogLevel.info)
    levels.setLogLevelForNamespace("twisted.internet.base", LogLevel.warn)  # starts and ends of the main loop
    levels.setLogLevelForNamespace("log_legacy", LogLevel.warn)  # Twisted's own lines on ports that open and close
    observer = FilteringLogObserver(file_observer(stream), [levels])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)


def file_observer(stream: Any) -> ILogObserver:
    """Return an observer that writes events as lines of text. Client ids and the like can't control a terminal."""
    return FileLogObserver(stream, _format)


def _format(event: dict[str, Any]) -> str | None:
    text = formatEventAsClassicLogText(event)
    return None if text is None else printable(text, keep="\n\t")
