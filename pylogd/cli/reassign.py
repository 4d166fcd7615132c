"""`pylogd reassign`: move replicas between brokers and follow the progress."""

# ruff: noqa: PLC0415 - rich is imported only for a progress bar

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pylogd.base.errors import KafkaError
from pylogd.base.placement.moves import spread
from pylogd.cli.awaited import Waits
from pylogd.cli.commands import Commands
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.output import note, output_option, print_json, print_records
from pylogd.cli.plan_file import Placement, read_plan
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.move_operations import ClusterLayout, MovesRefused
from pylogd.client.core.admin.offsets import LATEST

#: The seconds between two requests for the progress.
_POLL_SECONDS = 1.0
_POLLS_AT_DIFFERENT = 30  # polls before a partition counts as having another target
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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
    (host.id) or a rack are planned on different ones, if there are enough.

    A cordoned broker, such as one under maintenance, keeps its replicas and gets no others, nor is it preferred as the
    leader of more partitions. Such brokers are named, and so are those that are not alive, whose replicas move.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        layout = admin.layout(topics or None)
    wanted = _numbers(brokers) if brokers else None
    if missing := set(wanted or ()) - layout.brokers.live.keys():
        raise click.ClickException(f"broker {min(missing)} is not alive")
    planned = spread(layout, factor=factor, chosen=wanted)
    changed, copies = changes(layout, planned)
    note(f"{len(changed)} of {len(planned)} partitions change, {copies} replicas are copied")
    note_left_out(layout, wanted)
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

    The plan is checked whole before anything is changed, and all of its moves start, or none. Interrupting this command
    does not stop the moves; `cancel` does. With --from-latest it prints which groups and idempotent producers the new
    replicas still wait for.
    """
    targets = read_plan(file)
    seconds = None if wait is None else seconds_of(wait)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        if seconds is not None:
            check_from_latest(admin, {place.topic for place in targets})
        begins = {} if seconds is None else admin.offsets(dict.fromkeys(_existing(admin, targets), LATEST))
        begin(admin, targets, throttle=throttle, latest_wait=seconds)
        note(f"started to move {len(targets)} partitions")
        if not no_wait:
            offsets = {place: one.offset for place, one in begins.items()}
            follow(admin, targets, Waits(offsets) if offsets else None)
            admin.unthrottle({place.topic for place in targets})
            note_late_groups(admin, offsets)


@reassign.command()
@click.argument("file", type=click.Path(exists=True, allow_dash=True, path_type=Path))
@output_option
@bootstrap_option
def verify(file: Path, bootstrap: str) -> None:
    """Show the progress of a plan: each partition is done, moving, or different. Exit status 0 once all are done.

    Then the throttles that `execute` set are removed. Prints for each partition: topic, partition, state,
    replicas, adding, removing.
    """
    targets = read_plan(file)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        rows = _progress(admin, targets)
        done = all(row["state"] == "done" for row in rows)
        if done:
            admin.unthrottle({place.topic for place in targets})
    print_records(["topic", ">partition", "state", "replicas", "adding", "removing"], rows)
    if not done:
        raise click.exceptions.Exit(1)


@reassign.command()
@click.argument("file", required=False, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@bootstrap_option
def cancel(file: Path | None, bootstrap: str) -> None:
    """Cancel the moves of a plan, or all moves: the partitions keep the replicas that they had before."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        moving = admin.reassignments(list(read_plan(file)) if file is not None else None)
        check_outcome(admin.reassign(dict.fromkeys(moving)), "moves could not be cancelled", "are cancelled")
        admin.unthrottle({place.topic for place in moving})
    note(f"{len(moving)} moves cancelled")


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


def changes(layout: ClusterLayout, planned: Placement) -> tuple[Placement, int]:
    """Return the partitions whose replicas or preferred leader change, and the number of replicas to copy."""
    current = layout.current
    changed = {place: nodes for place, nodes in planned.items() if nodes != current[place]}
    return changed, sum(len(set(nodes) - set(current[place])) for place, nodes in changed.items())


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


def follow(admin: Admin, targets: Placement, waits: Waits | None = None) -> None:
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
            rows = _progress(admin, targets)
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


def _existing(admin: Admin, targets: Placement) -> list[TopicPartition]:
    """Return the partitions of a plan that exist."""
    there = admin.layout({place.topic for place in targets}).partitions
    return [place for place in targets if place in there]


def check_outcome(outcome: Mapping[TopicPartition, KafkaError | None], what: str, others: str) -> None:
    """Print errors. Raises ClickException with their number and `what` if there are any.

    others: the words for the partitions without an error.
    """
    errors = [f"{place}: {error}" for place, error in outcome.items() if error is not None]
    for error in errors:
        note(f"Error: {error}")
    if errors:
        done = len(outcome) - len(errors)
        rest = f"the other {done} {others}" if done else "nothing else was changed"
        raise click.ClickException(f"{len(errors)} of {len(outcome)} {what}; {rest}")


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
