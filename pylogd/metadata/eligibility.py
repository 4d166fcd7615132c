"""Who may lead a partition besides those in sync (KIP-966): pure functions over a partition's state.

Strategy: with fewer in-sync replicas than `min.insync.replicas` asks for, nothing is committed. So whoever leaves the
in-sync set then has all that is committed for as long as that lasts: it is an eligible leader replica (ELR). All who
write an in-sync set, the leaders and the controller, do it with `with_isr`, which keeps the two sets together. A broker
that finds that a copy of its own is lost takes itself out of both with `withdraw`, before anybody counts on it again.

Rules:
- The committed records are on every replica that is in sync or eligible, and on no other with certainty.
- A leader commits nothing while the in-sync set is too small, or while anybody is eligible beside it (`commits`): the
  state decides, so that it does not matter if brokers have different ideas of a topic's settings for a while.
- Eligibility belongs to a copy, not to a broker. The broker that has the copy knows best what became of it.

Must not know: stores, brokers, time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pylogd.config import Settings
from pylogd.metadata.image import NO_LEADER, PartitionState, Topic


def min_insync_of(settings: Settings, topic: Topic) -> int:
    """Return a topic's `min.insync.replicas`: its own, or the broker's."""
    own = topic.configs.get("min.insync.replicas")
    return settings.integer("min.insync.replicas") if own is None else int(own)


def commits(state: PartitionState, min_insync: int) -> bool:
    """Return whether a leader may commit records: enough replicas are in sync, and nobody else counts as up to date."""
    return not state.elr and len(state.isr) >= state.effective_min_insync(min_insync)


def with_isr(state: PartitionState, isr: tuple[int, ...], min_insync: int) -> PartitionState:
    """Return the state with another in-sync set, epochs as they are.

    Who leaves a set that becomes too small stays eligible; once the set is large enough again, nobody else is.
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
    """Return the state once `node` can't answer for its copy: it is neither in sync nor eligible, and leads no more.

    `kept`: the copy is there, and may lack its end; as that of the last known leader it is what a partition goes on
    with when there is no other. Else it is gone, and may come back in one of `directories` only.
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
        after = replace(after, last_known_leader=node)  # of a state that an earlier release wrote
    if not kept and after.last_known_leader == node and not after.isr and not after.elr:
        after = replace(after, lost=tuple(sorted(directories)))
    return after


def restore(state: PartitionState, node: int, directory: str) -> PartitionState:
    """Return the state once the last known leader has its copy back, in a directory that it was lost with."""
    if state.leader != NO_LEADER or state.last_known_leader != node or directory not in state.lost:
        return state
    return replace(
        state, last_known_elr=(*state.last_known_elr, node), lost=(), partition_epoch=state.partition_epoch + 1
    )
