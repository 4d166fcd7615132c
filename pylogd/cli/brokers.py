"""`pylogd brokers`: list brokers, take one out of service for a while, or for good."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import click

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.base.placement.errors import PlacementImpossible
from pylogd.base.placement.leading import leads_again, led_by_others
from pylogd.base.placement.moves import empty
from pylogd.cli.broker_summary import broker_columns, broker_summaries
from pylogd.cli.commands import Commands
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.moves import Placement, begin, follow, plan_document
from pylogd.cli.output import confirm, note, output_option, print_json, print_records, yes_option
from pylogd.client import Admin
from pylogd.client.core.admin.move_operations import ClusterLayout
from pylogd.client.core.model import Topic

#: The throttle of a decommission in bytes per second: half of a link of 1 Gbit/s.
DEFAULT_RATE: Final = 50_000_000
_LOOK_SECONDS: Final = 0.5
_NAMED: Final = 5


@click.group(cls=Commands)
def brokers() -> None:
    """List brokers, take one out of service for a while (maintenance), or for good (decommission).

    \b
    pylogd brokers list
    pylogd brokers maintenance enable 3       it leads nothing: restart it
    pylogd brokers maintenance disable 3      it may lead again
    pylogd brokers decommission 3             move all its replicas away
    """


@brokers.command("list")
@output_option
@bootstrap_option
def list_(bootstrap: str) -> None:
    """List brokers: the live ones, and those that have replicas and are down.

    Prints for each: broker, state, address, rack, host_id (its machine; tables have it if brokers share one), labels,
    replicas, leads, should_lead (partitions of which it is the preferred leader), not_in_sync (its replicas that are
    not).
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.describe_cluster().brokers
        topics = admin.list_topics(internal=True)
        try:
            labels: Mapping[int, Sequence[str]] = admin.broker_labels()
        except KafkaError as error:
            if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            labels = {}
    summaries = broker_summaries(found, topics, labels)
    print_records(broker_columns(summaries), summaries)


@brokers.command()
@click.argument("broker", type=int)
@click.option("--plan", "plan_only", is_flag=True, help="Print the moves, as JSON for `pylogd reassign`; move nothing.")
@click.option("--throttle", type=click.IntRange(0), metavar="BYTES",
              help="Bytes per second that each broker may copy for replicas that are not in sync; 0 for no limit  "
              f"[default: the throttle that brokers have already, or {DEFAULT_RATE}]")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Don't wait for the moves; the same command later continues.")
@yes_option
@bootstrap_option
def decommission(broker: int, plan_only: bool, throttle: int | None, no_wait: bool, yes: bool, bootstrap: str) -> None:
    """Move all replicas of BROKER to the others, so that it can be stopped for good.

    The broker is cordoned first, so that no new replicas come. Then its replicas are moved, which `pylogd reassign
    cancel` stops, and its data directories are looked at: exit status 0 if they are empty. If the plan is refused,
    nothing was changed. A broker that is down can be decommissioned too, if each of its partitions has a leader
    elsewhere.

    \b
    pylogd brokers decommission 3 --plan
    pylogd brokers decommission 3 --throttle 100000000
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        layout = admin.layout()
        targets = _plan_emptying(layout, broker)
        if plan_only:
            print_json(plan_document(targets))
            return
        live = layout.brokers.live
        _check_leaders(admin.list_topics(internal=True), broker, live)
        rate = _rate(admin, throttle) if targets else None
        limit = f"each broker copies at most {rate} bytes per second" if rate else "copying is not throttled"
        if targets:
            note(f"{len(targets)} replicas move away from broker {broker}; {limit} (--throttle)")
        confirm(f"Move {len(targets)} replicas away from broker {broker}?", yes or not targets)
        begin(admin, targets, throttle=rate, cordon=broker)
        moving = {at: one.replicas for at, one in layout.partitions.items() if broker in one.leaving}
        if no_wait and (targets or moving):
            note(f"started to move {len(targets)} replicas, {len(moving)} were moving already; run this command again "
                 "to see them through")  # fmt: skip
            return
        _finish_moves(admin, {**moving, **targets})
        _check_empty(admin, broker, live)


def _rate(admin: Admin, asked: int | None) -> int | None:
    """Return the throttle of a decommission in bytes per second; None for no limit."""
    if asked is not None:
        return asked or None
    return admin.throttle_rate() or DEFAULT_RATE


def _plan_emptying(layout: ClusterLayout, broker: int) -> Placement:
    """Return the moves that leave a broker without replicas. Raises ClickException if the others can't take them."""
    moving = any(broker in one.leaving for one in layout.partitions.values())
    if broker not in layout.brokers.live and broker not in layout.dead and not moving:
        raise click.ClickException(f"there is no broker {broker}: it is not live, and has no replicas")
    try:
        return empty(layout, broker)
    except PlacementImpossible as error:
        raise click.ClickException(f"broker {broker} can't be emptied: {error}. Nothing was changed") from None


def _check_leaders(topics: Sequence[Topic], broker: int, live: Container[int]) -> None:
    """Raise ClickException if the broker is down and partitions have no leader without it."""
    if broker in live:
        return
    lost = [
        f"{topic.name}:{one.index}" for topic in topics for one in topic.partitions
        if broker in one.replicas and one.leader < 0
    ]  # fmt: skip
    if lost:
        raise click.ClickException(
            f"broker {broker} is down, and {len(lost)} partitions have no leader without it ({_shortened(lost)}): "
            "start it, or see `pylogd cluster elect --unclean`"
        )


def _finish_moves(admin: Admin, targets: Placement) -> None:
    """Wait for the end of moves that have begun, and remove their throttle."""
    if targets:
        follow(admin, targets)
        admin.unthrottle({place.topic for place in targets})


def _check_empty(admin: Admin, broker: int, live: Container[int]) -> None:
    """Wait until a live broker has deleted the files that it no longer needs, and report it."""
    if broker not in live:
        note(f"broker {broker} has no replicas any more; it is down, and need not come back")
        return
    end = time.monotonic() + admin.cluster.options.request_timeout
    while True:
        left = [str(place) for one in admin.describe_log_dirs([broker]) for place in one.sizes]
        if not left:
            note(f"broker {broker} is empty, and cordoned: stop it")
            return
        if time.monotonic() >= end:
            raise click.ClickException(f"broker {broker} still has {len(left)} partitions on disk: {_shortened(left)}")
        time.sleep(_LOOK_SECONDS)


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


@brokers.group(cls=Commands)
def maintenance() -> None:
    """Take a broker out of service for a while: it keeps its replicas, but leads nothing, and gets no new ones.

    \b
    pylogd brokers maintenance enable 3 && systemctl restart pylogd
    pylogd cluster health --wait 600
    pylogd brokers maintenance disable 3
    """


@maintenance.command()
@click.argument("broker", type=int)
@output_option
@bootstrap_option
def enable(broker: int, bootstrap: str) -> None:
    """Move leadership away from BROKER, and keep new replicas away from it.

    The broker becomes the last replica of its partitions, so that it is not preferred as their leader, and the
    preferred leaders are elected. What it still leads is printed: topic, partition, reason. Exit status 1 if there is
    such a partition: it can't be used while the broker is down.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        _check_live(admin, broker)
        targets = led_by_others(admin.layout(), broker)
        begin(admin, targets, cordon=broker)
        _finish_moves(admin, targets)
        rest = _still_leading(admin, broker)
    if rest:
        print_records(["topic", ">partition", "reason"], rest)
        raise click.ClickException(f"broker {broker} still leads {len(rest)} partitions")
    note(f"broker {broker} leads nothing and gets no new replicas")


@maintenance.command()
@click.argument("broker", type=int)
@bootstrap_option
def disable(broker: int, bootstrap: str) -> None:
    """Let BROKER lead again, about as many partitions as the others, and have new replicas."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        _check_live(admin, broker)
        targets = leads_again(admin.layout(), broker)
        begin(admin, targets)
        _finish_moves(admin, targets)
        admin.cordon(broker, cordoned=False)
        if targets:
            admin.elect_leaders(targets)
    note(f"broker {broker} is the preferred leader of {len(targets)} more partitions, and may get new replicas")


def _check_live(admin: Admin, broker: int) -> None:
    live = [one.node_id for one in admin.describe_cluster().brokers]
    if broker not in live:
        raise click.ClickException(f"broker {broker} is not live; there are {', '.join(map(str, live))}")


def _still_leading(admin: Admin, broker: int) -> list[dict[str, Any]]:
    """Elect other leaders for a broker's partitions. Return the partitions that it still leads, with the reason."""
    end = time.monotonic() + admin.cluster.options.request_timeout
    while True:
        led = [
            (topic.name, one) for topic in admin.list_topics(internal=True) for one in topic.partitions
            if one.leader == broker
        ]  # fmt: skip
        movable = [(name, one.index) for name, one in led if len(one.isr) > 1 and one.replicas[0] in one.isr]
        if not movable or time.monotonic() >= end:
            break
        admin.elect_leaders(movable)
        time.sleep(_LOOK_SECONDS)
    return [
        {"topic": name, "partition": one.index, "reason": "it has no other replica" if len(one.replicas) == 1
         else "no other replica is in sync" if len(one.isr) == 1 else "another replica was not elected"}
        for name, one in led
    ]  # fmt: skip
