"""The two metadata stores behave alike: any sequence of operations has the same results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylogd.store.errors import NodeError
from pylogd.store.interfaces import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    IMetadataStore,
    Node,
    NodeStat,
    SetData,
    WatchEvent,
)
from tests.fakes.metadata import InlineStore, result_of
from tests.zookeeper import ZooKeeper, ZooKeeperBench

NODES = ["/a", "/b", "/a/x", "/a/y", "/a/x/deep", "/none/there"]
PATHS = st.sampled_from(NODES)
READ = st.sampled_from([*NODES, "/"])
READS = ["get", "exists", "children", "children_data", "ensure", "watched get", "watched exists", "watched children"]
VERSIONS = st.sampled_from([ANY_VERSION, ANY_VERSION, 0, 1, 2])
DATA = st.binary(max_size=3)
OPERATIONS = st.one_of(
    st.builds(Create, PATHS, DATA, st.booleans()),  # not sequential nodes, which the stores number differently
    st.builds(SetData, PATHS, DATA, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)
CALLS = st.one_of(
    st.tuples(st.just("multi"), st.lists(OPERATIONS, max_size=4)),
    st.tuples(st.sampled_from(READS), READ),
    st.tuples(st.just("get_many"), st.lists(READ, max_size=4)),
)


class Observed:
    """A store, and the watch events that it has delivered."""

    def __init__(self, store: IMetadataStore, wait: Any) -> None:
        self.store, self.wait = store, wait
        self.events: list[WatchEvent] = []

    def ask(self, call: str, argument: Any) -> Any:
        """Return the result in a form in which two stores can be compared."""
        watched, _, name = call.rpartition(" ")
        arguments = [argument, self.events.append] if watched else [argument]
        try:
            return plain(self.wait(getattr(self.store, name)(*arguments)))
        except NodeError as error:
            return type(error), error.operation

    def tree(self, path: str = "/") -> dict[str, Any]:
        """Return all nodes below `path`."""
        nodes = self.wait(self.store.children_data(path))
        found: dict[str, Any] = {}
        for name, node in nodes.items():
            child = f"{path.rstrip('/')}/{name}"
            found |= {child: plain(node), **self.tree(child)}
        return found


def plain(answer: Any) -> Any:
    """Return the result without transaction and session numbers, which differ between stores."""
    if isinstance(answer, Node):
        return answer.data, plain(answer.stat)
    if isinstance(answer, NodeStat):
        return answer.version, answer.owner != 0
    if isinstance(answer, dict):
        return {name: plain(node) for name, node in answer.items()}
    return list(map(plain, answer)) if isinstance(answer, list | tuple) else answer


@pytest.fixture
def on_zookeeper(zookeeper: ZooKeeper) -> Iterator[ZooKeeperBench]:
    bench = ZooKeeperBench(zookeeper.connect)
    yield bench
    bench.close()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(CALLS, max_size=25))
def test_both_stores_answer_alike(on_zookeeper: ZooKeeperBench, tmp_path: Path, calls: list[Any]) -> None:
    number = len(on_zookeeper.stores)
    remote = on_zookeeper.store(chroot=f"/{number}")
    local = InlineStore(tmp_path / f"{number}.sqlite")
    both = Observed(local, result_of), Observed(remote, on_zookeeper.wait)
    for one in both:
        one.wait(one.store.start())
    for call, argument in calls:
        answers = [one.ask(call, argument) for one in both]
        assert answers[0] == answers[1], (call, argument)
    trees = [one.tree() for one in both]  # a read after the changes: their watches have fired
    assert trees[0] == trees[1]
    events = [sorted((event.path, event.type.value) for event in one.events) for one in both]
    assert events[0] == events[1]
    for one in both:
        one.wait(one.store.close())
