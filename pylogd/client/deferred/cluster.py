"""A cluster on Twisted: its connections, its metadata, and single requests to its brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogd.client.core.options import ClientOptions
from pylogd.client.deferred.loop import TwistedLoop
from pylogd.client.evented.cluster import EventedCluster
from pylogd.link.monotonic_reactor import monotonic_reactor


def default_reactor() -> Any:
    """Return the process's reactor; the first call installs it."""
    from twisted.internet import reactor  # noqa: PLC0415 - whoever imports it installs it

    return reactor


class Cluster(EventedCluster):
    """See `EventedCluster`."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        options: ClientOptions | None = None,
        *,
        retry_timeout: float = 60.0,
        bootstrap_timeout: float | None = None,
        auto_create_topics: bool = False,
        reactor: Any = None,
        **settings: Any,
    ) -> None:
        """Nothing is connected yet. Raises ValueError for an invalid address."""
        self.reactor = monotonic_reactor(default_reactor() if reactor is None else reactor)
        super().__init__(
            TwistedLoop(self.reactor), bootstrap_servers, ClientOptions.of(options, settings),
            retry_timeout=retry_timeout, bootstrap_timeout=bootstrap_timeout, auto_create_topics=auto_create_topics,
        )  # fmt: skip
