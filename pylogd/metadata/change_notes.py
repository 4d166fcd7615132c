"""What `/changes` and its log tell of a write to the metadata: which nodes it changed, and how, if that is not much.

Strategy: every broker reads each note, and when many brokers fail, a note has the states of thousands of partitions. So
many states are compressed, which takes a fraction of the time that it takes to encode and decode them.

Must not know: stores, what the nodes mean.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pylogd.metadata.image import PartitionState


class News(NamedTuple):
    """The new states of some of a topic's partitions, for brokers that read of the write.

    assignment_version: of the topic's node to which they belong. version: of the state node. data: content of a state
    node that has no other partitions. known: what it makes of the topic, if this broker wrote it: the controller epoch,
    and the states of all partitions.
    """

    assignment_version: int
    version: int
    data: bytes | Mapping[str, Any]
    known: tuple[int, tuple[PartitionState, ...]] | None = None


class Change(NamedTuple):
    """What `/changes` tells of a write: the paths that it changed, and the new content of some state nodes."""

    paths: Sequence[str]
    states: Mapping[str, News] = MappingProxyType({})


#: Where the new states are. Earlier releases expect whole state nodes in "states"; they read the nodes instead.
_CHANGED: Final = "changed"
#: Where many new states are: compressed with zlib, encoded as base64. Earlier releases read the nodes instead.
_COMPRESSED: Final = "compressed"
_MANY_BYTES: Final = 4096


def encode_change(change: Change) -> bytes:
    """Encode `/changes`, or an entry of its log."""
    states = [
        b"%s:[%d,%d,%s]" % (json.dumps(path).encode(), news.assignment_version, news.version, news.data)
        for path, news in change.states.items()
    ]
    paths = json.dumps(list(change.paths), separators=(",", ":")).encode()
    name, told = _CHANGED, b"{%s}" % b",".join(states)
    if len(told) > _MANY_BYTES:
        name, told = _COMPRESSED, b'"%s"' % base64.b64encode(zlib.compress(told, 1))
    return b'{"version":2,"paths":%s,"%s":%s}' % (paths, name.encode(), told)


def decode_change(data: bytes) -> Change | None:
    """Decode `/changes`; return None if it can't be read, in which case all nodes have to be read."""
    try:
        document = json.loads(data)
        paths = document.get("paths")
        told = document.get(_CHANGED) or document.get("states", {})
        if _COMPRESSED in document:
            told = json.loads(zlib.decompress(base64.b64decode(document[_COMPRESSED], validate=True)))
        states = {
            path: News(int(assignment), int(version), dict(content))
            for path, (assignment, version, content) in told.items()
        }
    except (TypeError, ValueError, AttributeError, RecursionError, zlib.error):
        return None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return None
    return Change(paths, states)
