"""Move members of classic groups to the newer protocol and back: an extension of `membership`.

Rules: while a group is handed over its timer does not run, and nobody waits for it. See `migration`.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.embedded import CONSUMER
from pylogd.broker.groups.group import NEVER, ClassicGroup
from pylogd.broker.groups.membership import Membership, Store
from pylogd.broker.groups.migration import Downgrade, needs_rebalance
from pylogd.broker.groups.states import GroupEvent
from pylogd.broker.groups.values import JoinAnswer, SyncAnswer


class HandoverMembership(Membership):
    """The members of all classic groups of a broker."""

    def __init__(
        self,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        store: Store,
        forget: Callable[[ClassicGroup], object],
        first_delay: Callable[[], float],
        most_members: Callable[[], int],
        is_newer: Callable[[str], bool],
    ) -> None:
        """is_newer: returns whether there is a group of the newer protocol with an id. For others see `Membership`."""
        super().__init__(clock, now_ms, store, forget, first_delay, most_members)
        self._is_newer = is_newer

    def forget_unused(self, group: ClassicGroup) -> None:
        """Forget groups like `Membership`, but keep those whose id has a group of the newer protocol.

        They are kept even without offsets. Otherwise a commit that is refused, whoever sends it, would take the group
        from its members.
        """
        if not self._is_newer(group.group_id):
            super().forget_unused(group)

    def pause(self, group: ClassicGroup) -> None:
        """Stop a group's timer. Members that wait for a rebalance are told to join again."""
        self._stop_timer(group)
        joins, group.waiting_joins = group.waiting_joins, {}
        syncs, group.waiting_syncs = group.waiting_syncs, {}
        for member_id, join in joins.items():
            self._answer(join, JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, member_id))
        for sync in syncs.values():
            self._answer(sync, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))

    def resume(self, group: ClassicGroup) -> None:
        """Resume a paused group that keeps the classic protocol."""
        for member in group.members.values():
            self._renew_session(group, member)
        at = group.next_deadline()
        if at < NEVER:
            self._set_timer(group, at)

    def release(self, group: ClassicGroup) -> None:
        """Remove all members from a group, since they belong to a group of the newer protocol now.

        The group's offsets stay.
        """
        self._stop_timer(group)
        group.handle(GroupEvent.UPGRADED, self._now_ms())
        self._pending.expire(group, NEVER)
        group.remove_all()
        group.rebalance_at = group.sync_at = NEVER
        group.first_wait = group.newcomers = group.storing = group.stored = False

    def take_back(self, group: ClassicGroup, found: Downgrade) -> None:
        """Put members that return from the newer protocol into a group without members, and start a rebalance."""
        group.stored = True
        group.generation, group.protocol_type = found.generation, CONSUMER
        if not found.members:
            return
        for member in found.members:
            group.add(member)
        group.protocol = found.protocol
        group.handle(GroupEvent.DOWNGRADED, self._now_ms())
        self._rebalance(group)

    def loaded(self, group: ClassicGroup) -> None:
        """Start the sessions of a group that was read from the offsets topic, and a rebalance if it is needed."""
        super().loaded(group)
        if needs_rebalance(group):
            self._rebalance(group)

    def _rebalance(self, group: ClassicGroup) -> None:
        for member in group.members.values():
            self._renew_session(group, member)
        self._prepare(group)

    def _stop_timer(self, group: ClassicGroup) -> None:
        if group.timer is not None and group.timer.active():
            group.timer.cancel()
        group.timer = None
