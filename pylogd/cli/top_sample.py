"""What `pylogd top` shows: figures of topics, groups and brokers, and the rates between two looks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.cli.broker_summary import broker_summaries
from pylogd.cli.common import format_bytes
from pylogd.cli.output import Shown
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.offsets import LATEST
from pylogd.client.core.model import GroupTotal

Records = list[dict[str, Any]]
VIEWS: Final = ("topics", "groups", "brokers")
#: The fields of each view; `>` before those of numbers.
COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "topics": (
        "topic", ">partitions", ">records_per_second", ">bytes_per_second", ">bytes", ">under_replicated",
        ">leaderless",
    ),
    "groups": ("group", "state", ">members", ">lag", ">lag_change"),
    "brokers": (">broker", "state", "address", ">leads", ">should_lead", ">replicas", ">not_in_sync", ">bytes"),
}  # fmt: skip
_UNKNOWN: Final = GroupTotal(None, None)
SHOWN: Final[Shown] = {
    "bytes": format_bytes,
    "bytes_per_second": lambda value: f"{format_bytes(value)}/s",
    "records_per_second": lambda value: f"{value:.1f}",
}


@dataclass(slots=True)
class Look:
    """The state of a cluster at a time (seconds of a monotonic clock)."""

    at: float
    ends: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    topics: Records = field(default_factory=list)
    groups: Records = field(default_factory=list)
    brokers: Records = field(default_factory=list)

    def rows(self, view: str) -> Records:
        """Return the records of one of `VIEWS`."""
        found: Records = getattr(self, view)
        return found


class Sampler:
    """Sample a cluster periodically. Blocking: run it in its own thread."""

    def __init__(self, admin: Admin, now: Callable[[], float] = time.monotonic) -> None:
        """now: a monotonic clock, in seconds."""
        self._admin = admin
        self._now = now
        self._before: Look | None = None

    def look(self) -> Look:
        """Sample the cluster. Rates cover the time since the last sample; None at the first. Raises PylogdError."""
        admin, before = self._admin, self._before
        topics = admin.list_topics()
        every = admin.list_topics(internal=True)
        live = admin.describe_cluster().brokers
        online = [TopicPartition(t.name, one.index) for t in topics for one in t.partitions if one.leader >= 0]
        ends: Counter[str] = Counter()
        for at, found in admin.offsets(dict.fromkeys(online, LATEST)).items():
            ends[at.topic] += found.offset
        sizes: Counter[str] = Counter()
        stored: Counter[int] = Counter()
        for one in admin.describe_log_dirs([broker.node_id for broker in live]):
            for at, size in one.sizes.items():
                sizes[at.topic] += size
                stored[one.broker] += size
        look = Look(self._now(), dict(ends), dict(sizes))
        old = before or look
        seconds = look.at - old.at
        for topic in topics:
            lagging = sum(len(one.isr) < len(one.replicas) for one in topic.partitions)
            look.topics.append({
                "topic": topic.name, "partitions": len(topic.partitions), "under_replicated": lagging,
                "leaderless": sum(one.leader < 0 for one in topic.partitions), "bytes": sizes[topic.name],
                "records_per_second": _rate(ends[topic.name], old.ends.get(topic.name), seconds),
                "bytes_per_second": _rate(sizes[topic.name], old.sizes.get(topic.name), seconds),
            })  # fmt: skip
        look.groups = self._groups()
        look.brokers = [
            {**row, "bytes": stored[row["broker"]]} for row in broker_summaries(live, every, {})
        ]  # fmt: skip
        self._before = look
        return look

    def _groups(self) -> Records:
        listed = self._admin.list_groups()
        totals = self._admin.group_totals(listed).groups
        before = {} if self._before is None else {row["group"]: row["lag"] for row in self._before.groups}
        rows = []
        for one in listed:
            members, lag = totals.get(one.group_id, _UNKNOWN)
            was = before.get(one.group_id)
            rows.append({
                "group": one.group_id, "state": one.state, "members": members,
                "lag": lag, "lag_change": None if lag is None or was is None else lag - was,
            })  # fmt: skip
        return rows


def _rate(now: int, before: int | None, seconds: float) -> float | None:
    """Return the increase per second; None if it is unknown. Deletions count as 0."""
    if before is None or not seconds:
        return None
    return max(0.0, (now - before) / seconds)
