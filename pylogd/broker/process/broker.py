"""A broker in its process: what `pylogd broker`, `twistd pylogd` and the crash tests run.

It takes as many open files as the system allows, handles SIGHUP (`reload`) and SIGUSR1, closes the connections at a
second SIGTERM or SIGINT, and tunes the interpreter once the broker serves.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd import __version__
from pylogd.base.process.logs import LogOutput
from pylogd.base.process.shell import TunedShell, process_reactor, run_in_foreground
from pylogd.base.process.tuning import raise_file_limit, tune_allocator
from pylogd.broker.broker import Broker
from pylogd.broker.log.files import FileSystem
from pylogd.broker.process.reload import Reloader
from pylogd.config import ConfigError, Settings
from pylogd.config.listeners import METRICS_LISTENER, metrics_listener

if TYPE_CHECKING:
    from pylogd.broker.metrics.service import MetricsService

log = Logger()


class MonitoredBroker:
    """A broker and the HTTP server of its metrics and health. The server starts first and stops last."""

    def __init__(self, broker: Broker, reactor: Any) -> None:
        self._broker = broker
        self._reactor = reactor
        self._metrics: MetricsService | None = None

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics page; None without `metrics.listener`."""
        return None if self._metrics is None else self._metrics.url

    def start(self) -> Deferred[None]:
        """Fire once the broker serves. Fail, with everything undone, if it can't, or if metrics can't be served."""
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        metrics = self._metrics = self._make_metrics()
        if metrics is None:
            await self._broker.start()
            return
        await metrics.start()
        try:
            await self._broker.start()
        except BaseException:
            await metrics.stop()
            raise
        metrics.broker_started()

    def _make_metrics(self) -> MetricsService | None:
        listener = metrics_listener(self._broker.settings.text("metrics.listener"))
        if listener is None:
            return None
        try:
            from pylogd.broker.metrics.service import MetricsService  # noqa: PLC0415 - needs an optional package
        except ImportError as error:
            install = "pip install 'pylogd-broker[metrics]'"
            text = f"{METRICS_LISTENER} needs the package prometheus-client: {install} ({error})"
            raise ConfigError(text, METRICS_LISTENER) from error
        return MetricsService(self._broker, self._reactor, listener)

    def stop(self) -> Deferred[None]:
        """Fire once the broker has ended. `/healthz` and `/readyz` answer until then."""
        if self._metrics is not None:
            self._metrics.broker_stops()
        stopped = self._broker.stop()
        return stopped if self._metrics is None else stopped.addBoth(self._stop_metrics)

    def _stop_metrics(self, result: Any) -> Deferred[Any]:
        assert self._metrics is not None
        return Deferred.fromCoroutine(self._metrics.stop()).addCallback(lambda _: result)


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
