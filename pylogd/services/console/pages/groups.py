"""Groups, and one group with its members and its lag by partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.client.core.model import GroupDescription
from pylogd.services.console.answers import Answer, PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.groups import ends_of
from pylogd.services.console.listing import Column, Listing
from pylogd.services.console.sample import GroupState
from pylogd.services.console.series import UNKNOWN
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route
from pylogd.store.consumers import ZOOKEEPER

COLUMNS: Final = {
    "group": Column("Group", lambda one: one.group_id),
    "lag": Column("Lag", lambda one: one.lag, largest=True),
    "seconds": Column("Behind", lambda one: one.seconds, largest=True),
    "state": Column("State", lambda one: one.state),
    "members": Column("Members", lambda one: one.members, largest=True),
    "kind": Column("Protocol", lambda one: one.kind),
}
_MOST_MEMBERS: Final = 500


class OffsetRow(NamedTuple):
    """A partition in which a group has committed an offset.

    end, lag, seconds: the log's end, and the lag in records and in seconds; None if unknown.
    """

    topic: str
    partition: int
    committed: int
    end: int | None
    lag: int | None
    seconds: float | None


_OFFSET_COLUMNS: Final = {
    "topic": Column("Partition", lambda one: (one.topic, one.partition)),
    "lag": Column("Lag", lambda one: one.lag, largest=True),
    "seconds": Column("Behind", lambda one: one.seconds, largest=True),
    "committed": Column("Committed", lambda one: one.committed, largest=True),
    "end": Column("End", lambda one: one.end, largest=True),
}


@dataclass(eq=False, slots=True)
class Groups:
    """The pages of groups."""

    _view: View

    def routes(self) -> list[Route]:
        """Return the routes of these pages: method, path, handler and the lowest role."""
        return [
            route("GET", "/c/{cluster}/groups", self.groups),
            route("GET", "/c/{cluster}/groups/{group}", self.group),
            route("GET", "/c/{cluster}/groups/{group}/members", self.members),
        ]

    def groups(self, asked: PageRequest) -> Answer:
        """Return a page with the groups, filtered and sorted on request; by default the furthest behind come first."""
        cluster = self._view.cluster(asked)
        groups = cluster.sampler.last.groups.values()
        listing = Listing(groups, COLUMNS, lambda one: one.group_id, asked.options, "seconds")
        return self._view.page("groups.html", asked, cluster, "groups", listing=listing)

    def group(self, asked: PageRequest) -> Answer:
        """Return a page with a group's state, its lag over time, and its offset and lag in each partition."""
        cluster = self._view.cluster(asked)
        group = find_group(cluster, asked.parts["group"])
        listing = Listing(
            offset_rows(cluster, group),
            _OFFSET_COLUMNS,
            lambda one: f"{one.topic}:{one.partition}",
            asked.options,
            "lag",
        )
        chart: dict[str, Any] = {"times": cluster.sampler.times(len(group.series.records)), "unit": "records",
                                 "values": list(group.series.records)}  # fmt: skip
        return self._view.page("group.html", asked, cluster, "groups", group=group, listing=listing, chart=chart)

    async def members(self, asked: PageRequest) -> Answer:
        """Return a page with the members of a group. Its coordinator is asked for them: samples only count members."""
        cluster = self._view.cluster(asked)
        group = find_group(cluster, asked.parts["group"])
        described: GroupDescription | None = None
        problem = ""
        if group.kind == ZOOKEEPER:
            text = "They are in ZooKeeper, and in no broker: `pylogd groups describe --zookeeper` names them."
            return self._view.page(
                "members.html", asked, cluster, "groups", group=group, members=(), hidden=0, problem=text
            )
        try:
            described = await cluster.admin.describe_group(group.group_id)
        except PylogdError as error:
            problem = str(error)
        shown = () if described is None else described.members[:_MOST_MEMBERS]
        hidden = 0 if described is None else len(described.members) - len(shown)
        return self._view.page(
            "members.html", asked, cluster, "groups", group=group, members=shown, hidden=hidden, problem=problem
        )


def find_group(cluster: WatchedCluster, name: str) -> GroupState:
    """Return a group of the last sample. Raises Refused."""
    found = cluster.sampler.last.groups.get(name)
    if found is None:
        raise Refused(404, f"There is no group {name!r} in the last sample.")
    return found


def find_brokers_group(cluster: WatchedCluster, name: str) -> GroupState:
    """Return a group that a broker coordinates, which can be changed. Raises Refused."""
    found = find_group(cluster, name)
    if found.kind == ZOOKEEPER:
        raise Refused(400, f"The offsets of {name!r} are in ZooKeeper: the console shows them, and changes none.")
    return found


def offset_rows(cluster: WatchedCluster, group: GroupState) -> list[OffsetRow]:
    """Return a group's committed offsets, with the lag of each partition."""
    sample, now, rows = cluster.sampler.last, cluster.seconds(), []
    for name, committed in group.committed.items():
        for index, end, offset in ends_of(sample, name, committed):
            if end == UNKNOWN:
                rows.append(OffsetRow(name, index, offset, None, None, None))
                continue
            seconds = sample.topics[name].series.seconds_behind(index, offset, now)
            rows.append(OffsetRow(name, index, offset, end, max(end - offset, 0), seconds))
    return rows
