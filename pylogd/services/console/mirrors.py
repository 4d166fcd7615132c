"""The routes of mirrors to and from a cluster, from the metrics pages of processes of `pylogd mirror run --listen`.

Strategy: each process has figures of the partitions that it copies, so a route is the sum of all processes. Rates are
those between the last two reads of a process. A process that does not answer is shown with the reason; then the routes
lack its partitions.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pylogd.services.console.series import POINTS
from pylogd.web.client import open_url, read_body

_SECONDS: Final = 5.0
_MOST_BYTES: Final = 4 << 20
_SAMPLE: Final = re.compile(r"^pylogd_mirror_(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(slots=True)
class Route:
    """A route, summed over all processes.

    copied, starting, set_aside: the numbers of partitions by state.
    lag: the records that are not copied yet.
    lag_max: the records of the partition with the most.
    lag_seconds: the longest time for which records have waited. These three are None while no process knows them.
    refused: the topics that are not copied.
    bytes_rate, records_rate: bytes and records per second; None before the second read.
    lags: pairs of the last reads: the second since 1970, and the lag.
    """

    name: str
    copied: int = 0
    starting: int = 0
    set_aside: int = 0
    lag: float | None = None
    lag_max: float | None = None
    lag_seconds: float | None = None
    refused: int = 0
    lost: float = 0.0
    throttled: float = 0.0
    bytes_rate: float | None = None
    records_rate: float | None = None
    lags: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=POINTS))

    @property
    def state(self) -> str:
        """The state for operators: `copying`, `starting`, `set aside` (after errors) or `no partitions`."""
        if self.set_aside:
            return "set aside"
        if self.starting:
            return "starting"
        return "copying" if self.copied else "no partitions"


class Process(NamedTuple):
    """A process of a mirror.

    problem: the reason why it is not known, or "".
    interruptions: how often copying has started again after errors.
    """

    url: str
    problem: str = ""
    controller: bool = False
    file_valid: bool = True
    commits: int = 0
    interruptions: int = 0


class Mirrors(NamedTuple):
    """All routes by name, and all processes."""

    routes: Mapping[str, Route]
    processes: Sequence[Process]


class _Metric(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


class MirrorReader:
    """Reads the metrics pages of a cluster's mirror processes. Its calls block: use a thread."""

    def __init__(
        self, urls: Sequence[str], now_ms: Callable[[], int], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        """`urls` are those of the processes' metrics pages. `now_ms` is the wall clock, `seconds` a monotonic one."""
        self._urls = urls
        self._now_ms = now_ms
        self._seconds = seconds
        self._before: dict[tuple[str, str, str], tuple[float, float]] = {}
        self._lags: dict[str, deque[tuple[int, float]]] = {}

    def read(self) -> Mirrors:
        """Ask all processes of the mirrors once. Return their routes, added up by name."""
        routes: dict[str, Route] = {}
        processes = []
        for url in self._urls:
            try:
                with open_url(url, _SECONDS) as answer:
                    text = read_body(answer, _MOST_BYTES).decode("utf-8", "replace")
                processes.append(self.add(url, text, routes))
            except (OSError, ValueError) as error:
                processes.append(Process(url, str(error)))
        for name, route in routes.items():
            route.lags = self._lags.setdefault(name, route.lags)
            if route.lag is not None:
                route.lags.append((self._now_ms() // 1000, route.lag))
        return Mirrors(dict(sorted(routes.items())), processes)

    def add(self, url: str, text: str, routes: dict[str, Route]) -> Process:
        """Add a page's figures to the routes. Return its process. Raises ValueError if it is not a page of a mirror."""
        metrics = list(_metrics(text))
        if not any(one.name == "is_controller" for one in metrics):
            raise ValueError("it is not a page of a mirror")
        single: dict[str, float] = {}
        for one in metrics:
            if "route" in one.labels:
                name = one.labels["route"]
                self._take(url, one, routes.setdefault(name, Route(name)))
            else:
                single[one.name] = single.get(one.name, 0.0) + one.value
        return Process(
            url, "", bool(single["is_controller"]), bool(single.get("file_is_valid", 1)),
            int(single.get("commits_total", 0)), int(single.get("interruptions_total", 0)),
        )  # fmt: skip

    def _take(self, url: str, one: _Metric, route: Route) -> None:
        """Add a metric of a route at one process."""
        value = one.value
        if one.name == "partitions" and one.labels.get("state") in ("copied", "starting", "set_aside"):
            state = one.labels["state"]
            setattr(route, state, getattr(route, state) + int(value))
        elif one.name == "lag_records":
            route.lag = _sum(route.lag, value)
        elif one.name == "lag_records_max":
            route.lag_max = max(route.lag_max or 0.0, value)
        elif one.name == "lag_seconds":
            route.lag_seconds = max(route.lag_seconds or 0.0, value)
        elif one.name == "refused_topics":
            route.refused += int(value)
        elif one.name == "lost_records_total":
            route.lost += value
        elif one.name == "throttled_seconds_total":
            route.throttled += value
        elif one.name == "copied_bytes_total":
            route.bytes_rate = _sum(route.bytes_rate, self._rate(url, one, route))
        elif one.name == "copied_records_total":
            route.records_rate = _sum(route.records_rate, self._rate(url, one, route))

    def _rate(self, url: str, one: _Metric, route: Route) -> float | None:
        """Return the growth of a counter per second since the last read; None if it is unknown."""
        key, now = (url, route.name, one.name), self._seconds()
        before, self._before[key] = self._before.get(key), (one.value, now)
        if before is None or now <= before[1] or one.value < before[0]:
            return None
        return (one.value - before[0]) / (now - before[1])


def _sum(value: float | None, more: float | None) -> float | None:
    return value if more is None else (value or 0.0) + more


def _metrics(text: str) -> Iterator[_Metric]:
    """Yield the metrics of a mirror on a page in Prometheus's text format, without the prefix of their names."""
    for name, labels, value in _SAMPLE.findall(text):
        found = {label: _ESCAPED.sub(_unescaped, given) for label, given in _LABEL.findall(labels)}
        yield _Metric(name, found, float(value))


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
