"""Figures of brokers that are not in the Kafka protocol, from metrics pages: connections and reactor lag.

Strategy: each page is read in a thread, with limits on size and time, and only needed lines are parsed. The lag is the
mean between the last two reads. Figures that can't be read are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pylogd.base.threads import ThreadPool
from pylogd.web.client import open_url, read_body

_SECONDS: Final = 5.0
_MOST_BYTES: Final = 32 << 20
_NODE: Final = re.compile(r'^pylogd_build_info\{[^}]*\bnode="(\d+)"', re.MULTILINE)
_CONNECTIONS: Final = re.compile(r"^pylogd_connections\{[^}]*\} (\S+)", re.MULTILINE)
_LAG: Final = re.compile(r"^pylogd_reactor_lag_seconds_(sum|count) (\S+)", re.MULTILINE)


class _Lag(NamedTuple):
    total: float
    fired: float


class Figures:
    """Reads the brokers' metrics pages.

    last: the figures of each broker by its id, as of the last `read`.
    """

    def __init__(self, reactor: Any, urls: Sequence[str]) -> None:
        self._urls = urls
        self._pool = ThreadPool(reactor, 2, "console-figures")
        self._lags: dict[int, _Lag] = {}
        self.last: dict[int, Mapping[str, float]] = {}

    def stop(self) -> None:
        """End the threads that read the pages, once the present reads have ended."""
        self._pool.stop()

    async def read(self) -> list[str]:
        """Read the metrics pages of all brokers. Return a line for each that could not be read, with the reason."""
        problems = []
        found: dict[int, Mapping[str, float]] = {}
        for url in self._urls:
            try:
                text = await self._pool.defer(_fetch, url)
                node, figures = self.parse(text)
                found[node] = figures
            except (OSError, ValueError) as error:
                problems.append(f"the metrics at {url} are not known: {error}")
        self.last = found
        return problems

    def parse(self, text: str) -> tuple[int, Mapping[str, float]]:
        """Return a broker's id and figures. Raises ValueError if it is not a broker's page."""
        named = _NODE.search(text)
        if named is None:
            raise ValueError("it is not a page of a pylogd broker")
        node = int(named[1])
        figures = {"connections": sum(float(value) for value in _CONNECTIONS.findall(text))}
        parts = dict(_LAG.findall(text))
        if len(parts) == 2:
            now, before = _Lag(float(parts["sum"]), float(parts["count"])), self._lags.get(node)
            self._lags[node] = now
            if before is not None and now.fired > before.fired:
                figures["reactor lag"] = (now.total - before.total) / (now.fired - before.fired)
        return node, figures


def _fetch(url: str) -> str:
    with open_url(url, _SECONDS) as answer:
        return read_body(answer, _MOST_BYTES).decode("utf-8", "replace")
