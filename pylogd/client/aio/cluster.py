"""A cluster on asyncio: its connections, its metadata, and single requests to its brokers."""

from __future__ import annotations

from collections.abc import Sequence

from pylogd.client.aio.loop import AioLoop
from pylogd.client.core.options import ClientOptions
from pylogd.client.evented.cluster import EventedCluster


class Cluster(EventedCluster):
    """See `EventedCluster`. Made inside a running loop."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        options: ClientOptions | None = None,
        *,
        retry_timeout: float = 60.0,
        bootstrap_timeout: float | None = None,
        auto_create_topics: bool = False,
    ) -> None:
        """Nothing is connected yet. Raises ValueError for an invalid address."""
        super().__init__(
            AioLoop(), bootstrap_servers, options or ClientOptions(), retry_timeout=retry_timeout,
            bootstrap_timeout=bootstrap_timeout, auto_create_topics=auto_create_topics,
        )  # fmt: skip

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
