"""`/metrics`, `/healthz` and `/readyz` of a broker.

Strategy: the port is open before the broker starts, so that a long recovery differs from a dead process. A page of
metrics is made in steps. Requests that arrive meanwhile are answered after it, one at a time. A thread reads the
figures of the process, which are in files.

`/healthz` answers 200 as long as the reactor turns. `/readyz` answers 200 while the broker serves, and 503 with the
reasons otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import Metric
from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from pylogd.base.steps import in_steps
from pylogd.broker.metrics.collecting import BrokerMetrics
from pylogd.broker.metrics.disk_space import disk_bytes
from pylogd.broker.metrics.sampling import Samplers
from pylogd.broker.metrics.text import Writer, metrics
from pylogd.broker.telemetry import otlp
from pylogd.web.pages import Answer, HttpServer, Reply

if TYPE_CHECKING:
    from pylogd.broker.broker import Broker
    from pylogd.config import Listener

log = Logger()


class BrokerState(Enum):
    """The states of a broker, with the numbers of Kafka's metric."""

    STARTING = 1
    RUNNING = 3
    STOPPING = 7


class MetricsService:
    """The HTTP server of a broker's metrics and health."""

    def __init__(self, broker: Broker, reactor: Any, listener: Listener) -> None:
        self._broker = broker
        self._reactor = reactor
        self._listener = listener
        self._serving = False
        self._stopping = False
        self._samplers: Samplers | None = None
        self._lock = DeferredLock()
        self._takes_client_metrics = otlp.is_available()
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, GCCollector):
            collector(registry=self._process)
        pages: dict[str, Answer] = {"metrics": self._metrics, "healthz": self._healthz, "readyz": self._readyz}
        self._http = HttpServer(reactor, listener.endpoint, pages)

    @property
    def url(self) -> str:
        """The URL of the metrics."""
        host, port = self._http.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    async def start(self) -> None:
        """Open the port. Raises CannotListenError."""
        if self._listener.exposed:
            log.warn(
                "Everybody who can connect to {listener} can read this broker's metrics without a password: allow "
                "only the monitoring system to reach it (metrics.listener)", listener=self._listener.endpoint,
            )  # fmt: skip
        if not self._takes_client_metrics:
            log.info("Metrics of clients are not accepted: this needs the package opentelemetry-proto (pip install "
                     "'pylogd-broker[metrics]')")  # fmt: skip
        await self._http.start()

    def broker_started(self) -> None:
        """Start sampling. Call it when the broker has begun to serve."""
        self._samplers = Samplers(self._broker, self._reactor)
        self._samplers.start()
        self._broker.parts.telemetry.active = self._takes_client_metrics
        self._serving = True

    def broker_stops(self) -> None:
        """Stop sampling, and answer `/readyz` with 503 from now on."""
        self._serving, self._stopping = False, True
        self._broker.parts.telemetry.active = False
        samplers, self._samplers = self._samplers, None
        if samplers is not None:
            samplers.stop()

    async def stop(self) -> None:
        """Close the port. The Deferred fires once it is closed."""
        await self._http.stop()

    def not_ready(self) -> list[str]:
        """Return the reasons why the broker is not ready; empty if it is."""
        samplers = self._samplers
        if self._stopping:
            return ["the broker stops"]
        if not self._serving or samplers is None:
            return ["the broker starts: it recovers its logs, or waits for the controller"]
        reasons = []
        if not samplers.session.connected:
            reasons.append("the connection to the metadata store is lost")
        if not self._broker.storage.logs.healthy:
            reasons.append("all data directories are offline")
        return reasons

    # -- pages

    def _healthz(self, _accept: str) -> Reply:
        return Reply(b"ok\n")

    def _readyz(self, _accept: str) -> Reply:
        reasons = self.not_ready()
        return Reply("".join(f"{reason}\n" for reason in reasons).encode(), status=503) if reasons else Reply(b"ok\n")

    def _metrics(self, accept: str) -> Deferred[Reply]:
        return self._lock.run(lambda: Deferred.fromCoroutine(self._page(accept)))

    async def _page(self, accept: str) -> Reply:
        writer, samplers = Writer(accept), self._samplers
        for each in await self._broker.in_thread(self._read_process):
            writer.add(each)
        for each in metrics("kafka_server_kafkaserver_brokerstate", self._state().value):
            writer.add(each)
        if samplers is None:
            for each in metrics("pylogd_ready", 0.0):
                writer.add(each)
        else:
            await in_steps(samplers.walk(), self._reactor)
            found = BrokerMetrics(self._broker, samplers, lambda: not self.not_ready())
            await in_steps(_written(found.collect(), writer), self._reactor)
        return Reply(writer.end(), writer.kind)

    def _read_process(self) -> list[Metric]:
        found = list(self._process.collect())
        for name, count in disk_bytes().items():
            found += metrics(f"kafka_server_kafkaserver_linux_disk_{name}", count)
        return found

    def _state(self) -> BrokerState:
        if self._stopping:
            return BrokerState.STOPPING
        return BrokerState.RUNNING if self._serving else BrokerState.STARTING


def _written(metrics: Iterable[Metric], writer: Writer) -> Iterator[None]:
    for each in metrics:
        writer.add(each)
        yield
