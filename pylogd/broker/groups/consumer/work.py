"""Make the changes of consumer groups, and estimate their work. Large changes are made in a thread.

The time of a change grows with the partitions, names of topics and members that it reads: some microseconds for each.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from pylogd.broker.groups.consumer.active_group import Made
from pylogd.broker.groups.consumer.group import ConsumerGroup
from pylogd.broker.groups.consumer.heartbeats import Change, FindTopic, Heartbeat, HeartbeatRefused, Match
from pylogd.broker.groups.consumer.records import encode

#: A change that reads more than this takes over 10 ms.
MUCH_WORK: Final = 3000


def work(
    group: ConsumerGroup, member_id: str, wanted: Set[str] | None, find: FindTopic, *, topics_changed: bool
) -> int:
    """Return about how many partitions, names and members a change for a member's request reads.

    wanted: the names of topics to which it subscribes now; None if unchanged.
    topics_changed: whether topics may have changed since the group's last change.
    """
    member = group.members.get(member_id)
    assigned = group.epoch == group.assignment_epoch
    if member is not None and wanted is None and assigned and not topics_changed:
        if group.is_settled(member):
            return 0
        return len(group.target_of(member_id)) + len(group.subscribed(member))
    alike = {(one.topics, one.regex): one for one in group.members.values()}
    subscriptions = [wanted or frozenset(), *map(group.subscribed, alike.values())]
    topics = map(find, frozenset[str]().union(*subscriptions))
    partitions = sum(len(topic.partitions) for topic in topics if topic is not None)
    return len(group.members) + sum(map(len, subscriptions)) + partitions


def matched(
    group: ConsumerGroup, request: Heartbeat, match: Match, *, topics_changed: bool
) -> dict[str, frozenset[str]]:
    """Return the topics that a member's regular expression matches, by the expression, if `beat` will ask.

    Raises HeartbeatRefused.
    """
    member = group.members.get(request.member_id) or group.members.get(
        group.instances.get(request.instance_id or "", "")
    )
    expression = request.regex if request.regex is not None or member is None else member.regex
    asks = expression and (topics_changed or expression not in group.matched)
    return {expression: match(expression)} if expression and asks else {}


def make_change(make: Callable[..., Change], find: FindTopic, stale: bool) -> Made | HeartbeatRefused:
    """Make a change and encode its records. This may run in a thread."""
    try:
        change = make(find=find, topics_changed=stale)
    except HeartbeatRefused as refused:
        return refused
    return Made(change, [*map(encode, change.records)])
