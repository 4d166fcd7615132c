"""The administrator's client on asyncio: topics, settings, offsets, groups, the cluster. See `core/admin`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogd.client.aio.cluster import Cluster
from pylogd.client.core.admin.operations import Operations
from pylogd.client.core.options import ClientOptions


class Admin(Operations):
    """Administrative operations. It has its own connections, unless it is given a `Cluster`.

    Create it inside a running loop.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Cluster = "localhost:9092",
        options: ClientOptions | None = None,
        *,
        retry_timeout: float = 60.0,
        **settings: Any,
    ) -> None:
        """Nothing is connected yet.

        retry_timeout: the number of seconds for which an operation is retried.
        """
        chosen = ClientOptions.of(options, settings)
        self._own_cluster = not isinstance(bootstrap_servers, Cluster)
        self.cluster = bootstrap_servers if isinstance(bootstrap_servers, Cluster) else Cluster(
            bootstrap_servers, chosen, retry_timeout=retry_timeout
        )  # fmt: skip
        super().__init__(self.cluster, chosen.request_timeout)

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._own_cluster:
            self.cluster.close()
