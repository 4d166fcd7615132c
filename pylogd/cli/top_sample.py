"""What `pylogd top` shows: figures of topics, groups and brokers, and the rates between two looks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.base.errors import KafkaError, PylogdError
from pylogd.cli.broker_summary import broker_summaries
from pylogd.cli.common import format_bytes
from pylogd.cli.output import Shown
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.model import GroupListing, GroupTotal, Topic

Records = list[dict[str, Any]]
VIEWS: Final = ("topics", "groups", "brokers")
#: The fields of each view; `>` is before the names of numbers.
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
    """The state of a cluster at a time (seconds of a monotonic clock).

    silent: the brokers that did not answer.
    """

    at: float
    ends: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    topics: Records = field(default_factory=list)
    groups: Records = field(default_factory=list)
    brokers: Records = field(default_factory=list)
    silent: list[int] = field(default_factory=list)

    def rows(self, view: str) -> Records:
        """Return the records of one of `VIEWS`."""
        found: Records = getattr(self, view)
        return found


class Sampler:
    """Sample a cluster periodically. Blocking: run it in its own thread."""

    def __init__(self, admin: Admin, timeout: float, now: Callable[[], float] = time.monotonic) -> None:
        """Make a sampler.

        timeout: the seconds to wait for the answers of brokers.
        now: a monotonic clock in seconds.
        """
        self._admin = admin
        self._timeout = timeout
        self._now = now
        self._before: Look | None = None

    def look(self) -> Look:
        """Sample the cluster. Rates cover the time since the last sample; None at the first. Raises PylogdError.

        Brokers that do not answer are in `silent`. What only they know is None, and groups that they coordinate are
        missing. Sizes are without their replicas.
        """
        admin = self._admin
        every = admin.list_topics(internal=True, timeout=self._timeout)
        live = admin.describe_cluster(self._timeout).brokers
        sizes, stored, silent = self._sizes([broker.node_id for broker in live])
        topics = [topic for topic in every if not topic.internal]
        online = [TopicPartition(t.name, one.index) for t in topics for one in t.partitions if one.leader >= 0]
        found = admin.log_ends(online, silent, self._timeout)
        silent.update(found.silent)
        ends: Counter[str] = Counter()
        for at in online:
            ends[at.topic] += found.ends.get(at, 0)
        for at in {*online}.difference(found.ends):
            ends.pop(at.topic, None)
        look = Look(self._now(), dict(ends), dict(sizes))
        look.groups = self._groups(silent)
        look.silent = sorted(silent)
        self._add_topics(look, topics)
        look.brokers = [
            {**row, "bytes": stored.get(row["broker"]), **({"state": "silent"} if row["broker"] in silent else {})}
            for row in broker_summaries(live, every, {})
        ]
        self._before = look
        return look

    def _sizes(self, nodes: Sequence[int]) -> tuple[Counter[str], dict[int, int], set[int]]:
        """Return the sizes of topics and of brokers in bytes, and the brokers that do not answer. Raises KafkaError."""
        sizes: Counter[str] = Counter()
        stored: dict[int, int] = {}
        silent = set()
        for node, answer in self._admin.log_dirs_by_broker(nodes, self._timeout).items():
            if isinstance(answer, KafkaError):
                raise answer
            if isinstance(answer, PylogdError):
                silent.add(node)
                continue
            stored[node] = 0
            for one in answer:
                for at, size in one.sizes.items():
                    sizes[at.topic] += size
                    stored[node] += size
        return sizes, stored, silent

    def _add_topics(self, look: Look, topics: Sequence[Topic]) -> None:
        old = self._before or look
        seconds = look.at - old.at
        sizes = old.sizes if old.silent == look.silent else {}  # the sizes of other replicas can't be compared
        for topic in topics:
            lagging = sum(len(one.isr) < len(one.replicas) for one in topic.partitions)
            bytes_ = look.sizes.get(topic.name, 0)
            look.topics.append({
                "topic": topic.name, "partitions": len(topic.partitions), "under_replicated": lagging,
                "leaderless": sum(one.leader < 0 for one in topic.partitions), "bytes": bytes_,
                "records_per_second": _rate(look.ends.get(topic.name), old.ends.get(topic.name), seconds),
                "bytes_per_second": _rate(bytes_, sizes.get(topic.name), seconds),
            })  # fmt: skip

    def _groups(self, silent: set[int]) -> Records:
        """Return the groups of brokers that answer, and add the other brokers to `silent`. Raises KafkaError."""
        listed: list[GroupListing] = []
        for node, answer in self._admin.groups_by_broker(self._timeout, silent).items():
            if isinstance(answer, KafkaError):
                raise answer
            if isinstance(answer, PylogdError):
                silent.add(node)
            else:
                listed += answer
        found = self._admin.group_totals(listed, silent, self._timeout)
        silent.update(found.silent)
        before = {} if self._before is None else {row["group"]: row["lag"] for row in self._before.groups}
        rows = []
        for one in sorted(listed):
            members, lag = found.groups.get(one.group_id, _UNKNOWN)
            was = before.get(one.group_id)
            rows.append({
                "group": one.group_id, "state": one.state, "members": members,
                "lag": lag, "lag_change": None if lag is None or was is None else lag - was,
            })  # fmt: skip
        return rows


def _rate(now: int | None, before: int | None, seconds: float) -> float | None:
    """Return the increase per second; None if it is unknown. Deletions count as 0."""
    if now is None or before is None or not seconds:
        return None
    return max(0.0, (now - before) / seconds)
