"""A broker with its HTTP server of metrics and health, if `metrics.listener` is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from pylogd.broker.broker import Broker
from pylogd.config import ConfigError
from pylogd.config.listeners import METRICS_LISTENER as LISTENER
from pylogd.config.listeners import metrics_listener

if TYPE_CHECKING:
    from pylogd.broker.metrics.service import MetricsService


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
            text = f"{LISTENER} needs the package prometheus-client: pip install 'pylogd-broker[metrics]' ({error})"
            raise ConfigError(text, LISTENER) from error
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
