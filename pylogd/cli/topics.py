"""`pylogd topics`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from pylogd.cli.common import assignments, bootstrap_option, connect, format_time, json_option
from pylogd.cli.output import confirmed, note, print_json, print_line, print_table
from pylogd.cli.relabel import relabel
from pylogd.client import Admin, NewTopic
from pylogd.client.core.model import Topic
from pylogd.errors import ErrorCode, KafkaError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def topics() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    pylogd topics create events --partitions 4 --config retention.ms=86400000
    pylogd topics list
    pylogd topics describe events
    pylogd topics alter events --partitions 8 --config max.message.bytes=2000000
    pylogd topics relabel events online
    pylogd topics delete events --yes
    """


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "-p", "--partitions", type=click.IntRange(1), help="Number of partitions  [default: the broker's num.partitions]"
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1),
    help="Replicas per partition  [default: the broker's default.replication.factor]",
)
@click.option("-c", "--config", "configs", multiple=True, metavar="NAME=VALUE", callback=assignments,
              help="A setting of the topic; see `pylogd settings --topic`. Repeatable.")  # fmt: skip
@click.option("--if-not-exists", is_flag=True, help="Ignore a topic that already exists.")
@click.option("--validate-only", is_flag=True, help="Only check whether the topics could be created.")
@bootstrap_option
def create(
    names: Sequence[str], partitions: int | None, replication_factor: int | None, configs: dict[str, str],
    if_not_exists: bool, validate_only: bool, bootstrap: str,
) -> None:  # fmt: skip
    """Create topics.

    \b
    pylogd topics create events
    pylogd topics create clicks views -p 12 -c compression.type=zstd -c retention.bytes=1000000000
    """
    new = [NewTopic(name, partitions or -1, replication_factor or -1, configs) for name in names]
    with connect(bootstrap) as connected, Admin(connected) as admin:
        outcome = admin.create_topics(new, validate_only=validate_only)
    _report(outcome, ErrorCode.TOPIC_ALREADY_EXISTS if if_not_exists else None)


@topics.command("list")
@click.option("--internal", is_flag=True, help="Also list internal topics.")
@json_option
@bootstrap_option
def list_(internal: bool, as_json: bool, bootstrap: str) -> None:
    """List topics, one name per line."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        names = [topic.name for topic in admin.list_topics(internal=internal)]
    if as_json:
        print_json(names)
    else:
        for name in names:
            print_line(name)


@topics.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@bootstrap_option
def describe(names: Sequence[str], as_json: bool, bootstrap: str) -> None:
    """Show partitions, leaders, replicas and changed settings of the named topics, or of all.

    In a pipe, a line for each partition: topic, partition, leader, replicas, in-sync replicas.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = [admin.describe_topic(name) for name in names] if names else admin.list_topics()
        settings = {
            topic.name: {
                entry.name: entry.value
                for entry in admin.describe_configs("topic", topic.name)
                if entry.source == "topic"
            }
            for topic in found
        }
    if as_json:
        print_json([_as_json(topic, settings[topic.name]) for topic in found])
    elif sys.stdout.isatty():
        for topic in found:
            label = settings[topic.name].get("placement.label")
            on = f"  on brokers with the label {label}" if label else ""
            print_line(f"{topic.name}  id {topic.topic_id.hex()}{on}", bold=True)
            for name, value in settings[topic.name].items():
                print_line(f"  {name} = {value}")
            print_table([">partition", ">leader", "replicas", "in sync"], _rows(topic))
    else:
        print_table([], ([topic.name, *row] for topic in found for row in _rows(topic)))


@topics.command()
@click.argument("name")
@json_option
@bootstrap_option
def producers(name: str, as_json: bool, bootstrap: str) -> None:
    """Show which idempotent producers write to a topic: their ids, epochs and last records.

    A partition forgets a producer that wrote nothing for `producer.id.expiration.ms`.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        partitions = [(name, partition.index) for partition in admin.describe_topic(name).partitions]
        found = admin.describe_producers(partitions)
    if as_json:
        print_json([{"partition": at.partition, **one._asdict()} for at in sorted(found) for one in found[at]])
        return
    rows = [
        [
            str(at.partition),
            str(one.producer_id),
            str(one.epoch),
            str(one.last_sequence),
            format_time(one.last_timestamp),
        ]
        for at in sorted(found)
        for one in found[at]
    ]
    print_table([">partition", ">producer id", ">epoch", ">last sequence", "last record"], rows)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Ignore a topic that does not exist.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
def delete(names: Sequence[str], if_exists: bool, yes: bool, bootstrap: str) -> None:
    """Delete topics with all their records. On a terminal, asks for confirmation."""
    if not yes and not confirmed(f"Delete {', '.join(names)} with all records?"):
        raise click.exceptions.Exit(1)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        outcome = admin.delete_topics(names)
    _report(outcome, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if if_exists else None)


@topics.command()
@click.argument("name")
@click.option(
    "-p", "--partitions", type=click.IntRange(1), help="New number of partitions; must be larger than the old one."
)
@click.option("-c", "--config", "configs", multiple=True, metavar="NAME=VALUE", callback=assignments,
              help="Change a setting. Repeatable.")  # fmt: skip
@click.option(
    "-d",
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="NAME",
    help="Reset a setting to its default. Repeatable.",
)
@bootstrap_option
def alter(name: str, partitions: int | None, configs: dict[str, str], deleted: Sequence[str], bootstrap: str) -> None:
    """Change a topic's settings or number of partitions.

    \b
    pylogd topics alter events --config retention.ms=3600000
    pylogd topics alter events --delete-config retention.ms --partitions 8
    """
    if not (partitions or configs or deleted):
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")
    with connect(bootstrap) as connected, Admin(connected) as admin:
        if configs or deleted:
            admin.alter_configs("topic", name, {**configs, **dict.fromkeys(deleted)})
        if partitions:
            admin.create_partitions(name, partitions)


topics.add_command(relabel)


def _report(outcome: dict[str, KafkaError | None], ignored: ErrorCode | None) -> None:
    errors = [f"{name}: {error}" for name, error in outcome.items() if error is not None and error.code is not ignored]
    for error in errors[:-1]:
        note(f"Error: {error}")
    if errors:
        raise click.ClickException(errors[-1])


def _ids(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes))


def _rows(topic: Topic) -> list[list[Any]]:
    return [[p.index, p.leader, _ids(p.replicas), _ids(p.isr)] for p in topic.partitions]


def _as_json(topic: Topic, settings: dict[str, str | None]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "internal": topic.internal,
        "configs": settings,
        "partitions": [
            {"partition": p.index, "leader": p.leader, "replicas": list(p.replicas), "isr": list(p.isr)}
            for p in topic.partitions
        ],
    }
