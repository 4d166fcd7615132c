"""What surrounds a broker in its process: log output, readiness, exit codes. Shared by twistd and the foreground."""

# ruff: noqa: PLC0415 - whoever imports the reactor installs it: only what runs a broker may
from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.error import CannotListenError
from twisted.logger import (
    FilteringLogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)
from twisted.python.failure import Failure

from pylogd import __version__
from pylogd.broker import Broker
from pylogd.clock import use_monotonic_time
from pylogd.config import Settings
from pylogd.errors import PylogdError
from pylogd.log.files import FileSystem
from pylogd.reload import LogFile, Reloader

log = Logger()

_LEVELS = {
    logging.DEBUG: LogLevel.debug,
    logging.INFO: LogLevel.info,
    logging.WARNING: LogLevel.warn,
    logging.ERROR: LogLevel.error,
    logging.CRITICAL: LogLevel.critical,
}


class LoggingBridge(logging.Handler):
    """Hands what the rooms without Twisted log, by `logging`, to Twisted's log. Safe in any thread."""

    def emit(self, record: logging.LogRecord) -> None:
        Logger(namespace=record.name).emit(
            _LEVELS.get(record.levelno, LogLevel.info), "{text}", text=self.format(record)
        )


def bridge_logging() -> None:
    """Send the records of `logging` below "pylogd" to Twisted's log, once."""
    logger = logging.getLogger("pylogd")
    if not any(isinstance(handler, LoggingBridge) for handler in logger.handlers):
        logger.addHandler(LoggingBridge())
        logger.setLevel(logging.INFO)
        logger.propagate = False


def explain_failure(failure: Failure) -> str:
    """One line for a failed start, for a person."""
    error = failure.value
    if isinstance(error, CannotListenError):
        host = error.interface or "*"
        why = error.socketError  # an OSError, or one of its kind from the resolver
        return f"can't listen on {host}:{error.port}: {getattr(why, 'strerror', None) or why}"
    if isinstance(error, PylogdError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'the system'}: {error.strerror or error}"
    return f"unexpected {type(error).__name__}: {error}"


def describe(broker: Broker) -> str:
    """One line that says where a broker listens."""
    where = ", ".join(str(listener) for listener in broker.listeners)
    directories = ", ".join(broker.settings.words("log.dirs"))
    return f"pylogd {__version__} listens on {where} (node {broker.node_id}, data in {directories})"


def notify_ready() -> None:
    """Tell systemd that the service is up (sd_notify(3)), if it started us with Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.send(b"READY=1")
        except OSError as error:
            log.warn("can't tell systemd that the broker is ready: {error}", error=error)


def hurry_when_asked_again(broker: Broker, reactor: Any) -> None:
    """From now on, when the stop has begun, a further SIGTERM or SIGINT ends the wait for slow clients."""

    def hurry() -> None:
        log.info("Second signal to stop: closing the remaining connections without waiting")
        broker.abort_connections()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: reactor.callFromThread(hurry))


def run_foreground(
    settings: Settings,
    announce: Callable[[str], None],
    reactor: Any = None,
    fs: FileSystem | None = None,
    log_file: LogFile | None = None,
) -> int:
    """Run a broker until SIGTERM or SIGINT; the process's exit code. `announce` is told, once, where it listens.

    The log goes to `log_file`, or to standard error. What keeps the broker from starting, or from going on, is the last
    line on standard error, and exit code 1. On SIGHUP: see `pylogd.reload`.
    """
    if reactor is None:
        from twisted.internet import reactor

        use_monotonic_time(reactor)
    levels = LogLevelFilterPredicate(defaultLogLevel=LogLevel.info)
    levels.setLogLevelForNamespace("twisted.internet.base", LogLevel.warn)  # its main loop is not our users' concern
    stream: Any = sys.stderr if log_file is None else log_file
    observer = FilteringLogObserver(textFileLogObserver(stream), [levels])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    bridge_logging()
    broker = Broker(settings, reactor, fs)
    Reloader(settings, broker.in_thread, None if log_file is None else log_file.reopen).install(reactor)
    reason: str | None = None

    def started(_: None) -> None:
        log.info("{line}", line=describe(broker))
        announce(describe(broker))
        notify_ready()

    def failed(failure: Failure) -> None:
        nonlocal reason
        if failure.check(CancelledError):
            return  # asked to stop before it was up
        reason = explain_failure(failure)
        if not isinstance(failure.value, (PylogdError, OSError, CannotListenError)):
            log.failure("the broker could not start", failure)
        if reactor.running:
            reactor.stop()

    def ended(why: str) -> None:
        nonlocal reason
        reason = reason or why
        if reactor.running:
            reactor.stop()

    broker.on_end = ended

    def start() -> None:
        broker.start().addCallbacks(started, failed)

    def stop() -> Any:
        hurry_when_asked_again(broker, reactor)  # first: whoever reads that it stops may ask again at once
        if reason is None:
            log.info("stopping")
        return broker.stop()

    reactor.addSystemEventTrigger("before", "shutdown", stop)
    reactor.callWhenRunning(start)
    reactor.run()
    if reason is None:
        log.info("stopped")
        return 0
    print(f"pylogd: {reason}", file=sys.stderr)
    return 1
