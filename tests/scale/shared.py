"""Let all brokers of a simulation share what each would decode for itself, so that thousands fit into one process.

What was decoded is immutable, and the same for all. The first broker to need it decodes it by the real code; each later
one is charged the processor time that this took.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from pylogd.broker.metadata import change_log, changes, cluster, entries, registrations
from pylogd.broker.metadata.change_notes import Change, News, decode_change
from pylogd.broker.metadata.entries import Entry
from pylogd.broker.metadata.image import Broker
from pylogd.broker.metadata.layout import decode_broker, decode_incarnations
from pylogd.broker.metadata.registrations import Registration
from tests.scale.clock import ScaleTime

_MOST_VALUES: Final = 100_000


class _Memory:
    """Results by key, the most recent ones, with what each took."""

    def __init__(self, time: ScaleTime, most: int) -> None:
        self._time = time
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[Any, float, Any]] = OrderedDict()

    def of(self, key: Hashable, make: Callable[[], Any], holds: Any = None) -> Any:
        """Return the result of `make` for the key. holds: what has to stay alive as long as the key is known."""
        found = self._kept.get(key)
        if found is not None:
            self._time.charge(found[1])
            return found[0]
        began = time.process_time()
        result = make()
        self._kept[key] = result, time.process_time() - began, holds
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return result


@contextmanager
def shared(time: ScaleTime) -> Iterator[None]:
    """Let the brokers of a simulation share decoded metadata."""
    topics, notes = _Memory(time, _MOST_VALUES), _Memory(time, 500)
    brokers, assignments = _Memory(time, _MOST_VALUES), _Memory(time, _MOST_VALUES)
    registered = _Memory(time, _MOST_VALUES)
    decode, with_states, assignment = entries._decode, Entry.with_states, entries._assignment

    def shared_decode(name: str, given: Any, nodes: Any, before: Any) -> Any:
        key = name, *(entries._stamp(node) for node in nodes)
        return topics.of(key, lambda: decode(name, given, nodes, before))

    def shared_states(entry: Entry, path: str, news: News) -> Any:
        if news.known is not None:
            return with_states(entry, path, news)  # the one that wrote it decodes nothing: others must not share that
        follows = (news.assignment_version, news.version) == (entry.assignment_version, entry.state_version + 1)
        created = entry.nodes[1][0]
        key = entry.topic.name, entry.nodes[0], (created, news.version), entry.nodes[2]
        return topics.of(key, lambda: with_states(entry, path, news)) if follows else None

    def shared_assignment(name: str, node: Any, before: Any) -> Any:
        return assignments.of((name, entries._stamp(node)), lambda: assignment(name, node, before))

    def shared_broker(path: str, data: bytes, incarnation: int = 0) -> Any:
        return brokers.of((path, incarnation, data), lambda: decode_broker(path, data, incarnation))

    def shared_registration(broker: Broker, *node: int) -> Registration:
        found: Registration = registered.of((id(broker), *node), lambda: Registration(broker, *node), broker)
        return found

    def shared_change(data: bytes) -> Change | None:
        found: Change | None = notes.of(id(data), lambda: decode_change(data), data)
        return found

    with (
        patch.object(entries, "_decode", shared_decode), patch.object(Entry, "with_states", shared_states),
        patch.object(entries, "_assignment", shared_assignment),
        patch.object(registrations, "decode_broker", shared_broker),
        patch.object(registrations, "Registration", shared_registration),
        patch.object(changes, "decode_change", shared_change), patch.object(change_log, "decode_change", shared_change),
        patch.object(
            cluster, "decode_incarnations",
            lambda data: notes.of(("incarnations", id(data)), lambda: decode_incarnations(data), data),
        ),
    ):  # fmt: skip
        yield
