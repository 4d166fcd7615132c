"""`pylogd topics relabel`: move a topic to the brokers that carry another label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.output import note, print_json, print_records
from pylogd.cli.reassign import (
    check_from_latest,
    check_outcome,
    follow,
    plan_document,
    seconds_of,
    throttle_moves,
    unthrottle,
)
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.replica_plan import Placement, plan, shared_hosts
from pylogd.client.core.model import Reassignment, Topic


@click.command()
@click.argument("name", metavar="TOPIC")
@click.argument("label")
@click.option("--plan", "plan_only", is_flag=True, help="Only print the plan as JSON, as `pylogd reassign plan` does.")
@click.option("--throttle", type=click.IntRange(1), metavar="BYTES",
              help="Bytes per second that each broker may copy for replicas that are not in sync.")  # fmt: skip
@click.option("--from-latest", "wait", metavar="TIME",
              help="New replicas copy only new records; see `pylogd reassign execute`.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Don't wait for the moves. The same command later shows their progress, "
              "and removes the throttle.")  # fmt: skip
@bootstrap_option
def relabel(
    name: str, label: str, plan_only: bool, throttle: int | None, wait: str | None, no_wait: bool, bootstrap: str
) -> None:
    """Move TOPIC to the brokers that carry LABEL, and show the progress.

    The topic's placement.label changes as the moves begin, so from then on nobody places a replica on other brokers.
    Records are served all the time: the old replicas leave when the new ones are in sync.

    Interrupting this command does not stop the moves; the same command again shows their progress. To cancel them, or
    to move the topic back, give the former label.

    \b
    pylogd topics relabel events online --plan
    pylogd topics relabel events online --throttle 50000000
    """
    seconds = None if wait is None else seconds_of(wait)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        topic = admin.describe_topic(name)
        former = admin.topic_labels([name]).get(name, "")
        moving = admin.reassignments([(name, one.index) for one in topic.partitions])
        targets = _targets(admin, topic, label, moving)
        current = {TopicPartition(name, one.index): one.replicas for one in topic.partitions}
        if plan_only:
            print_json(plan_document(targets))
            return
        _show(current, targets, label)
        if seconds is not None:
            check_from_latest(admin, {name})
        if throttle is not None:
            throttle_moves(admin, targets, throttle)
        wanted: dict[TopicPartition, Sequence[int] | None] = {**targets}
        try:
            check_outcome(admin.reassign(wanted, latest_wait=seconds, labels={name: label}), "moves could not start")
        except click.ClickException:
            if throttle is not None and not moving:
                unthrottle(admin, targets)
            raise
        if former and former != label:
            note(f"{name} has the label {label}; `pylogd topics relabel {name} {former}` cancels")
        if not no_wait:
            follow(admin, targets)
            unthrottle(admin, targets)


def _targets(admin: Admin, topic: Topic, label: str, moving: Mapping[TopicPartition, Reassignment]) -> Placement:
    """Return the replicas that the topic should have, by partition. Raises ClickException if that can't be."""
    labels = admin.broker_labels()
    live = admin.describe_cluster().brokers
    racks = {one.node_id: one.rack for one in live if label in labels.get(one.node_id, ())}
    if not racks:
        known = sorted({one for carried in labels.values() for one in carried})
        raise click.ClickException(
            f'no live broker carries the label "{label}" (broker.labels); labels in use: {", ".join(known) or "none"}'
        )
    current = {}
    for one in topic.partitions:
        place = TopicPartition(topic.name, one.index)
        # Replicas that are leaving stay first if they carry the label: to move back costs nothing then.
        count = len(one.replicas) - (len(moving[place].removing) if place in moving else 0)
        current[place] = sorted(one.replicas, key=lambda node: node not in racks)[:count]
    try:
        return plan(current, racks, within={topic.name: racks}, hosts=shared_hosts(live))
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def _show(current: Placement, targets: Placement, label: str) -> None:
    changed = {place: nodes for place, nodes in targets.items() if set(nodes) != set(current[place])}
    copies = sum(len(set(nodes) - set(current[place])) for place, nodes in changed.items())
    note(f"label {label}: {len(changed)} of {len(targets)} partitions move, {copies} replicas are copied")
    rows = [
        {"partition": place.partition, "replicas": current[place], "future_replicas": nodes}
        for place, nodes in sorted(changed.items())
    ]
    print_records([">partition", "replicas", "future_replicas"], rows)
