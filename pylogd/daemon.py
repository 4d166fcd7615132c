"""What surrounds a broker in its process: log output, readiness, exit codes. Shared by twistd and the foreground."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

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
from pylogd.config import Settings
from pylogd.errors import PylogdError

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
        return f"can't listen on {host}:{error.port}: {os.strerror(error.socketError.errno or 0)}"
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


def run_foreground(settings: Settings, announce: Callable[[str], None], reactor: Any = None) -> int:
    """Run a broker until SIGTERM or SIGINT; the process's exit code. `announce` is told, once, where it listens.

    The log goes to standard error. What keeps the broker from starting is one line there, and exit code 1.
    """
    if reactor is None:
        from twisted.internet import reactor
    observer = FilteringLogObserver(
        textFileLogObserver(sys.stderr), [LogLevelFilterPredicate(defaultLogLevel=LogLevel.info)]
    )
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    bridge_logging()
    broker = Broker(settings, reactor)
    exit_code = 0

    def started(_: None) -> None:
        log.info("{line}", line=describe(broker))
        announce(describe(broker))
        notify_ready()

    def failed(failure: Failure) -> None:
        nonlocal exit_code
        exit_code = 1
        if not isinstance(failure.value, (PylogdError, OSError, CannotListenError)):
            log.failure("the broker could not start", failure)
        print(f"pylogd: {explain_failure(failure)}", file=sys.stderr)
        if reactor.running:
            reactor.stop()

    def start() -> None:
        broker.start().addCallbacks(started, failed)

    reactor.addSystemEventTrigger("before", "shutdown", broker.stop)
    reactor.callWhenRunning(start)
    reactor.run()
    return exit_code
