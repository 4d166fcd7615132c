"""Parts that the commands share which move replicas: plans as files, the begin, the progress, and what it waits for.

A plan has the format of Kafka's tool. It is read whole before anything is changed, and what pylogd could not carry out
is refused: a field that it does not know, a partition or a replica that is named twice, a data directory for a replica.
"""

# ruff: noqa: PLC0415 - rich is imported only for a progress bar
from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from pylogd.base.errors import KafkaError
from pylogd.cli.common import format_time, parse_span
from pylogd.cli.output import note
from pylogd.cli.record_input import BadInput, check_fields
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.move_operations import ClusterLayout, MovesRefused

#: The seconds between two looks at what moves wait for; leaders check as often whether they still have to wait.
_LOOK_SECONDS: Final = 5.0
#: The seconds between two requests for the progress.
_POLL_SECONDS: Final = 1.0
#: The polls before a partition counts as having another target.
_POLLS_AT_DIFFERENT: Final = 30
#: The replicas of each partition; the preferred leader is the first one.
Placement = dict[TopicPartition, tuple[int, ...]]
_FIELDS: Final = frozenset({"version", "partitions"})
_PARTITION_FIELDS: Final = frozenset({"topic", "partition", "replicas", "log_dirs"})
_ANY_DIRECTORY: Final = "any"


def read_plan(file: Path) -> Placement:
    """Return the target replicas by partition of a plan's file, `-` for standard input.

    Raises ClickException, whose text names the file and the line or the entry.
    """
    name = "standard input" if str(file) == "-" else str(file)
    try:
        return _parse(sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8"))
    except (BadInput, UnicodeDecodeError) as error:
        raise click.ClickException(f"{name} is not a plan: {error}. Nothing was changed") from None


def _parse(text: str) -> Placement:
    try:
        plan = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"line {error.lineno}, column {error.colno} is not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON ({error})") from None
    if not isinstance(plan, dict):
        raise BadInput("it has to be a JSON object")
    check_fields(plan, _FIELDS)
    if plan.get("version", 1) != 1:
        raise BadInput(f"version {json.dumps(plan['version'])[:20]} is not known: there is 1")
    entries = plan.get("partitions")
    if not isinstance(entries, list) or not entries:
        raise BadInput("it has no partitions")
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for number, entry in enumerate(entries, 1):
        try:
            place, replicas = _entry(entry)
            if place in found:
                raise BadInput(f"{place} is there already")
        except BadInput as error:
            raise BadInput(f"entry {number} of its partitions: {error}") from None
        found[place] = replicas
    return found


def _entry(entry: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    """Return the partition and the replicas of an entry. Raises BadInput."""
    if not isinstance(entry, dict):
        raise BadInput("it has to be an object")
    check_fields(entry, _PARTITION_FIELDS)
    topic, index, replicas = entry.get("topic"), entry.get("partition"), entry.get("replicas")
    if not isinstance(topic, str) or not topic:
        raise BadInput("topic has to be a name")
    if not isinstance(index, int) or not _is_number(index):
        raise BadInput("partition has to be a number that is not negative")
    if not isinstance(replicas, list) or not replicas or not all(map(_is_number, replicas)):
        raise BadInput("replicas has to be a list of broker ids, such as [1, 2]")
    if len(set(replicas)) < len(replicas):
        raise BadInput(f"replicas {replicas} has a broker twice")
    directories = entry.get("log_dirs")
    if directories is not None and directories != [_ANY_DIRECTORY] * len(replicas):
        raise BadInput('log_dirs has to be "any" for each replica: a plan can\'t choose data directories')
    return TopicPartition(topic, index), tuple(replicas)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def plan_document(targets: Placement) -> dict[str, Any]:
    """Return a plan in the format of Kafka's tool."""
    return {
        "version": 1,
        "partitions": [
            {"topic": place.topic, "partition": place.partition, "replicas": list(nodes)}
            for place, nodes in sorted(targets.items())
        ],
    }


def seconds_of(text: str) -> float:
    """Return a time such as 90s, 15m, 2h or 3d in seconds. Raises BadParameter."""
    found = parse_span(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a time such as 90s, 15m, 2h or 3d")
    return found / 1000


def check_from_latest(admin: Admin, topics: Collection[str]) -> None:
    """Raise for topics whose old records are still needed, before any move starts."""
    needed = []
    for name in sorted(topics):
        policies = [entry.value or "" for entry in admin.describe_configs("topic", name, ["cleanup.policy"])]
        if admin.describe_topic(name).internal or "compact" in ",".join(policies):
            needed.append(name)
    if needed:
        raise click.ClickException(
            f"--from-latest would lose the state of internal and compacted topics: {', '.join(needed)}. "
            "Move these with a separate plan, without --from-latest"
        )


def begin(
    admin: Admin,
    targets: Placement,
    *,
    throttle: int | None = None,
    latest_wait: float | None = None,
    labels: Mapping[str, str] | None = None,
    cordon: int | None = None,
) -> None:
    """Begin all moves of a plan, or none; see `Admin.begin_moves`.

    Raises ClickException if the plan is refused, after printing the reason of each partition.
    """
    try:
        admin.begin_moves(targets, throttle=throttle, latest_wait=latest_wait, labels=labels, cordon=cordon)
    except MovesRefused as refused:
        for place, reason in sorted(refused.reasons.items()):
            note(f"Error: {place}: {reason}")
        raise click.ClickException(refused.summary) from None


def follow(admin: Admin, targets: Placement, waits: WaitReport | None = None) -> None:
    """Show the progress of moves on a terminal until all are done. Raises ClickException if some have other targets.

    waits: prints what the new replicas wait for, if they began with the latest offset.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TextColumn("partitions"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar, _note_of_interruption():
        task = bar.add_task("moving", total=len(targets))
        polls_left = _POLLS_AT_DIFFERENT
        while True:
            rows = progress_of(admin, targets)
            states = [row["state"] for row in rows]
            if waits is not None:
                waits.look(admin, [place for place, row in zip(targets, rows, strict=True) if row["state"] == "moving"])
            bar.update(task, completed=states.count("done"))
            if "moving" not in states:
                # Brokers learn of the end of a move and of the new replicas one after the other.
                polls_left -= 1
                if states.count("done") == len(states) or not polls_left:
                    break
            time.sleep(_POLL_SECONDS)
    if states.count("done") < len(states):
        raise click.ClickException("some partitions have another target than the plan's; see `verify`")
    note(f"all {len(targets)} partitions have the replicas of the plan")


@contextmanager
def _note_of_interruption() -> Iterator[None]:
    """If the `with` block is interrupted, tell the user that the moves continue."""
    try:
        yield
    except KeyboardInterrupt:
        note(
            "Interrupted: the moves go on, and a throttle stays. The same command again shows the progress, and "
            "removes the throttle at the end"
        )
        raise


def progress_of(admin: Admin, targets: Placement) -> list[dict[str, Any]]:
    """Return a record for each partition of a plan: it is done, moving, or different."""
    moving = admin.reassignments(list(targets))
    topics = {name: admin.describe_topic(name) for name in dict.fromkeys(place.topic for place in targets)}
    rows = []
    for place, target in targets.items():
        partitions = topics[place.topic].partitions
        now = partitions[place.partition].replicas if place.partition < len(partitions) else ()
        move = moving.get(place)
        rows.append({
            "topic": place.topic, "partition": place.partition,
            "state": "moving" if move else "done" if now == target else "different",
            "replicas": list(now),
            "adding": list(move.adding) if move else [], "removing": list(move.removing) if move else [],
        })  # fmt: skip
    return rows


class WaitReport:
    """Prints each producer and group that the leaders wait for, once.

    begins: for each partition, an offset at or before which the new replicas begin.
    """

    def __init__(self, begins: Mapping[TopicPartition, int]) -> None:
        self._begins = begins
        self._told: set[object] = set()
        self._next = time.monotonic() + _LOOK_SECONDS

    def look(self, admin: Admin, moving: Collection[TopicPartition]) -> None:
        """Print new producers and groups, if it is time to look again.

        moving: the partitions whose moves are not done.
        """
        now = time.monotonic()
        if now < self._next or not moving:
            return
        self._next = now + _LOOK_SECONDS
        try:
            self._producers(admin, moving)
            self._groups(admin, {place: self._begins[place] for place in moving if place in self._begins})
        except KafkaError as error:  # a leader that changes, or an operation that the user may not do
            self._tell(error.code, f"what is waited for can't be told now: {error}")

    def _producers(self, admin: Admin, moving: Collection[TopicPartition]) -> None:
        for place, producers in sorted(admin.describe_producers(moving).items()):
            for one in producers:
                if one.awaited_until >= 0:
                    seen, until = format_time(one.last_timestamp), format_time(one.awaited_until)
                    self._tell(
                        (place, one.producer_id),
                        f"{place} waits until {until} for the idempotent producer {one.producer_id} "
                        f"(epoch {one.epoch}, last batch {seen}). It wrote before the new replicas began, and they "
                        "could not recognize a batch that it sends again; the wait ends if it writes",
                    )

    def _groups(self, admin: Admin, begins: Mapping[TopicPartition, int]) -> None:
        for group in admin.list_groups():
            for place, committed in sorted(admin.group_offsets(group.group_id, begins).items()):
                if 0 <= committed.offset < begins[place]:
                    self._tell(
                        (place, group.group_id),
                        f"{place} waits for group {group.group_id}, which is at offset {committed.offset}, to read up "
                        f"to {begins[place]}",
                    )

    def _tell(self, what: object, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            note(text)


def note_late_groups(admin: Admin, begins: Mapping[TopicPartition, int]) -> None:
    """Print the groups for which a smooth expansion stopped waiting, because its time was over.

    begins: for each partition, an offset at or before which the new replicas begin.

    Groups without an offset and groups with offsets in ZooKeeper are not seen here; the leaders log the latter.
    """
    for group in admin.list_groups() if begins else ():
        for place, committed in sorted(admin.group_offsets(group.group_id, begins).items()):
            if committed.offset < begins[place]:
                note(
                    f"not waited for: group {group.group_id} is at offset {committed.offset} of {place}, and replicas "
                    f"that begin at {begins[place]} or later are in sync now"
                )


def note_left_out(layout: ClusterLayout, chosen: Collection[int] | None = None) -> None:
    """Name the brokers that get no replicas, with the reason.

    chosen: the same argument of `spread`.
    """
    counts = layout.count_on([*layout.brokers.cordoned, *layout.dead])
    for node in layout.brokers.cordoned:
        stay = chosen is None or node in chosen
        note(
            f"broker {node} is cordoned and left out: "
            + (f"it keeps its {counts[node]} replicas and gets no others" if stay else
               f"its {counts[node]} replicas move, since it is not among the brokers that were named")
        )  # fmt: skip
    for node in layout.dead:
        note(f"broker {node} is not alive: its {counts[node]} replicas are planned on other brokers")
