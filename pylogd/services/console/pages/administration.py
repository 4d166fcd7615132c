"""Reassignments, quotas, users, ACLs, schemas, and the settings of topics, which are requested when a page is opened.

Rules: data that a cluster does not have, because it is too old or has no authorizer, is shown as unknown, with the
reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.base.threads import ThreadPool
from pylogd.client.core.admin.access_operations import DEFAULT_ENTITY, QuotaEntity
from pylogd.client.core.model import Reassignment, TopicPartition
from pylogd.client.registry.api_client import RegistryApi, path_of
from pylogd.services.console import cluster_requests
from pylogd.services.console.answers import Answer, PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.listing import Column, Listing
from pylogd.services.console.pages.topics import find_topic
from pylogd.services.console.rendering import path, size
from pylogd.services.console.roles import Role
from pylogd.services.console.view import View
from pylogd.services.console.web import Route, route

_MOST_MEASURED: Final = 200
_REGISTRY_SECONDS: Final = 5.0
_MOST_VERSIONS: Final = 100

Row = Sequence[str]


class Link(NamedTuple):
    """A link to an action.

    where: the path below the cluster's path.
    role: the lowest role that may use it.
    """

    text: str
    where: str
    role: Role = Role.VIEWER


class Administration:
    """The pages of the administration, each of which asks the cluster or its registry when it is opened."""

    def __init__(self, reactor: Any, view: View) -> None:
        self._view = view
        self._pool = ThreadPool(reactor, 2, "console-registry")

    def stop(self) -> None:
        """End the threads that read the schema registry."""
        self._pool.stop()

    def routes(self) -> list[Route]:
        """Return the routes of these pages: method, path, handler and the lowest role."""
        return [
            route("GET", "/c/{cluster}/admin", self.index),
            route("GET", "/c/{cluster}/reassignments", self.reassignments),
            route("GET", "/c/{cluster}/quotas", self.quotas),
            route("GET", "/c/{cluster}/users", self.users),
            route("GET", "/c/{cluster}/acls", self.acls),
            route("GET", "/c/{cluster}/schemas", self.schemas),
            route("GET", "/c/{cluster}/schemas/{subject}", self.schema),
            route("GET", "/c/{cluster}/topics/{topic}/settings", self.topic_settings),
        ]

    def index(self, asked: PageRequest) -> Answer:
        """Return the page with links to all others."""
        return self._view.page("admin.html", asked, self._view.cluster(asked), "admin")

    async def reassignments(self, asked: PageRequest) -> Answer:
        """Return a page with the moves of replicas in progress, and their progress."""
        cluster = self._view.cluster(asked)

        async def rows() -> Sequence[Row]:
            moves = await cluster.admin.reassignments()
            copied = await _copied(cluster, dict(sorted(moves.items())[:_MOST_MEASURED]))
            return [
                (str(place), _nodes(move.replicas), _nodes(move.adding), _nodes(move.removing), _progress(
                    cluster, place, copied.get(place)))
                for place, move in sorted(moves.items())
            ]  # fmt: skip

        links = [Link("Move a topic's replicas", "/reassign"), Link("Throttle moves", "/throttle"),
                 Link("Cancel all moves", "/cancel-moves")]  # fmt: skip
        columns = ("Partition", "Replicas", "Coming", "Going", "Copied")
        return await self._table(asked, "Reassignments", columns, rows, links, live=True)

    async def quotas(self, asked: PageRequest) -> Answer:
        """Return a page with all quotas: the entity, the name and the value of each."""
        cluster = self._view.cluster(asked)

        async def rows() -> Sequence[Row]:
            found = await cluster.admin.client_quotas()
            return sorted(
                (entity_text(entity), name, f"{value:,.10g}")
                for entity, values in found.items()
                for name, value in values.items()
            )

        links = [Link("Set a quota", "/set-quota", Role.ADMIN)]
        return await self._table(asked, "Quotas", ("Of", "Quota", "Value"), rows, links)

    async def users(self, asked: PageRequest) -> Answer:
        """Return a page with the users that have SCRAM credentials, by mechanism."""
        cluster = self._view.cluster(asked)

        async def rows() -> Sequence[Row]:
            found = await cluster.admin.list_users()
            return [(one.user, one.mechanism, f"{one.iterations:,}") for one in found]

        links = [
            Link("Add a user or change a password", "/set-user", Role.ADMIN),
            Link("Remove a user", "/remove-user", Role.ADMIN),
        ]
        return await self._table(asked, "Users", ("User", "Mechanism", "Iterations"), rows, links)

    async def acls(self, asked: PageRequest) -> Answer:
        """Return a page with all access control lists."""
        cluster = self._view.cluster(asked)

        async def rows() -> Sequence[Row]:
            found = await cluster.admin.list_acls()
            return [
                (one.principal, one.permission, one.operation, f"{one.resource} {one.name}", one.pattern, one.host)
                for one in sorted(found)
            ]

        links = [Link("Add an ACL", "/add-acl", Role.ADMIN), Link("Remove ACLs", "/remove-acl", Role.ADMIN)]
        columns = ("Principal", "Permission", "Operation", "Resource", "Pattern", "Host")
        return await self._table(asked, "ACLs", columns, rows, links)

    async def topic_settings(self, asked: PageRequest) -> Answer:
        """Return a page with the settings that are set for a topic; with `all=1`, with all of its settings."""
        cluster = self._view.cluster(asked)
        name = find_topic(cluster, asked.parts["topic"]).name
        everything = asked.options.get("all") == "1"

        async def rows() -> Sequence[Row]:
            found = await cluster.admin.describe_configs("topic", name)
            return [
                (one.name, "(hidden)" if one.sensitive else one.value or "", one.source)
                for one in found if everything or one.source == "topic"
            ]  # fmt: skip

        where = path("topics", name)
        links = [Link("Change settings", f"{where}/change-settings")]
        more = Link("Only what the topic sets itself", "?") if everything else Link("Show all", "?all=1")
        return await self._table(
            asked, f"Settings of {name}", ("Setting", "Value", "From"), rows, links, section="topics", more=more,
            back=where,
        )  # fmt: skip

    async def schemas(self, asked: PageRequest) -> Answer:
        """Return a page with the subjects of the schema registry."""
        cluster = self._view.cluster(asked)

        async def rows() -> Sequence[Row]:
            return [(str(one),) for one in await self._ask(cluster, "/subjects")]

        where = path("c", cluster.name, "schemas")
        return await self._table(asked, "Schemas", ("Subject",), rows, [], first=where)

    async def schema(self, asked: PageRequest) -> Answer:
        """Return a page with the newest versions of a subject, at most 100, with their ids, types and texts."""
        cluster, subject = self._view.cluster(asked), asked.parts["subject"]

        async def rows() -> Sequence[Row]:
            versions = await self._ask(cluster, path_of("subjects", subject, "versions"))
            found = []
            for version in reversed(versions[-_MOST_VERSIONS:]):
                one = await self._ask(cluster, path_of("subjects", subject, "versions", version))
                found.append((str(version), str(one.get("id")), str(one.get("schemaType", "AVRO")), str(one["schema"])))
            return found

        columns = ("Version", "Id", "Type", "Schema")
        return await self._table(asked, f"Schema {subject}", columns, rows, [], back="/schemas")

    async def _ask(self, cluster: WatchedCluster, where: str) -> Any:
        options = cluster.options
        if not options.registry:
            raise Refused(404, "This cluster has no schema registry: start the console with --schema-registry.")
        api = RegistryApi(options.registry, _REGISTRY_SECONDS, options.registry_settings)
        return await self._pool.defer(api.ask, where)

    async def _table(
        self, asked: PageRequest, title: str, columns: Sequence[str], rows: Callable[[], Awaitable[Sequence[Row]]],
        links: Sequence[Link], *, section: str = "admin", **more: Any,
    ) -> Answer:  # fmt: skip
        """Return a page with one list.

        rows: asks the cluster for the rows.
        """
        found: Sequence[Row] = []
        problem = ""
        try:
            found = await rows()
        except (PylogdError, Refused) as error:
            problem = str(error)
        keys = {str(at): Column(name, _column(at)) for at, name in enumerate(columns)}
        listing = Listing(found, keys, " ".join, asked.options)
        values = {"live": False, "more": None, "back": "", "first": "", **more}
        return self._view.page(
            "table.html", asked, self._view.cluster(asked), section, title=title, listing=listing, links=links,
            problem=problem, **values,
        )  # fmt: skip


def _column(index: int) -> Callable[[Row], str]:
    return lambda row: row[index]


def _nodes(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))


def entity_text(entity: QuotaEntity) -> str:
    """Return the entity of a quota in words."""
    parts = zip(("user", "client id", "ip"), entity, strict=True)
    return ", ".join(f"{kind} {name if name != DEFAULT_ENTITY else '(default)'}" for kind, name in parts
                     if name is not None)  # fmt: skip


async def _copied(
    cluster: WatchedCluster, moves: dict[TopicPartition, Reassignment]
) -> dict[TopicPartition, int]:  # fmt: skip
    """Return the bytes of each partition's slowest new replica, without partitions whose size is unknown."""
    found: dict[TopicPartition, int] = {}
    nodes = {node for move in moves.values() for node in move.adding}
    for node in sorted(nodes):
        coming: dict[str, list[int]] = {}
        for place, move in moves.items():
            if node in move.adding:
                coming.setdefault(place.topic, []).append(place.partition)
        try:
            async for answer in cluster_requests.log_dir_pages(cluster.cluster, node, coming.items()):
                for directory in answer.results:
                    for topic in directory.topics:
                        for one in topic.partitions:
                            place = TopicPartition(topic.name, one.partition_index)
                            found[place] = min(found.get(place, one.partition_size), one.partition_size)
        except PylogdError:
            continue  # the sizes of this broker's replicas stay unknown
    return found


def _progress(cluster: WatchedCluster, place: TopicPartition, copied: int | None) -> str:
    topic = cluster.sampler.last.topics.get(place.topic)
    whole = topic.sizes[place.partition] if topic is not None and place.partition < len(topic.sizes) else -1
    if copied is None or whole < 0:
        return "not known"
    share = min(copied / whole, 1.0) if whole else 1.0
    return f"{share:.0%}: {size(copied)} of {size(whole)}"
