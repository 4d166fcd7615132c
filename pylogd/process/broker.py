"""A broker in its process: what `pylogd broker`, `twistd pylogd` and the crash tests run.

It takes as many open files as the system allows, handles SIGHUP (`reload`) and a second SIGTERM or SIGINT, and tunes
the interpreter once the broker serves.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd import __version__
from pylogd.broker import Broker
from pylogd.config import Settings
from pylogd.log.files import FileSystem
from pylogd.process.logs import LogFile, log_to
from pylogd.process.reload import Reloader
from pylogd.process.shell import Shell, process_reactor, run_in_foreground
from pylogd.process.tuning import raise_file_limit, tune_allocator, tune_interpreter

log = Logger()


class BrokerShell(Shell):
    """A broker and what surrounds it. It handles SIGHUP from the moment it is made."""

    def __init__(
        self,
        reactor: Any,
        settings: Settings,
        *,
        reopen_log: Callable[[], object] | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        """`reopen_log` reopens the log file, on SIGHUP. `fs` is the logs' file system, by default the real one."""
        tune_allocator()
        self.broker = Broker(settings, reactor, fs, raise_file_limit())
        super().__init__(reactor, self.broker, self._line)
        self.broker.on_end = self.end
        self._reopen_log = reopen_log
        Reloader(settings, self.broker.in_thread, self._reopen_logs, self.broker.read_certificates).install(reactor)

    def stop(self) -> Deferred[None]:
        """Stop the broker. From now on a further SIGTERM or SIGINT closes its connections without waiting."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._reactor.callFromThread(self._abort))
        return super().stop()

    def _reopen_logs(self) -> None:
        if self.broker.audit is not None:
            self.broker.audit.reopen()
        if self._reopen_log is not None:
            self._reopen_log()

    def _abort(self) -> None:
        log.info("Second signal to stop: closing the remaining connections without waiting")
        self.broker.abort_connections()

    def _started(self, result: None) -> None:
        tune_interpreter()
        super()._started(result)

    def _line(self) -> str:
        broker = self.broker
        where = ", ".join(str(listener) for listener in broker.listeners)
        directories = ", ".join(broker.settings.words("log.dirs"))
        return f"pylogd {__version__} listens on {where} (node {broker.node_id}, data in {directories})"


def run_broker(
    settings: Settings,
    announce: Callable[[str], object],
    log_file: LogFile | None = None,
    fs: FileSystem | None = None,
) -> int:
    """Run a broker until SIGTERM or SIGINT. Return the process's exit status, as `pylogd.process.shell` has it.

    `announce` is told, once, where the broker listens. The log goes to `log_file`, or to standard error.
    """
    reactor = process_reactor()
    log_to(sys.stderr if log_file is None else log_file)
    shell = BrokerShell(reactor, settings, reopen_log=None if log_file is None else log_file.reopen, fs=fs)
    shell.announce = announce
    return run_in_foreground(shell, reactor, "pylogd")
