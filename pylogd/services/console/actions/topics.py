"""Actions on topics: create, add partitions, change settings, delete."""

from __future__ import annotations

from typing import Final

from pylogd.services.console.actions.steps import Action, Field, Plan, check_name, command, name_field, number, pairs
from pylogd.services.console.answers import PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.pages.topics import find_topic
from pylogd.services.console.roles import Role

_MOST_PARTITIONS: Final = 100_000


class OnTopic(Action):
    """The code that all actions on an existing topic share."""

    section = "topics"
    after = "/topics/{topic}"


class CreateTopic(Action):
    """Create a topic."""

    path = "/create-topic"
    name = "create topic"
    heading = "Create a topic"
    after = "/topics"
    section = "topics"

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        return [
            Field("topic", "Name", required=True),
            Field("partitions", "Partitions", "number", hint="empty: the brokers' default"),
            Field("replicas", "Replicas of each partition", "number", hint="empty: the brokers' default"),
            Field("settings", "Settings", "area", hint="name=value, one a line"),
        ]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the partitions, replicas and settings. The cluster has checked them. Raises Refused, PylogdError."""
        form = asked.form
        name = form.get("topic", "").strip()
        if not name:
            raise Refused(422, "Write a name.")
        partitions = number(form, "partitions", 1, _MOST_PARTITIONS) if form.get("partitions", "").strip() else -1
        replicas = number(form, "replicas", 1, 1000) if form.get("replicas", "").strip() else -1
        settings = dict(pairs(form.get("settings", ""), "settings"))
        await cluster.admin.create_topic(name, partitions, replicas, settings, validate_only=True)

        async def run() -> str:
            await cluster.admin.create_topic(name, partitions, replicas, settings)
            return f"The topic {name} was created."

        words: list[object] = ["topics", "create", name]
        words += ["--partitions", partitions] if partitions > 0 else []
        words += ["--replication-factor", replicas] if replicas > 0 else []
        for key, value in settings.items():
            words += ["--config", f"{key}={value}"]
        rows = [
            ("name", name), ("partitions", str(partitions) if partitions > 0 else "the brokers' default"),
            ("replicas", str(replicas) if replicas > 0 else "the brokers' default"), *settings.items(),
        ]  # fmt: skip
        return Plan(command(cluster, *words), run, ("What", "Value"), rows)


class AddPartitions(OnTopic):
    """Add partitions to a topic."""

    path = "/topics/{topic}/partitions"
    name = "add partitions"
    heading = "Add partitions to {topic}"

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        topic = find_topic(cluster, asked.parts["topic"])
        hint = f"now {len(topic)}; partitions can't be removed, and keys go to other partitions than before"
        return [Field("partitions", "New number of partitions", "number", str(len(topic) + 1), hint, True)]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the number of partitions before and after. The cluster has checked it. Raises Refused, PylogdError."""
        name = asked.parts["topic"]
        before = len(find_topic(cluster, name))
        count = number(asked.form, "partitions", before + 1, _MOST_PARTITIONS)
        await cluster.admin.create_partitions(name, count, validate_only=True)

        async def run() -> str:
            await cluster.admin.create_partitions(name, count)
            return f"The topic {name} has {count} partitions."

        line = command(cluster, "topics", "alter", name, "--partitions", count)
        return Plan(line, run, ("What", "Now", "Then"), [("partitions", str(before), str(count))],
                    "Partitions can't be removed again.")  # fmt: skip


class ChangeSettings(OnTopic):
    """Change settings of a topic, or return them to their defaults."""

    path = "/topics/{topic}/change-settings"
    name = "change topic settings"
    heading = "Change settings of {topic}"
    after = "/topics/{topic}/settings"

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        return [
            Field("settings", "New values", "area", hint="name=value, one a line"),
            Field("defaults", "Back to their defaults", hint="names, with spaces between"),
        ]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return each setting before and after. The cluster has checked it. Raises Refused, PylogdError."""
        name = asked.parts["topic"]
        changes: dict[str, str | None] = dict(pairs(asked.form.get("settings", ""), "settings"))
        changes |= dict.fromkeys(asked.form.get("defaults", "").split())
        if not changes:
            raise Refused(422, "Write what to change.")
        now = {one.name: one.value for one in await cluster.admin.describe_configs("topic", name, list(changes))}
        await cluster.admin.alter_configs("topic", name, changes, validate_only=True)

        async def run() -> str:
            await cluster.admin.alter_configs("topic", name, changes)
            return f"The settings of {name} were changed."

        words: list[object] = ["topics", "alter", name]
        for key, value in changes.items():
            words += ["--delete-config", key] if value is None else ["--config", f"{key}={value}"]
        rows = [
            (key, now.get(key) or "", "(default)" if value is None else value) for key, value in changes.items()
        ]  # fmt: skip
        return Plan(command(cluster, *words), run, ("Setting", "Now", "Then"), rows)


class DeleteTopic(OnTopic):
    """Delete a topic with its records."""

    path = "/topics/{topic}/delete"
    name = "delete topic"
    heading = "Delete {topic}"
    role = Role.ADMIN

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        find_topic(cluster, asked.parts["topic"])
        return [name_field("topic")]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the losses: partitions, records, bytes, and the groups that read the topic. Raises Refused."""
        topic = find_topic(cluster, asked.parts["topic"])
        check_name(asked, "topic", topic.name)

        async def run() -> str:
            await cluster.admin.delete_topic(topic.name)
            return f"The topic {topic.name} was deleted."

        groups = cluster.sampler.last.by_topic.get(topic.name, [])
        rows = [
            ("partitions", str(len(topic))), ("records", _count(topic.records)), ("bytes", _count(topic.size)),
            ("groups with offsets", ", ".join(groups[:20]) or "none"),
        ]  # fmt: skip
        line = command(cluster, "topics", "delete", topic.name, "--yes")
        return Plan(line, run, ("What", "Lost"), rows, "The topic's records can't be brought back.")


def _count(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"
