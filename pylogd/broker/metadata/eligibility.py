"""Replicas that may lead a partition though they are not in sync (KIP-966): pure functions over a partition's state.

Strategy: while fewer replicas are in sync than `min.insync.replicas` demands, nothing is committed. So a replica that
leaves the in-sync set then still has all committed records: it is an eligible leader replica (ELR). Leaders and the
controller change in-sync sets only by `with_isr`, which keeps the eligible replicas up to date. If a broker finds that
one of its copies is lost or incomplete, it removes itself from both sets by `withdraw`, before it becomes live again.

Rules:
- All committed records are on every replica that is in sync or eligible, and on no other with certainty.
- A leader commits nothing while the in-sync set is too small, or while there are eligible replicas (`commits`). The
  state decides, so that brokers may have different values of a topic's settings for a while.
- Eligibility belongs to a copy, not to a broker: only the broker with the copy knows its condition.

Must not know: stores, brokers, time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pylogd.broker.metadata.image import NO_LEADER, PartitionState, Topic
from pylogd.config import Settings


def min_insync_of(settings: Settings, topic: Topic) -> int:
    """Return a topic's `min.insync.replicas`: its own, or the broker's."""
    own = topic.configs.get("min.insync.replicas")
    return settings.integer("min.insync.replicas") if own is None else int(own)


def commits(state: PartitionState, min_insync: int) -> bool:
    """Return whether a leader may commit records: enough replicas are in sync, and no other replica is eligible."""
    return not state.elr and len(state.isr) >= state.effective_min_insync(min_insync)


def with_isr(state: PartitionState, isr: tuple[int, ...], min_insync: int) -> PartitionState:
    """Return the state with another in-sync set and the same epochs.

    If the in-sync set becomes too small, the replicas that leave it are eligible until it is large enough again.
    """
    if len(isr) >= state.effective_min_insync(min_insync):
        return replace(state, isr=isr, elr=(), last_known_elr=())
    eligible = {*state.isr, *state.elr}.difference(isr)
    elr = tuple(node for node in state.replicas if node in eligible)
    last_known = tuple(node for node in state.last_known_elr if node not in isr and node not in eligible)
    return replace(state, isr=isr, elr=elr, last_known_elr=last_known)


def led_by(state: PartitionState, leader: int) -> PartitionState:
    """Return the state with another leader, or none, in the next leader epoch."""
    last = state.leader if leader == NO_LEADER and state.leader != NO_LEADER else state.last_known_leader
    if leader != NO_LEADER:
        last = NO_LEADER
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=state.partition_epoch + 1,
        last_known_leader=last,
        lost=state.lost if leader == NO_LEADER else (),
    )


def withdraw(state: PartitionState, node: int, *, kept: bool, directories: Iterable[str] = ()) -> PartitionState:
    """Return the state without `node` in sync, eligible or leading, since its copy is lost or may be incomplete.

    kept: whether the copy still exists, but its last records may be missing. If it is the last known leader's copy, the
        partition can continue with it when there is no other.
    directories: the ids of the directories from which a lost copy can still return.
    """
    counted = node in state.isr or node in state.elr
    if not counted and (kept or node not in state.last_known_elr):
        return state
    last_known = tuple(other for other in state.last_known_elr if other != node)
    after = replace(
        state,
        isr=tuple(other for other in state.isr if other != node),
        elr=tuple(other for other in state.elr if other != node),
        last_known_elr=(*last_known, node) if kept else last_known,
        partition_epoch=state.partition_epoch + 1,
    )
    if state.leader == node:
        after = replace(led_by(after, NO_LEADER), partition_epoch=after.partition_epoch)
    elif state.leader == state.last_known_leader == NO_LEADER and not after.isr:
        after = replace(after, last_known_leader=node)  # an earlier release wrote the state without it
    if not kept and after.last_known_leader == node and not after.isr and not after.elr:
        after = replace(after, lost=tuple(sorted(directories)))
    return after


def restore(state: PartitionState, node: int, directory: str) -> PartitionState:
    """Return the state after the last known leader found its lost copy in `directory`."""
    if state.leader != NO_LEADER or state.last_known_leader != node or directory not in state.lost:
        return state
    return replace(
        state, last_known_elr=(*state.last_known_elr, node), lost=(), partition_epoch=state.partition_epoch + 1
    )
