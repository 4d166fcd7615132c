"""What `/changes` and its log tell of a write to the metadata: which nodes it changed, and how, if that is not much.

Must not know: stores, what the nodes mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple


class News(NamedTuple):
    """The new states of some of a topic's partitions, for brokers that read of the write.

    assignment_version: of the topic's node to which they belong. version: of the state node. data: content of a state
    node that has no other partitions.
    """

    assignment_version: int
    version: int
    data: bytes | Mapping[str, Any]


class Change(NamedTuple):
    """What `/changes` tells of a write: the paths that it changed, and the new content of some state nodes."""

    paths: Sequence[str]
    states: Mapping[str, News] = MappingProxyType({})


#: Where the new states are. Earlier releases expect whole state nodes in "states"; they read the nodes instead.
_CHANGED: Final = "changed"


def encode_change(change: Change) -> bytes:
    """Encode `/changes`, or an entry of its log."""
    states = [
        b"%s:[%d,%d,%s]" % (json.dumps(path).encode(), news.assignment_version, news.version, news.data)
        for path, news in change.states.items()
    ]
    paths = json.dumps(list(change.paths), separators=(",", ":")).encode()
    return b'{"version":2,"paths":%s,"%s":{%s}}' % (paths, _CHANGED.encode(), b",".join(states))


def decode_change(data: bytes) -> Change | None:
    """Decode `/changes`; return None if it can't be read, in which case all nodes have to be read."""
    try:
        document = json.loads(data)
        paths = document.get("paths")
        states = {
            path: News(int(assignment), int(version), dict(content))
            for path, (assignment, version, content) in (document.get(_CHANGED) or document.get("states", {})).items()
        }
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return None
    return Change(paths, states)
