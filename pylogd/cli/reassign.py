"""`pylogd reassign`: move replicas between brokers and follow the progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from pylogd.base.errors import KafkaError
from pylogd.base.placement.moves import spread
from pylogd.cli.commands import Commands
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.moves import (
    Placement,
    WaitReport,
    begin,
    check_from_latest,
    follow,
    note_late_groups,
    note_left_out,
    plan_document,
    progress_of,
    read_plan,
    seconds_of,
)
from pylogd.cli.output import note, output_option, print_json, print_records
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.move_operations import ClusterLayout
from pylogd.client.core.admin.offsets import LATEST


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
            follow(admin, targets, WaitReport(offsets) if offsets else None)
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
        rows = progress_of(admin, targets)
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


def changes(layout: ClusterLayout, planned: Placement) -> tuple[Placement, int]:
    """Return the partitions whose replicas or preferred leader change, and the number of replicas to copy."""
    current = layout.current
    changed = {place: nodes for place, nodes in planned.items() if nodes != current[place]}
    return changed, sum(len(set(nodes) - set(current[place])) for place, nodes in changed.items())


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


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of broker ids") from None
