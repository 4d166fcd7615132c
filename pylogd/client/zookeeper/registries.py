"""The paths and formats of a group's registries in ZooKeeper, as in Kafka 0.8.

    /consumers/<group>/ids/<consumer>                 ephemeral   {"version":1,"subscription":{topic: streams},
                                                                   "pattern":"static","timestamp":"<ms>"}
    /consumers/<group>/owners/<topic>/<partition>     ephemeral   <consumer>-<stream>
    /consumers/<group>/offsets/<topic>/<partition>    lasting     the offset of the next record to read, as decimal text

A subscription by pattern has "white_list" (or, from other clients, "black_list") in place of "static", and the pattern
in place of the topic; every member finds the matching topics by itself.

Must not know: stores, which members are alive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pylogd.client.core.model import TopicPartition
from pylogd.store.errors import CorruptMetadata
from pylogd.store.interfaces import check_path
from pylogd.store.paths import INTERNAL_TOPICS

#: The kinds of subscriptions.
STATIC: Final = "static"
WHITE_LIST: Final = "white_list"
BLACK_LIST: Final = "black_list"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that a consumer reads, each with its number of streams, at least 1. With a `kind` other than STATIC
    there is one pattern in place of the topics; whole names must match it (WHITE_LIST) or must not (BLACK_LIST).

    Patterns never match internal topics.
    """

    topics: Mapping[str, int]
    kind: str = STATIC

    @classmethod
    def of(cls, wanted: Subscription | Mapping[str, int] | Iterable[str] | str | re.Pattern[str]) -> Subscription:
        """Return a subscription to topics, with or without numbers of streams, or to a pattern. Raises ValueError."""
        if isinstance(wanted, Subscription):
            return wanted
        if isinstance(wanted, re.Pattern):
            return cls({wanted.pattern: 1}, WHITE_LIST)
        if isinstance(wanted, str):
            wanted = [wanted]
        topics = dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(wanted, 1)
        if not topics or not all(topics) or any(streams < 1 for streams in topics.values()):
            raise ValueError("a subscription names at least one topic, and at least one stream of each")
        return cls(topics)

    def streams(self, known: Iterable[str]) -> dict[str, int]:
        """Return the number of streams of each topic: of the topics in `known` that match, or of all named topics."""
        if self.kind == STATIC:
            return dict(self.topics)
        pattern, streams = next(iter(self.topics.items()))
        compiled = re.compile(pattern)
        matches = self.kind == WHITE_LIST
        return {
            topic: streams
            for topic in known
            if topic not in INTERNAL_TOPICS and (compiled.fullmatch(topic) is not None) == matches
        }


class GroupPaths:
    """The nodes of one group."""

    def __init__(self, group: str) -> None:
        """Raises ValueError for a group name that is not a valid node name."""
        if "/" in group or not check_path(f"/consumers/{group}"):
            raise ValueError(f"{group!r} can't be the name of a group in ZooKeeper")
        self.group = group
        self.ids = f"/consumers/{group}/ids"
        self.owners = f"/consumers/{group}/owners"
        self.offsets = f"/consumers/{group}/offsets"

    def member(self, consumer: str) -> str:
        """Return the path of a consumer's node."""
        return f"{self.ids}/{consumer}"

    def owner(self, partition: TopicPartition) -> str:
        """Return the path of the node of a partition's owner."""
        return f"{self.owners}/{partition.topic}/{partition.partition}"

    def offset(self, partition: TopicPartition) -> str:
        """Return the path of the node of a partition's committed offset."""
        return f"{self.offsets}/{partition.topic}/{partition.partition}"


def encode_member(subscription: Subscription, now_ms: int) -> bytes:
    """Encode a consumer's node."""
    document = {
        "version": 1,
        "subscription": dict(subscription.topics),
        "pattern": subscription.kind,
        "timestamp": str(now_ms),
    }
    return json.dumps(document, separators=(",", ":")).encode("utf-8")


def decode_member(path: str, data: bytes) -> Subscription:
    """Decode a consumer's node. Raises `CorruptMetadata`."""
    document = _decode(path, data)
    try:
        kind = document.get("pattern", STATIC)
        topics = {str(topic): int(streams) for topic, streams in document["subscription"].items()}
        if kind not in (STATIC, WHITE_LIST, BLACK_LIST) or (kind != STATIC and len(topics) != 1):
            raise ValueError(f"a subscription of kind {kind!r} with {len(topics)} entries")
        if kind != STATIC:
            re.compile(next(iter(topics)))
    except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
        raise CorruptMetadata(path, repr(error)) from error
    return Subscription(topics, kind)


def decode_partitions(path: str, data: bytes) -> list[int]:
    """Decode the partitions of a topic's node, sorted. Raises `CorruptMetadata`."""
    try:
        return sorted(int(index) for index in _decode(path, data)["partitions"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptMetadata(path, repr(error)) from error


def encode_offset(offset: int) -> bytes:
    """Encode a committed offset."""
    return str(offset).encode("ascii")


def decode_offset(path: str, data: bytes) -> int:
    """Decode a committed offset. Raises `CorruptMetadata`."""
    try:
        return int(data)
    except ValueError as error:
        raise CorruptMetadata(path, repr(error)) from error


def _decode(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise CorruptMetadata(path, error) from error
    if not isinstance(document, dict):
        raise CorruptMetadata(path, "not a JSON object")
    return document
