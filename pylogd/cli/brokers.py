"""`pylogd brokers`: list brokers, take one out of service for a while, or for good."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from pylogd.cli.broker_summary import broker_columns, broker_summaries
from pylogd.cli.commands import Commands
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.cordoning import set_cordoned
from pylogd.cli.output import confirmed, note, output_option, print_json, print_records
from pylogd.cli.reassign import check_outcome, follow, labelled_brokers, plan_document, throttle_moves, unthrottle
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.admin.maintenance import leads_again, led_by_others
from pylogd.client.core.admin.replica_plan import Placement, plan, shared_hosts
from pylogd.client.core.model import Topic
from pylogd.errors import ErrorCode, KafkaError

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
@click.option("--throttle", type=click.IntRange(1), metavar="BYTES",
              help="Bytes per second that each broker may copy for replicas that are not in sync.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Don't wait for the moves; the same command later continues.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
def decommission(broker: int, plan_only: bool, throttle: int | None, no_wait: bool, yes: bool, bootstrap: str) -> None:
    """Move all replicas of BROKER to the others, so that it can be stopped for good.

    The broker is cordoned first, so that no new replicas come. Then its replicas are moved, which `pylogd reassign
    cancel` stops, and its data directories are looked at: exit status 0 if they are empty. A broker that is down can be
    decommissioned too, if each of its partitions has a leader elsewhere.

    \b
    pylogd brokers decommission 3 --plan
    pylogd brokers decommission 3 --throttle 50000000
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.describe_cluster().brokers
        live = {one.node_id: one.rack for one in found}
        targets = _emptying(admin, broker, live, shared_hosts(found))
        if plan_only:
            print_json(plan_document(targets))
            return
        _check_leaders(admin.list_topics(internal=True), broker, live)
        if not yes and targets and not confirmed(f"Move {len(targets)} replicas away from broker {broker}?"):
            raise click.exceptions.Exit(1)
        if broker in live:
            set_cordoned(admin, broker, (), True)
        _move(admin, targets, throttle, no_wait)
        if no_wait and targets:
            note(f"started to move {len(targets)} replicas; run this command again to see them through")
            return
        _check_empty(admin, broker, live)


def _emptying(admin: Admin, broker: int, live: Mapping[int, str | None], hosts: Mapping[int, str]) -> Placement:
    """Return the moves that leave a broker without replicas. Raises ClickException if the others can't take them.

    live: the racks of the live brokers, by id. hosts: the machines of those that share one.
    """
    topics = admin.list_topics(internal=True)
    current = {TopicPartition(topic.name, one.index): one.replicas for topic in topics for one in topic.partitions}
    moving = admin.reassignments()
    for place, move in moving.items():
        current[place] = tuple(node for node in move.replicas if node not in move.removing)
    affected = {place for place, replicas in current.items() if broker in replicas}
    if not affected and broker not in live:
        raise click.ClickException(f"there is no broker {broker}: it is not live, and has no replicas")
    others = {node: rack for node, rack in live.items() if node != broker}
    dead = {node for replicas in current.values() for node in replicas} - live.keys() - {broker}
    try:
        # Replicas on other brokers that are down stay where they are: they are no business of this command.
        within = labelled_brokers(admin, topics)
        found = plan(current, {**others, **dict.fromkeys(dead)}, None, within, hosts=hosts, balance=False)
    except ValueError as error:
        raise click.ClickException(f"broker {broker} can't be emptied: {error}") from None
    chosen = {place: found[place] for place in affected}
    if onto := sorted({node for place, nodes in chosen.items() for node in set(nodes) - set(current[place])} & dead):
        raise click.ClickException(f"broker {onto[0]} is down and would get replicas: start or decommission it first")
    return chosen


def _check_leaders(topics: Sequence[Topic], broker: int, live: Mapping[int, str | None]) -> None:
    """Raise ClickException if records of a broker that is down are nowhere else."""
    if broker in live:
        return
    lost = [
        f"{topic.name}:{one.index}" for topic in topics for one in topic.partitions
        if broker in one.replicas and one.leader < 0
    ]  # fmt: skip
    if lost:
        raise click.ClickException(
            f"broker {broker} is down, and {len(lost)} partitions have no leader without it ({_some(lost)}): start it, "
            "or see `pylogd cluster elect --unclean`"
        )


def _move(admin: Admin, targets: Placement, throttle: int | None, no_wait: bool) -> None:
    if not targets:
        return
    if throttle is not None:
        throttle_moves(admin, targets, throttle)
    wanted: dict[TopicPartition, Sequence[int] | None] = {**targets}
    check_outcome(admin.reassign(wanted), "moves could not start")
    if not no_wait:
        follow(admin, targets)
        unthrottle(admin, targets)


def _check_empty(admin: Admin, broker: int, live: Mapping[int, str | None]) -> None:
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
            raise click.ClickException(f"broker {broker} still has {len(left)} partitions on disk: {_some(left)}")
        time.sleep(_LOOK_SECONDS)


def _some(names: Sequence[str]) -> str:
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
        set_cordoned(admin, broker, (), True)
        targets = led_by_others(_replicas_of_all(admin), broker)
        _move(admin, targets, None, False)
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
        set_cordoned(admin, broker, (), False)
        targets = leads_again(_replicas_of_all(admin), broker)
        _move(admin, targets, None, False)
        if targets:
            admin.elect_leaders(targets)
    note(f"broker {broker} is the preferred leader of {len(targets)} more partitions, and may get new replicas")


def _replicas_of_all(admin: Admin) -> Placement:
    """Return the replicas of all partitions."""
    topics = admin.list_topics(internal=True)
    return {TopicPartition(topic.name, one.index): one.replicas for topic in topics for one in topic.partitions}


def _check_live(admin: Admin, broker: int) -> None:
    live = [one.node_id for one in admin.describe_cluster().brokers]
    if broker not in live:
        raise click.ClickException(f"broker {broker} is not live; there are {', '.join(map(str, live))}")


def _still_leading(admin: Admin, broker: int) -> list[dict[str, Any]]:
    """Elect other leaders for what a broker leads. Return the partitions that it still leads, with the reason."""
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
