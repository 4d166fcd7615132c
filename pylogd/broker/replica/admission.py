"""Register a broker at its start. It becomes live only when the cluster no longer relies on copies that it has lost.

Strategy: only the broker itself knows which copies it has, once its logs are loaded. It compares its data directories
with those that it registered last: some may be missing, and some may lack what its machine had not written when it
stopped. If there are any, it registers as fenced: it is not live, and every write that would let it join an in-sync set
fails. Then it removes itself from the in-sync and eligible sets to which its lost copies belonged, and becomes live.

Rules:
- A copy is lost if no data directory has its log, and a former directory is missing. If no directory is missing, the
  log was never made.
- A copy is suspect if its directory is suspect (`LogManager.suspect`), or if no directory has its log and it may have
  been made in a suspect directory. The only replica of a partition is never suspect, since no other one has more
  records.
- A crash in between does no harm: the former directories stay registered, and each suspect directory keeps its boot id,
  until everything is written.

Must not know: who leads next, requests.

Source: KIP-966 (unclean shutdowns), KIP-858 (directory ids), KIP-903 (broker epochs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.broker.metadata.eligibility import restore, withdraw
from pylogd.broker.metadata.errors import StalePartition
from pylogd.broker.metadata.image import Broker, PartitionState, Topic, TopicUpdate
from pylogd.store.errors import BadVersion, NoNode

if TYPE_CHECKING:
    from pylogd.broker.log.manager import LogManager
    from pylogd.broker.metadata.cluster import Cluster
    from pylogd.broker.metadata.topics import TopicRegistry

log = Logger()

_NO_ID = bytes(16)


async def admit(
    cluster: Cluster, topics: TopicRegistry, logs: LogManager, broker: Broker, in_thread: Callable[..., Deferred[Any]]
) -> None:
    """Register a broker, whose logs are loaded, and make it live once the cluster no longer relies on its lost copies.

    Fails with `NodeIdInUse` or the store's errors.
    """
    former, present = await cluster.own.former_directories(), logs.directory_ids
    # The id of a failed directory can't be read, and its copies may return.
    if len(logs.healthy) < len(logs.directories):
        present |= former
    gone, suspect = former - present, logs.suspect
    fenced = bool(gone or suspect)
    broker = replace(broker, directories=tuple(sorted(present)), fenced=fenced)
    await cluster.register(broker)
    await _correct(cluster.node_id, topics, logs, gone, suspect)
    if fenced:
        await cluster.own.unfence()
    await in_thread(logs.trust)


async def _correct(
    node: int, topics: TopicRegistry, logs: LogManager, gone: frozenset[str], suspect: frozenset[str]
) -> None:
    """Write to the partitions' states which of this broker's copies are lost, suspect, or found again."""
    if gone or suspect:
        await topics.catch_up()
    while True:
        updates = []
        for topic in topics.all():
            if not (gone or suspect or any(state.lost for state in topic.partitions)):
                continue
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
    if node not in state.replicas or not (gone or suspect or state.lost):
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
    """Tell the operator which copies are lost or suspect."""
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
                    "{topic}-{index} is offline: its records are in a missing data directory ({ids}) and on no other "
                    "broker. Put the directory back and restart, or give the records up with `pylogd cluster elect "
                    "--unclean`",
                    topic=before.name, index=new.index, ids=", ".join(new.lost),
                )  # fmt: skip
    if lost:
        log.warn(
            "{count} replicas of this broker are lost with a data directory: they are copied again from other "
            "brokers, and can't lead before that", count=lost,
        )  # fmt: skip
    if suspect:
        log.warn(
            "{count} replicas of this broker may lack the last records, since its machine stopped without warning: "
            "they can't lead before they have caught up, unless no other replica has more", count=suspect,
        )  # fmt: skip
