"""The clusters that the console shows: how to reach them, and what is sampled of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.client import SecurityOptions
from pylogd.client.deferred import Admin, Cluster
from pylogd.console.decoding import Decoder
from pylogd.console.figures import Figures
from pylogd.console.sampler import ClusterSampler

_RETRY_SECONDS: Final = 8.0
_REQUEST_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A cluster. name: in paths and on pages. registry: URL of its schema registry, "" for none, with settings of
    `pylogd.schemas.access`. metrics: URLs of brokers' metrics pages. links: pages of other services, by their names.
    """

    name: str
    bootstrap: str
    security: SecurityOptions | None = None
    registry: str = ""
    registry_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)


class WatchedCluster:
    """A cluster with its connections and its sampler."""

    def __init__(self, reactor: Any, options: ClusterOptions, now_ms: Callable[[], int], interval: float) -> None:
        """interval: seconds between samples. Raises ValueError for settings of the registry that can't be used."""
        self.options = options
        self._reactor = reactor
        self.cluster = Cluster(
            options.bootstrap, client_id="pylogd-console", retry_timeout=_RETRY_SECONDS, bootstrap_timeout=0.0,
            request_timeout=_REQUEST_SECONDS, security=options.security, reactor=reactor,
        )  # fmt: skip
        self.admin = Admin(self.cluster)
        self.decoder = Decoder(options.registry, options.registry_settings)
        self._figures = Figures(reactor, options.metrics) if options.metrics else None
        self.sampler = ClusterSampler(self.cluster, reactor, now_ms, interval, self._figures)

    @property
    def name(self) -> str:
        """Its name."""
        return self.options.name

    def seconds(self) -> float:
        """Return the time of the clock that samples are taken by."""
        return float(self._reactor.seconds())

    def start(self) -> None:
        """Begin to sample."""
        self.sampler.start()

    def stop(self) -> None:
        """Stop sampling, and close the connections."""
        self.sampler.stop()
        if self._figures is not None:
            self._figures.stop()
        self.cluster.close()
