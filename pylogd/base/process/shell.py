"""Run a service in this process: start it, announce it, stop it on a signal, and say why it ended.

Strategy: a `Shell` does what is the same under `twistd` and in the foreground: it starts the service, tells the service
manager and the user once it is ready, and records the reason if it can't start or continue. It lets Twisted handle the
first SIGTERM or SIGINT, and handles further ones itself. `run_in_foreground` adds the reactor and the exit status.

Exit status: 0 after a stop that was asked for, 1 with the reason in the last line of standard error.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.clock import use_monotonic_time
from pylogd.base.errors import PylogdError
from pylogd.base.process.logs import TEXT, LogOutput, bridge_logging
from pylogd.base.process.polling import poll_without_log_context
from pylogd.base.process.printable import printable
from pylogd.base.process.tuning import NEW_OBJECTS, tune_interpreter

log = Logger()

EXPECTED = (PylogdError, OSError, CannotListenError)
#: The signals that stop a service.
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


class Service(Protocol):
    """Interface of what a process runs: it is started once, and stopped on a signal."""

    def start(self) -> Deferred[None]:
        """Fire once it serves. Fail, with everything undone, if it can't; with CancelledError if `stop` came first."""

    def stop(self) -> Deferred[None]:
        """Stop the service. The Deferred fires once it has ended."""


def process_reactor() -> Any:
    """Return the process's reactor, which is installed at the first call.

    Its timers use the monotonic clock, and no log context is entered for what sockets have ready.
    """
    from twisted.internet import reactor  # noqa: PLC0415 - importing it installs it

    use_monotonic_time(reactor)
    poll_without_log_context(reactor)
    return reactor


class Shell:
    """A service in its process. `reason` says why it could not start or continue; None as long as all is well."""

    def __init__(self, reactor: Any, service: Service, describe: Callable[[], str]) -> None:
        """`describe` returns one line that says where the service listens."""
        bridge_logging()
        self.reason: str | None = None
        self.announce: Callable[[str], object] = lambda _line: None  # told the line of `describe`, once
        self._reactor = reactor
        self._service = service
        self._describe = describe
        self._logs_line = True
        self._reactor_ends = False  # it was told to stop, which it can be told once
        self._asked_again = False

    def announce_to(self, announce: Callable[[str], object], output: LogOutput) -> None:
        """Tell `announce` once the service listens. The log has the line too, unless both are shown in one place."""
        if output.process:
            self.announce = announce  # the parent process waits for it, whatever the log's format is
            return
        self.announce = output.announce(announce)
        self._logs_line = log_is_apart(output)

    def start(self) -> None:
        """Start the service. If it fails the reactor is stopped."""
        self._service.start().addCallbacks(self._started, self._failed)

    def handle_signals(self) -> None:
        """Call `stop_again` at the second SIGTERM or SIGINT; Twisted's handlers, which stop the reactor, get the first.

        Call this once the reactor has installed its handlers: they would log an error at the second signal.
        """
        for number in STOPPING:
            first = signal.getsignal(number)
            if callable(first):  # else it is ignored
                signal.signal(number, partial(self._signalled, first))

    def stop(self) -> Deferred[None]:
        """Stop the service; fires once it has ended."""
        self._reactor_ends = True
        if self.reason is None:
            log.info("Stopping")
        return self._service.stop()

    def end(self, reason: str) -> None:
        """Stop the reactor because the service can't continue. The first reason is kept."""
        self.reason = self.reason or reason
        if self._reactor.running and not self._reactor_ends:
            self._reactor_ends = True
            self._reactor.stop()

    def stop_again(self) -> None:
        """Handle a second request to stop. Called once, when the stop has begun."""
        log.info("Already stopping")

    def _signalled(self, first: Callable[[int, Any], object], number: int, frame: Any) -> None:
        if not self._reactor_ends:
            self._reactor_ends = True
            first(number, frame)
        elif not self._asked_again:
            self._asked_again = True
            # The reactor calls `stop` at the end of the turn in which it is told to stop: this waits until the next.
            self._reactor.callFromThread(self._reactor.callFromThread, self.stop_again)

    def _started(self, _: None) -> None:
        line = self._describe()
        if self._logs_line:
            log.info("{log_text}", log_text=line)
        self.announce(line)
        notify_ready()

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError):
            return  # asked to stop before it had started
        if not failure.check(*EXPECTED):
            log.failure("Unexpected error at the start", failure)
        self.end(explain_failure(failure))


class TunedShell(Shell):
    """A shell whose process does nothing else: once the service has started, the interpreter is set to serve.

    new_objects: see `tune_interpreter`.
    """

    new_objects = NEW_OBJECTS

    def _started(self, result: None) -> None:
        tune_interpreter(self.new_objects)
        super()._started(result)


def log_is_apart(output: LogOutput) -> bool:
    """Whether the log is not shown where standard output is: the same terminal, pipe or file."""
    if output.style != TEXT or output.file is not None:
        return True
    try:
        return not os.path.sameopenfile(1, 2)
    except OSError:  # one is closed
        return True


def run_in_foreground(shell: Shell, reactor: Any, name: str, style: str = TEXT) -> int:
    """Run the reactor and a shell until SIGTERM, SIGINT or a failure. Return the process's exit status.

    A failure is the last line on standard error, after `name` and a colon. style: the format of the log; with JSON, the
    failure is the last line of the log.
    """
    reactor.addSystemEventTrigger("before", "shutdown", shell.stop)
    reactor.callWhenRunning(shell.handle_signals)
    reactor.callWhenRunning(shell.start)
    reactor.run()
    ignore_late_signals()
    if shell.reason is None:
        log.info("Stopped")
        return 0
    if style == TEXT:
        print(printable(f"{name}: {shell.reason}"), file=sys.stderr)
    else:
        log.critical("{program}: {reason}", program=name, reason=shell.reason)
    return 1


def ignore_late_signals() -> None:
    """Ignore SIGTERM and SIGINT from now on.

    Python restores the default handlers while it exits, so that a late signal would change the exit status.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def explain_failure(failure: Failure) -> str:
    """Return one line that tells an operator why a start failed."""
    error = failure.value
    if isinstance(error, CannotListenError):
        host = error.interface or "*"
        why = error.socketError  # an OSError, or the resolver's error of the same form
        return f"can't listen on {host}:{error.port}: {getattr(why, 'strerror', None) or why}"
    if isinstance(error, PylogdError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'the system'}: {error.strerror or error}"
    return f"unexpected {type(error).__name__}: {error}"


def notify_ready() -> None:
    """Tell systemd that the service is ready (sd_notify(3)), if systemd started it with Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.send(b"READY=1")
        except OSError as error:
            log.warn("Can't tell systemd that the service is ready: {error}", error=error)
