"""`pylogd topics relabel`: move a topic to the brokers that carry another label."""

from __future__ import annotations

import click

from pylogd.base.placement.moves import relabel as plan_relabelling
from pylogd.cli.awaited import Waits
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.output import note, print_json, print_records
from pylogd.cli.plan_file import Placement
from pylogd.cli.reassign import begin, check_from_latest, follow, note_left_out, plan_document, seconds_of
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.move_operations import ClusterLayout
from pylogd.client.core.admin.offsets import LATEST


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
        layout = admin.layout([name])
        former = layout.labels.get(name, "")
        targets = plan_relabelling(layout, name, label)
        if plan_only:
            print_json(plan_document(targets))
            return
        _show(layout, targets, label)
        note_left_out(layout)
        if seconds is not None:
            check_from_latest(admin, {name})
        begins = {} if seconds is None else {at: one.offset for at, one in admin.offsets(_latest(targets)).items()}
        begin(admin, targets, throttle=throttle, latest_wait=seconds, labels={name: label})
        if former and former != label:
            note(f"{name} has the label {label}; `pylogd topics relabel {name} {former}` cancels")
        if not no_wait:
            follow(admin, targets, Waits(begins) if begins else None)
            admin.unthrottle([name])


def _latest(targets: Placement) -> dict[TopicPartition, int]:
    return dict.fromkeys(targets, LATEST)


def _show(layout: ClusterLayout, targets: Placement, label: str) -> None:
    current = layout.current
    changed = {place: nodes for place, nodes in targets.items() if set(nodes) != set(current[place])}
    copies = sum(len(set(nodes) - set(current[place])) for place, nodes in changed.items())
    note(f"label {label}: {len(changed)} of {len(targets)} partitions move, {copies} replicas are copied")
    rows = [
        {"partition": place.partition, "replicas": current[place], "future_replicas": nodes}
        for place, nodes in sorted(changed.items())
    ]
    print_records([">partition", "replicas", "future_replicas"], rows)
