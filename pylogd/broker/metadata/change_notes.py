"""The notes in `/changes` and its log: the nodes that a write to the metadata changed, and small changes themselves.

Strategy: every broker reads each note, and when many brokers fail, a note is about thousands of partitions. So it has
the steps to their new states (`state_steps`): each kind of step once, and a character for each partition that changes.
States to which no step leads are included in full. Large parts are compressed.

Must not know: stores, what the nodes mean.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pylogd.broker.metadata.image import PartitionState
from pylogd.broker.metadata.state_steps import Step, Steps


class News(NamedTuple):
    """The new states of some of a topic's partitions, for brokers that read about the write.

    assignment_version: the version of the topic's node to which the states belong.
    version: the version of the state node.
    data: the steps to the states, or the content of a state node that has no other partitions.
    known: the result for the topic, if this broker made the write: the controller epoch, and the states of all
        partitions.
    """

    assignment_version: int
    version: int
    data: bytes | Mapping[str, Any] | Steps
    known: tuple[int, tuple[PartitionState, ...]] | None = None


class Change(NamedTuple):
    """A note about a write: the paths that it changed, and the new content of some state nodes."""

    paths: Sequence[str]
    states: Mapping[str, News] = MappingProxyType({})


#: The key under which a note has new states, if they are few. Earlier releases do not know this key: they look for a
#: key "states", and read the state nodes from the store if it is missing.
_CHANGED: Final = "changed"
#: The key of many new states, compressed with zlib and encoded as base64. Earlier releases do not know the key, and
#: read the nodes.
_COMPRESSED: Final = "compressed"
#: The key under which a note has the steps to new states: the kinds of step, and for each topic the position of its
#: path in "paths", the versions of its two nodes, the controller epoch, and a text. The text has a character for each
#: partition that changes, and the number of partitions between them that do not change. Many steps are compressed.
#: Earlier releases read the nodes instead.
_STEPS: Final = "steps"
_MANY_BYTES: Final = 4096
_FIRST_KIND: Final = ord("a")  # the character of the first kind of step
_PIECES: Final = re.compile("([0-9]+)|([^0-9]+)")


def encode_change(change: Change) -> bytes:
    """Encode `/changes`, or an entry of its log."""
    places = {path: place for place, path in enumerate(change.paths)}
    kinds: dict[Step, str] = {}
    whole, steps = [], []
    for path, news in change.states.items():
        versions = news.assignment_version, news.version
        if isinstance(news.data, Steps):
            steps.append((places[path], *versions, news.data.controller_epoch, _text_of(news.data, kinds)))
        else:
            whole.append(b"%s:[%d,%d,%s]" % (json.dumps(path).encode(), *versions, news.data))
    told = b"{%s}" % b",".join(whole)
    parts = [b'"version":2', b'"paths":' + _encode(list(change.paths))]
    if len(told) > _MANY_BYTES:
        parts.append(b'"%s":%s' % (_COMPRESSED.encode(), _compress(told)))
    else:
        parts.append(b'"%s":%s' % (_CHANGED.encode(), told))
    if steps:
        told = _encode([list(kinds), steps])
        parts.append(b'"%s":%s' % (_STEPS.encode(), _compress(told) if len(told) > _MANY_BYTES else told))
    return b"{%s}" % b",".join(parts)


def decode_change(data: bytes) -> Change | None:
    """Decode `/changes`. Return None if it can't be read; then all nodes have to be read."""
    try:
        document = json.loads(data)
        paths = document.get("paths")
        told = document.get(_CHANGED) or document.get("states", {})
        if _COMPRESSED in document:
            told = _decompress(document[_COMPRESSED])
        states = {
            path: News(int(assignment), int(version), dict(content))
            for path, (assignment, version, content) in told.items()
        }
        if _STEPS in document:
            steps = document[_STEPS]
            states.update(_decode_steps(paths, *(_decompress(steps) if isinstance(steps, str) else steps)))
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError, zlib.error):
        return None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return None
    return Change(paths, states)


def _text_of(told: Steps, kinds: dict[Step, str]) -> str:
    """Return the text of a topic's steps.

    kinds: the characters of known steps; new ones are added.
    """
    pieces = []
    expected = 0
    for index, step in told.steps.items():
        if index != expected:
            pieces.append(str(index - expected))
        if step not in kinds:
            kinds[step] = chr(_FIRST_KIND + len(kinds))
        pieces.append(kinds[step])
        expected = index + 1
    return "".join(pieces)


def _steps_of(text: str, kinds: Mapping[str, Step]) -> dict[int, Step]:
    """Return the steps of a topic, by partition, from their text."""
    steps: dict[int, Step] = {}
    index = 0
    for same, changed in _PIECES.findall(text):
        steps.update(enumerate(map(kinds.__getitem__, changed), index + int(same or 0)))
        index += int(same or 0) + len(changed)
    return steps


def _decode_steps(paths: Sequence[str], kinds: Sequence[Any], topics: Sequence[Any]) -> dict[str, News]:
    steps = {chr(_FIRST_KIND + at): _step(kind) for at, kind in enumerate(kinds)}
    return {
        paths[place]: News(int(assignment), int(version), Steps(int(epoch), _steps_of(text, steps)))
        for place, assignment, version, epoch, text in topics
    }


def _step(kind: Sequence[Any]) -> Step:
    step = tuple(map(int, kind))
    if len(step) < 3 or min(step) < 0:
        raise ValueError(f"{kind} is no step")
    return step


def _encode(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _compress(told: bytes) -> bytes:
    return b'"%s"' % base64.b64encode(zlib.compress(told, 1))


def _decompress(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
