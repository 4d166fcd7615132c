"""Move the members of classic groups to the newer protocol, and back.

Rules: while a group is handed over its timer does not run, and nobody waits for it. See `migration`.
"""

from __future__ import annotations

from collections.abc import Callable

from pylogd.base.errors import ErrorCode
from pylogd.broker.groups.consumer.embedded import CONSUMER
from pylogd.broker.groups.group import ClassicGroup
from pylogd.broker.groups.membership import Membership
from pylogd.broker.groups.migration import Downgrade
from pylogd.broker.groups.states import GroupEvent


class Handover:
    """Hands over the members of all classic groups of a broker.

    membership: the rules of classic groups.
    """

    __slots__ = ("_membership", "_now_ms")

    def __init__(self, membership: Membership, now_ms: Callable[[], int]) -> None:
        self._membership = membership
        self._now_ms = now_ms

    def pause(self, group: ClassicGroup) -> None:
        """Stop a group's timer. Members that wait for a rebalance are told to join again."""
        self._membership.stop_timer(group)
        self._membership.answer_all(group, ErrorCode.REBALANCE_IN_PROGRESS)

    def resume(self, group: ClassicGroup) -> None:
        """Resume a paused group that keeps the classic protocol."""
        self._membership.renew_sessions(group)
        self._membership.set_next_timer(group)

    def release(self, group: ClassicGroup) -> None:
        """Remove all members from a group, since they belong to a group of the newer protocol now.

        The group's offsets stay.
        """
        self._membership.stop_timer(group)
        group.handle(GroupEvent.UPGRADED, self._now_ms())
        self._membership.forget_ids(group)
        group.remove_all()
        group.stored = False

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
        self._membership.rebalance(group)
