"""What clients' Metadata requests cost a broker of a large cluster: the real handler, on registries of the simulation.

Asked are, as most clients do, ten topics by name, and, as consumers of expressions and administrators do, all topics.
The first answer is encoded; later ones are joined of encoded pieces, of which a change renews what it changes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.metadata import metadata
from pylogd.broker.metadata.image import IsrChange
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.scale.cluster import LargeCluster, Member

_VERSION: Final = 13
_NAMED: Final = 10
_ASKED: Final = 200
_SETTLE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Answers:
    """What answers cost, in seconds of the processor or as the caller counts work, and how many bytes they have.

    first, again, changed, died: for all topics: the first one, one more, after a change of an in-sync set, after the
    death of a broker. named: for ten topics. named_changed: for ten topics, of which one has changed.
    """

    bytes: int
    first: float
    again: float
    changed: float
    died: float
    named_bytes: int
    named: float
    named_changed: float


class Client:
    """A client that asks one broker. worked: returns how much work has been done until now."""

    def __init__(self, member: Member, worked: Callable[[], float]) -> None:
        self._worked = worked
        self._clock = Clock()
        parts = SimpleNamespace(
            topics=member.metadata.topics, cluster=member.metadata.cluster, settings=member.settings, authorizer=None,
            clock=self._clock, metadata=member.metadata, advertised=lambda _: ("broker.example.org", 9092),
        )  # fmt: skip
        connection = SimpleNamespace(listener="PLAINTEXT", host="client")
        self._context = RequestContext(cast(Any, parts), cast(Any, connection), _VERSION)

    def ask(self, *names: str) -> tuple[bytes, float]:
        """Return the answer for topics, all if none is named, and the work that it took."""
        asked = [MetadataRequestTopic(name=name) for name in names] if names else None
        request = MetadataRequest(asked, allow_auto_topic_creation=False)
        began = self._worked()
        answer = metadata(self._context, request)
        found: list[bytes] = []
        if isinstance(answer, Deferred):
            answer.addCallback(found.append)
            while not found:
                self._clock.advance(0)
        else:
            found.append(answer)
        return found[0], self._worked() - began


def answers(
    cluster: LargeCluster, kill: Callable[[], object], worked: Callable[[], float] = time.process_time
) -> Answers:
    """Ask a broker of the cluster, with changes in between.

    kill: lets a broker die, and waits until all know. worked: returns how much work this process has done until now.
    """
    found = cluster.controller()
    member = [one for one in cluster.live() if one is not found][-1]  # not the one that dies
    client = Client(member, worked)
    whole, first = client.ask()
    again = statistics.median(client.ask()[1] for _ in range(_ASKED))
    topics = member.metadata.topics.all()
    names = [topic.name for topic in topics[:: max(len(topics) // _NAMED, 1)]][:_NAMED]
    few, _ = client.ask(*names)
    named = statistics.median(client.ask(*names)[1] for _ in range(_ASKED))
    change_isr(cluster, names[0])
    named_changed = client.ask(*names)[1]
    changed = client.ask()[1]
    kill()
    return Answers(len(whole), first, again, changed, client.ask()[1], len(few), named, named_changed)


def change_isr(cluster: LargeCluster, name: str) -> None:
    """Let the leader of a topic's first partition write it with one replica fewer in sync, then with all again."""
    found = cluster.controller()
    assert found is not None
    topic = found.metadata.topics.get(name)
    assert topic is not None
    state = topic.partitions[0]
    change = IsrChange(name, topic.topic_id, 0, state.leader_epoch, state.partition_epoch, state.isr[:-1])
    if state.isr[-1] == state.leader:
        change = IsrChange(name, topic.topic_id, 0, state.leader_epoch, state.partition_epoch, state.isr[1:])
    gone = next(node for node in state.isr if node not in change.isr)
    cluster.members[state.leader].alter([change])
    cluster.run(lambda: not cluster.all_in_sync() and cluster.all_know(), _SETTLE_SECONDS)
    cluster.readmit([gone])
    cluster.run(lambda: cluster.all_in_sync() and cluster.all_know(), _SETTLE_SECONDS)
