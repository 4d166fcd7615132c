"""Up to where `pylogd mirror` has copied a topic, by its checkpoints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred, succeed

from pylogd.client.deferred import Cluster
from pylogd.services.audit.opening import MirrorOffsets
from pylogd.services.mirror.target import Checkpoint, SourcePartition
from tests.fakes.memory_broker import MemoryReactor


def test_checkpoints_of_the_source_and_of_topics_that_keep_their_names_count() -> None:
    source: Any = SimpleNamespace(describe_cluster=lambda: succeed(SimpleNamespace(cluster_id="home")))
    offsets = MirrorOffsets(source, Cluster("192.0.2.1:9092", reactor=MemoryReactor()))
    read: list[str] = []

    def checkpoint(offset: int) -> Checkpoint:
        return Checkpoint(b"", offset, 0, 7, 0)

    def refresh() -> Deferred[None]:
        read.append("read")
        return succeed(None)

    table = SimpleNamespace(refresh=refresh, checkpoints={
        SourcePartition("home", "t", 0, "t"): checkpoint(5),
        SourcePartition("home", "t", 1, "t"): checkpoint(6),
        SourcePartition("away", "t", 2, "t"): checkpoint(9),
        SourcePartition("home", "t", 0, "home.t"): checkpoint(8),
        SourcePartition("home", "u", 0, "u"): checkpoint(4),
    })  # fmt: skip
    offsets._table = cast("Any", table)
    found: list[Any] = []
    for _ in range(2):
        offsets.committed({"t"}).addCallback(found.append)
    assert found == [{("t", 0): 5, ("t", 1): 6}] * 2
    assert read == ["read"] * 2
