"""`pylogd reassign`: move replicas between brokers and follow the progress."""

# ruff: noqa: PLC0415 - rich is imported only for a progress bar

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pylogd.cli.commands import Commands
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.output import note, output_option, print_json, print_records
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.offsets import LATEST
from pylogd.client.core.admin.replica_plan import Placement, plan, shared_hosts
from pylogd.client.core.model import Topic
from pylogd.errors import KafkaError

#: Time between two requests for the progress.
_POLL_SECONDS = 1.0
_POLLS_AT_DIFFERENT = 30  # before a partition is taken to have another target
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


@click.group(cls=Commands)
def reassign() -> None:
    """Move replicas to other brokers: plan, execute, verify, cancel.

    A plan is a JSON file in the format of Kafka's own tool.

    \b
    pylogd reassign plan --brokers 1,2,3,4 > plan.json
    pylogd reassign execute plan.json --throttle 50000000
    pylogd reassign verify plan.json
    pylogd reassign cancel plan.json
    """


@reassign.command("plan")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--brokers", metavar="ID,ID,...", help="Brokers that may hold replicas  [default: all]")
@click.option(
    "-r", "--replication-factor", "factor", type=click.IntRange(1), help="Replicas per partition  [default: unchanged]"
)
@bootstrap_option
def plan_(topics: Sequence[str], brokers: str | None, factor: int | None, bootstrap: str) -> None:
    """Print a plan that spreads the replicas of TOPICs, or of all topics, with few moves. Nothing is changed.

    Replicas of a topic with a placement.label are planned only on brokers that carry it, and are moved there from
    others. To empty a broker, name all others. To use new brokers, name them too. Replicas that share a machine
    (host.id) are planned on different machines, if there are enough.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        live = admin.describe_cluster().brokers
        found = [admin.describe_topic(name) for name in topics] if topics else admin.list_topics(internal=True)
        within = labelled_brokers(admin, found)
    alive = {broker.node_id: broker.rack for broker in live}
    wanted = _numbers(brokers) if brokers else list(alive)
    if missing := set(wanted) - alive.keys():
        raise click.ClickException(f"broker {min(missing)} is not alive")
    current = {TopicPartition(topic.name, one.index): one.replicas for topic in found for one in topic.partitions}
    try:
        planned = plan(current, {node: alive[node] for node in wanted}, factor, within, hosts=shared_hosts(live))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    changed = {place: nodes for place, nodes in planned.items() if nodes != current[place]}
    moves = sum(len(set(nodes) - set(current[place])) for place, nodes in changed.items())
    note(f"{len(changed)} of {len(current)} partitions change, {moves} replicas are copied")
    print_json(plan_document(changed))


@reassign.command()
@click.argument("file", type=click.Path(exists=True, allow_dash=True, path_type=Path))
@click.option("--throttle", type=click.IntRange(1), metavar="BYTES",
              help="Bytes per second that each broker may copy for replicas that are not in sync.")  # fmt: skip
@click.option("--from-latest", "wait", metavar="TIME",
              help="New replicas copy only new records. They join the in-sync set when every consumer group has read "
              "up to their first offset, or after this time (90s, 15m, 2h, 3d). Not for internal or compacted "
              "topics, which would lose their state.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Don't wait for the moves. `verify` then removes the throttle.")
@bootstrap_option
def execute(file: Path, throttle: int | None, wait: str | None, no_wait: bool, bootstrap: str) -> None:
    """Start the moves of a plan, and show their progress until all are done.

    Interrupting this command does not stop the moves; `cancel` does.
    """
    targets = _read(file)
    seconds = None if wait is None else seconds_of(wait)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        if seconds is not None:
            check_from_latest(admin, {place.topic for place in targets})
        if throttle is not None:
            throttle_moves(admin, targets, throttle)
        begins = {} if seconds is None else admin.offsets(dict.fromkeys(targets, LATEST))
        wanted: dict[tuple[str, int], Sequence[int] | None] = {(p.topic, p.partition): r for p, r in targets.items()}
        check_outcome(admin.reassign(wanted, latest_wait=seconds), "moves could not start")
        note(f"started to move {len(targets)} partitions")
        if not no_wait:
            follow(admin, targets)
            unthrottle(admin, targets)
            note_late_groups(admin, {place: one.offset for place, one in begins.items()})


@reassign.command()
@click.argument("file", type=click.Path(exists=True, allow_dash=True, path_type=Path))
@output_option
@bootstrap_option
def verify(file: Path, bootstrap: str) -> None:
    """Show the progress of a plan: each partition is done, moving, or different. Exit status 0 once all are done.

    Then the throttles that `execute` set are removed. Prints for each partition: topic, partition, state,
    replicas, adding, removing.
    """
    targets = _read(file)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        rows = _progress(admin, targets)
        done = all(row["state"] == "done" for row in rows)
        if done:
            unthrottle(admin, targets)
    print_records(["topic", ">partition", "state", "replicas", "adding", "removing"], rows)
    if not done:
        raise click.exceptions.Exit(1)


@reassign.command()
@click.argument("file", required=False, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@bootstrap_option
def cancel(file: Path | None, bootstrap: str) -> None:
    """Cancel the moves of a plan, or all moves: the partitions keep the replicas that they had before."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        moving = admin.reassignments(list(_read(file)) if file is not None else None)
        check_outcome(admin.reassign(dict.fromkeys(moving)), "moves could not be cancelled")
        unthrottle(admin, moving)
    note(f"{len(moving)} moves cancelled")


def labelled_brokers(admin: Admin, topics: Sequence[Topic]) -> dict[str, list[int]]:
    """Return which brokers carry the label of a topic, for those topics that have one."""
    named = {name: label for name, label in admin.topic_labels(topic.name for topic in topics).items() if label}
    carried = admin.broker_labels() if named else {}
    return {name: [node for node, labels in carried.items() if label in labels] for name, label in named.items()}


def follow(admin: Admin, targets: Placement) -> None:
    """Show the progress of moves on a terminal until all are done. Raises ClickException if some have other targets."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TextColumn("partitions"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("moving", total=len(targets))
        polls_left = _POLLS_AT_DIFFERENT
        while True:
            states = [row["state"] for row in _progress(admin, targets)]
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


def note_late_groups(admin: Admin, begins: Mapping[TopicPartition, int]) -> None:
    """Name the groups that a smooth expansion did not wait for, because its time was over.

    begins: the offsets at or before which the new replicas begin. Groups without an offset, and those whose offsets are
    in ZooKeeper, are not seen here; the leaders log the latter.
    """
    for group in admin.list_groups() if begins else ():
        for place, committed in sorted(admin.group_offsets(group.group_id, begins).items()):
            if committed.offset < begins[place]:
                note(
                    f"not waited for: group {group.group_id} is at offset {committed.offset} of {place}, and replicas "
                    f"that begin at {begins[place]} or later are in sync now"
                )


def _progress(admin: Admin, targets: Placement) -> list[dict[str, Any]]:
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


def throttle_moves(admin: Admin, targets: Placement, rate: int) -> None:
    """Limit what each broker copies for the topics of a plan to `rate` bytes per second."""
    for broker in admin.describe_cluster().brokers:
        admin.alter_configs("broker", str(broker.node_id), dict.fromkeys(_RATES, str(rate)))
    for topic in {place.topic for place in targets}:
        admin.alter_configs("topic", topic, dict.fromkeys(_THROTTLED, "*"))


def unthrottle(admin: Admin, partitions: Mapping[TopicPartition, object]) -> None:
    """Remove the throttles that `throttle_moves` set, if there are any."""
    for topic in {partition.topic for partition in partitions}:
        if any(entry.source == "topic" for entry in admin.describe_configs("topic", topic, _THROTTLED)):
            admin.alter_configs("topic", topic, dict.fromkeys(_THROTTLED))
    for broker in admin.describe_cluster().brokers:
        name = str(broker.node_id)
        if any("run time" in entry.source for entry in admin.describe_configs("broker", name, _RATES)):
            admin.alter_configs("broker", name, dict.fromkeys(_RATES))


def check_outcome(outcome: Mapping[TopicPartition, KafkaError | None], what: str) -> None:
    """Print errors. Raises ClickException with their number and `what` if there are any."""
    errors = [f"{place}: {error}" for place, error in outcome.items() if error is not None]
    for error in errors:
        note(f"Error: {error}")
    if errors:
        raise click.ClickException(f"{len(errors)} {what}")


def _read(file: Path) -> Placement:
    """Return the target replicas by partition of a plan's file, `-` for standard input."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        partitions = json.loads(text)["partitions"]
        found = {
            TopicPartition(str(one["topic"]), int(one["partition"])): tuple(map(int, one["replicas"]))
            for one in partitions
        }
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{file} is not a plan: {error!r}") from None
    if not found:
        raise click.ClickException(f"{file} has no partitions")
    return found


def plan_document(targets: Placement) -> dict[str, Any]:
    """Return a plan in the format of Kafka's tool."""
    return {
        "version": 1,
        "partitions": [
            {"topic": place.topic, "partition": place.partition, "replicas": list(nodes)}
            for place, nodes in sorted(targets.items())
        ],
    }


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of broker ids") from None


def seconds_of(text: str) -> float:
    """Return a time such as 90s, 15m, 2h or 3d in seconds. Raises BadParameter."""
    number, unit = text[:-1], text[-1:]
    if not number.isdigit() or unit not in _UNITS:
        raise click.BadParameter(f"{text!r} is not a time such as 90s, 15m, 2h or 3d")
    return int(number) * _UNITS[unit]
