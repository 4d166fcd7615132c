"""Actions on groups: reset offsets, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pylogd.base.clock import wall_ms
from pylogd.client.core.model import OffsetSpec, TopicPartition
from pylogd.services.console.actions.steps import Action, Field, Plan, check_name, command, name_field, number
from pylogd.services.console.answers import PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.pages.groups import find_brokers_group
from pylogd.services.console.reading import parse_time
from pylogd.services.console.roles import Role

_PLACES: Final = ("earliest", "latest", "offset", "shift", "time")


class OnGroup(Action):
    """The code that all actions on a group share."""

    section = "groups"
    after = "/groups/{group}"


class ResetOffsets(OnGroup):
    """Change a group's committed offsets."""

    path = "/groups/{group}/reset"
    name = "reset group offsets"
    heading = "Reset offsets of {group}"

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        topics = sorted(find_brokers_group(cluster, asked.parts["group"]).committed)
        return [
            Field("topic", "Topic", "choice", choices=["(all)", *topics]),
            Field("partitions", "Partitions", hint="numbers with commas between; empty: all"),
            Field("to", "To", "choice", choices=_PLACES),
            Field("value", "Offset, shift or time",
                  hint="shift: a number, may be negative; time: 2026-11-21T08:00, @1795219200, or an age such as 2h"),
        ]  # fmt: skip

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the offsets that change, before and after. Raises Refused, PylogdError."""
        form = asked.form
        group_id = asked.parts["group"]
        group = find_brokers_group(cluster, group_id)
        spec, flags = _spec(form.get("to", ""), form)
        chosen = form.get("topic", "(all)")
        places = _places(cluster, group_id, chosen, form.get("partitions", ""))
        planned = await cluster.admin.plan_group_offsets(group_id, places, spec)
        now = await cluster.admin.group_offsets(group_id, planned)
        changes = {place: offset for place, offset in planned.items() if place not in now or now[place][0] != offset}

        async def run() -> str:
            if changes:
                await cluster.admin.alter_group_offsets(group_id, changes)
            return f"{len(changes)} offsets of {group_id} were changed."

        indexes = form.get("partitions", "").replace(" ", "")
        words: list[object] = ["groups", "reset-offsets", group_id]
        words += ["--all-topics"] if chosen == "(all)" else ["--topic", f"{chosen}:{indexes}" if indexes else chosen]
        rows = [
            (str(place), f"{now[place].offset:,}" if place in now else "none", f"{offset:,}",
             f"{offset - now[place].offset:+,}" if place in now else "")
            for place, offset in sorted(changes.items())
        ]  # fmt: skip
        warning = f"The group has {group.members} members: they have to be stopped first." if group.members else ""
        line = command(cluster, *words, *flags, "--execute")
        return Plan(line, run, ("Partition", "Now", "Then", "Change"), rows, warning)


def _spec(to: str, values: Mapping[str, str]) -> tuple[OffsetSpec, list[object]]:
    if to == "earliest":
        return OffsetSpec(earliest=True), ["--to-earliest"]
    if to == "latest":
        return OffsetSpec(), ["--to-latest"]
    if to == "offset":
        offset = number(values, "value", 0, 2**62)
        return OffsetSpec(offset=offset), ["--to-offset", offset]
    if to == "shift":
        shift = number(values, "value", -(2**62), 2**62)
        return OffsetSpec(shift=shift), [f"--shift-by={shift}"]
    if to == "time":
        text = values.get("value", "").strip()
        return OffsetSpec(timestamp=parse_time(text, wall_ms())), ["--to-time", text]
    raise Refused(422, f"Choose one of {', '.join(_PLACES)}.")


def _places(cluster: WatchedCluster, group_id: str, topic: str, partitions: str) -> list[TopicPartition]:
    group = find_brokers_group(cluster, group_id)
    if topic == "(all)" and not partitions.strip():
        return [TopicPartition(name, index) for name, some in group.committed.items() for index in some.partitions]
    known = cluster.sampler.last.topics.get(topic)
    if known is None:
        raise Refused(422, "Choose a topic.")
    if not partitions.strip():
        return [TopicPartition(topic, index) for index in range(len(known))]
    found = []
    for word in partitions.split(","):
        if not word.strip().isdecimal() or len(word) > 9 or int(word) >= len(known):
            raise Refused(422, f"{word.strip()[:20]!r} is not a partition of {topic}.")
        found.append(TopicPartition(topic, int(word)))
    return found


class DeleteGroup(OnGroup):
    """Delete a group and its committed offsets."""

    path = "/groups/{group}/delete"
    name = "delete group"
    heading = "Delete {group}"
    after = "/groups"
    role = Role.ADMIN

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        find_brokers_group(cluster, asked.parts["group"])
        return [name_field("group")]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the committed offsets that will be lost. Raises Refused."""
        group = find_brokers_group(cluster, asked.parts["group"])
        check_name(asked, "group", group.group_id)

        async def run() -> str:
            await cluster.admin.delete_group(group.group_id)
            return f"The group {group.group_id} was deleted."

        rows = [
            (f"{name}:{index}", f"{offset:,}")
            for name, committed in group.committed.items()
            for index, offset in zip(*committed, strict=True)
        ]
        line = command(cluster, "groups", "delete", group.group_id, "--yes")
        return Plan(
            line, run, ("Partition", "Committed offset that is lost"), rows, "The offsets can't be brought back."
        )
