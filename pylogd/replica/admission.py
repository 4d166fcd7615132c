"""How a broker becomes a live one: not before the cluster has ceased to count on copies that it lost.

Strategy: what a broker has is known only to itself, once its logs are loaded. It compares that with the tree: data
directories that it was last registered with and that are not there, and ones that may lack what its machine had not
written when it stopped. Where there are any it registers as fenced, which makes it no live broker and ends every join
of an in-sync set under way for it; then it takes itself out of the in-sync and eligible sets that its lost copies stood
in, and only then it is let in.

Rules:
- A copy is lost if its log is in no data directory and one of the former directories is gone. Otherwise a partition
  without a log is one whose log was never made.
- A copy is suspect if it lies in a directory that is (`LogManager.suspect`), or if its log is nowhere and may have been
  made in one. The only replica of a partition is not: nobody has more.
- Nothing is forgotten by a crash in between: the tree keeps the former directories, and each directory the boot id
  that makes it suspect, until all is written.

Must not know: who leads next, requests.

Source: KIP-966 (unclean shutdowns), KIP-858 (directory ids), KIP-903 (broker epochs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.metadata.eligibility import restore, withdraw
from pylogd.metadata.errors import BadVersion, NoNode, StalePartition
from pylogd.metadata.image import Broker, PartitionState, Topic, TopicUpdate

if TYPE_CHECKING:
    from pylogd.log.manager import LogManager
    from pylogd.metadata.cluster import Cluster
    from pylogd.metadata.topics import TopicRegistry

log = Logger()

_NO_ID = bytes(16)


async def admit(
    cluster: Cluster, topics: TopicRegistry, logs: LogManager, broker: Broker, in_thread: Callable[..., Deferred[Any]]
) -> None:
    """Register `broker`, whose logs are loaded, and make it a live one once its lost copies count no more.

    Fails with `NodeIdInUse`, or what the store fails with.
    """
    former, present = await cluster.former_directories(), logs.directory_ids
    if len(logs.healthy) < len(logs.directories):  # a failed one has an id that can't be read: its copies may come back
        present |= former
    gone, suspect = former - present, logs.suspect
    fenced = bool(gone or suspect)
    broker = replace(broker, directories=tuple(sorted(present)), fenced=fenced)
    await cluster.register(broker)
    await _correct(cluster.node_id, topics, logs, gone, suspect)
    if fenced:
        await cluster.unfence()
    await in_thread(logs.trust)


async def _correct(
    node: int, topics: TopicRegistry, logs: LogManager, gone: frozenset[str], suspect: frozenset[str]
) -> None:
    """Write what the tree has to know of this broker's copies before it is counted on."""
    if gone or suspect:
        await topics.catch_up()
    while True:
        updates = []
        for topic in topics.all():
            after = tuple(_correct_state(node, topic, state, logs, gone, suspect) for state in topic.partitions)
            if any(new is not old for new, old in zip(after, topic.partitions, strict=True)):
                updates.append(TopicUpdate(topic, after))
        if not updates:
            return
        try:
            await topics.write_states(updates)
        except (BadVersion, NoNode, StalePartition):
            await topics.catch_up()
            continue
        _report(node, updates)


def _correct_state(
    node: int, topic: Topic, state: PartitionState, logs: LogManager, gone: frozenset[str], suspect: frozenset[str]
) -> PartitionState:
    if node not in state.replicas:
        return state
    key = topic.name, state.index
    stored = logs.logs.get(key)
    there = stored is not None and stored.topic_id in (topic.topic_id, _NO_ID)
    if gone and not there:
        return withdraw(state, node, kept=False, directories=gone)
    directory = logs.directory_id_of(key) if there else None
    if len(state.replicas) > 1 and (directory in suspect if there else suspect):
        return withdraw(state, node, kept=True)
    return state if directory is None else restore(state, node, directory)


def _report(node: int, updates: list[TopicUpdate]) -> None:
    """Tell an operator which copies do not count."""
    lost = suspect = 0
    for before, after in updates:
        for old, new in zip(before.partitions, after, strict=True):
            if new is old:
                continue
            if node in new.last_known_elr:
                suspect += new.lost == old.lost
                continue
            lost += 1
            if new.lost:
                log.error(
                    "{topic}-{index}: its records are in a data directory that is not there ({ids}) and on no other "
                    "broker; put the directory back and restart, or give the records up with `pylogd cluster elect "
                    "--unclean`",
                    topic=before.name, index=new.index, ids=", ".join(new.lost),
                )  # fmt: skip
    if lost:
        log.warn(
            "{count} replicas of this broker are gone with a data directory: they are copied again from the other "
            "brokers, and can't lead before that", count=lost,
        )  # fmt: skip
    if suspect:
        log.warn(
            "{count} replicas of this broker may lack the last records, since its machine stopped without warning: "
            "they can't lead before they have caught up, unless nobody else has more", count=suspect,
        )  # fmt: skip
