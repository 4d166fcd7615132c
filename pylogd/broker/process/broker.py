"""A broker in its process: what `pylogd broker`, `twistd pylogd` and the crash tests run.

It takes as many open files as the system allows, handles SIGHUP (`reload`) and SIGUSR1, closes the connections at a
second SIGTERM or SIGINT, and tunes the interpreter once the broker serves.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from twisted.logger import Logger

from pylogd import __version__
from pylogd.base.process.logs import LogOutput
from pylogd.base.process.shell import TunedShell, process_reactor, run_in_foreground
from pylogd.base.process.tuning import raise_file_limit, tune_allocator
from pylogd.broker.broker import Broker
from pylogd.broker.log.files import FileSystem
from pylogd.broker.process.monitored import MonitoredBroker
from pylogd.broker.process.reload import Reloader
from pylogd.config import Settings

log = Logger()


class BrokerShell(TunedShell):
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
        self._monitored = MonitoredBroker(self.broker, reactor)
        super().__init__(reactor, self._monitored, self._line)
        self.broker.on_end = self.end
        self._reopen_log = reopen_log
        Reloader(settings, self.broker.in_thread, self._reopen_logs, self.broker.read_certificates).install(reactor)

    def stop_again(self) -> None:
        log.info("Second signal to stop: closing the remaining connections without waiting")
        self.broker.abort_connections()

    def _reopen_logs(self) -> None:
        if self.broker.security.audit is not None:
            self.broker.security.audit.reopen()
        if self._reopen_log is not None:
            self._reopen_log()

    def _line(self) -> str:
        broker = self.broker
        where = ", ".join(str(listener) for listener in broker.listeners)
        directories = ", ".join(broker.settings.words("log.dirs"))
        url = self._monitored.metrics_url
        metrics = "" if url is None else f", metrics at {url}"
        return f"pylogd {__version__} listens on {where} (node {broker.node_id}, data in {directories}{metrics})"


def run_broker(
    settings: Settings,
    announce: Callable[[str], object],
    output: LogOutput | None = None,
    fs: FileSystem | None = None,
) -> int:
    """Run a broker until SIGTERM or SIGINT. Return the process's exit status, as `pylogd.base.process.shell` has it.

    `announce` is told, once, where the broker listens. The log goes to `output`, or to standard error. SIGUSR1 reopens
    its file, SIGHUP does that and reloads the settings.
    """
    reactor = process_reactor()
    output = output or LogOutput()
    output.begin()
    shell = BrokerShell(reactor, settings, reopen_log=output.reopen, fs=fs)
    output.reopen_on(reactor, signal.SIGUSR1)
    shell.announce_to(announce, output)
    return run_in_foreground(shell, reactor, output.program, output.style)
