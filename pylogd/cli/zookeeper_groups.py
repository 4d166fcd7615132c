"""Groups whose consumers coordinate through ZooKeeper, with their lag, in the form of brokers' groups."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import click

from pylogd.cli.zookeeper import read_groups
from pylogd.client import Admin
from pylogd.client.core.model import (
    GroupDescription,
    GroupMember,
    GroupsDescribed,
    OffsetAndMetadata,
    TopicPartition,
)

KIND: Final = "zookeeper"
#: The coordinator of a group that no broker coordinates.
NO_COORDINATOR: Final = -1


def zookeeper_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for the ZooKeeper through which consumers coordinate."""
    option = click.option(
        "-z", "--zookeeper", metavar="HOST:PORT[,...][/CHROOT]", envvar="PYLOGD_ZOOKEEPER",
        help="Also the groups of consumers that coordinate through this ZooKeeper. Also from PYLOGD_ZOOKEEPER.",
    )  # fmt: skip
    return option(command)


def zookeeper_groups(admin: Admin, zookeeper: str | None, silent: Collection[int], timeout: float) -> GroupsDescribed:
    """Return the groups in ZooKeeper, with their offsets and the ends of the logs.

    zookeeper: the address of ZooKeeper; None returns no groups.
    silent: the brokers that did not answer before.
    timeout: the seconds to look up the ends.

    Raises ClickException if ZooKeeper does not answer.
    """
    found = read_groups(zookeeper) if zookeeper else []
    offsets = {each["group"]: _offsets(each["offsets"]) for each in found}
    groups = {each["group"]: _group(each) for each in found}
    owned = [partition for group in groups.values() for member in group.members for partition in member.assignment]
    partitions = {*owned, *(partition for known in offsets.values() for partition in known)}
    if not partitions:
        return GroupsDescribed(groups, offsets, {}, (), {})
    ends = admin.log_ends(sorted(partitions), silent, timeout)
    return GroupsDescribed(groups, offsets, ends.ends, ends.silent, {})


def _offsets(tree: dict[str, dict[str, str | None]]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic, int(partition)): OffsetAndMetadata(int(offset))
        for topic, partitions in tree.items()
        for partition, offset in partitions.items()
        if partition.isdecimal() and offset is not None and offset.isdecimal()
    }


def _group(found: dict[str, Any]) -> GroupDescription:
    assigned: dict[str, list[TopicPartition]] = {name: [] for name in found["consumers"]}
    for topic, partitions in found["owners"].items():
        for partition, owner in partitions.items():
            consumer = (owner or "").rpartition("-")[0]  # an owner is a stream of a consumer
            if partition.isdecimal() and consumer in assigned:
                assigned[consumer].append(TopicPartition(topic, int(partition)))
    members = tuple(
        GroupMember(name, None, "", "", tuple(sorted(found["consumers"][name])), tuple(partitions))
        for name, partitions in sorted(assigned.items())
    )
    return GroupDescription(found["group"], "Stable" if members else "Empty", KIND, "", NO_COORDINATOR, members)
