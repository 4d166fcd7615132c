"""`pylogd topics`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.base.placement.moves import relabel as plan_relabelling
from pylogd.cli.commands import Commands
from pylogd.cli.common import assignments, bootstrap_option, connect, format_bytes, format_time, parse_time
from pylogd.cli.moves import (
    Placement,
    WaitReport,
    begin,
    check_from_latest,
    follow,
    note_left_out,
    plan_document,
    seconds_of,
)
from pylogd.cli.names import check_partitions, matching, regex_option, topic_names
from pylogd.cli.output import (
    confirm,
    fail_on,
    note,
    output_format,
    output_option,
    print_document,
    print_json,
    print_line,
    print_records,
    yes_option,
)
from pylogd.client import Admin, NewTopic, TopicPartition
from pylogd.client.core.admin.move_operations import ClusterLayout
from pylogd.client.core.admin.offsets import EARLIEST, LATEST
from pylogd.client.core.model import Topic


@click.group(cls=Commands)
def topics() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    pylogd topics create events --partitions 4 --config retention.ms=86400000
    pylogd topics list
    pylogd topics describe events
    pylogd topics alter events --partitions 8 --config max.message.bytes=2000000
    pylogd topics relabel events online
    pylogd topics delete-records events --before 7d
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
    pylogd topics create clicks views -p 12 -c compression.type=zstd \\
        -c retention.bytes=1000000000
    """
    new = [NewTopic(name, partitions or -1, replication_factor or -1, configs) for name in names]
    with connect(bootstrap) as connected, Admin(connected) as admin:
        outcome = admin.create_topics(new, validate_only=validate_only)
    _report(outcome, ErrorCode.TOPIC_ALREADY_EXISTS if if_not_exists else None)


@topics.command("list")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=topic_names)
@regex_option
@click.option("--internal", is_flag=True, help="Also list internal topics.")
@click.option("--sizes", is_flag=True, help="Also ask the brokers for the number of records and bytes.")
@click.option("--names", "only_names", is_flag=True, help="Print only names, one per line.")
@output_option
@bootstrap_option
def list_(names: Sequence[str], regex: bool, internal: bool, sizes: bool, only_names: bool, bootstrap: str) -> None:
    """List topics: all, or those with the NAMEs.

    Prints for each: topic, partitions, replicas (of a partition, the most); with --sizes also records (if none was
    compacted away) and bytes, those of all replicas together.

    \b
    pylogd topics list --sizes
    pylogd topics list --regex 'orders-.*'
    pylogd topics list --names | xargs -n 1 pylogd offsets
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = chosen_topics(admin, names, regex, internal=internal)
        figures = _sizes(admin, found) if sizes else {}
    if only_names:
        for topic in found:
            print_line(topic.name)
        return
    columns = ["topic", ">partitions", ">replicas"] + ([">records", ">bytes"] if sizes else [])
    rows = [
        {
            "topic": topic.name, "partitions": len(topic.partitions),
            "replicas": max((len(one.replicas) for one in topic.partitions), default=0), "internal": topic.internal,
            **figures.get(topic.name, {}),
        }
        for topic in found
    ]  # fmt: skip
    print_records(columns, rows, {"bytes": format_bytes})


def chosen_topics(admin: Admin, names: Sequence[str], regex: bool, *, internal: bool = False) -> list[Topic]:
    """Return the topics with these names, or that match them as regular expressions; all if there are no names."""
    if names and not regex:
        return [admin.describe_topic(name) for name in names]
    found = admin.list_topics(internal=internal)
    if not names:
        return found
    wanted = set(matching(names, (topic.name for topic in found)))
    return [topic for topic in found if topic.name in wanted]


def _sizes(admin: Admin, found: Sequence[Topic]) -> dict[str, dict[str, int | None]]:
    """Return the numbers of records and bytes of topics; records are None if a partition has no leader."""
    online = [
        TopicPartition(topic.name, one.index) for topic in found for one in topic.partitions if one.leader >= 0
    ]  # fmt: skip
    begins = admin.offsets(dict.fromkeys(online, EARLIEST))
    ends = admin.offsets(dict.fromkeys(online, LATEST))
    stored: Counter[str] = Counter()
    for directory in admin.describe_log_dirs():
        for at, size in directory.sizes.items():
            stored[at.topic] += size
    figures: dict[str, dict[str, int | None]] = {}
    for topic in found:
        places = [TopicPartition(topic.name, one.index) for one in topic.partitions]
        known = all(one in ends for one in places)
        records = sum(ends[one].offset - begins[one].offset for one in places) if known else None
        figures[topic.name] = {"records": records, "bytes": stored[topic.name]}
    return figures


@topics.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=topic_names)
@regex_option
@output_option
@bootstrap_option
def describe(names: Sequence[str], regex: bool, bootstrap: str) -> None:
    """Show partitions, leaders, replicas and changed settings of the named topics, or of all.

    Prints for each partition: partition, leader, replicas, isr (the replicas in sync); tsv has the topic before.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = chosen_topics(admin, names, regex)
        settings = {
            topic.name: {
                entry.name: entry.value
                for entry in admin.describe_configs("topic", topic.name)
                if entry.source == "topic"
            }
            for topic in found
        }
    documents = [_as_json(topic, settings[topic.name]) for topic in found]
    if print_document(documents):
        return
    if output_format() == "tsv":
        rows = [{"topic": topic["topic"], **one} for topic in documents for one in topic["partitions"]]
        print_records(["topic", "partition", "leader", "replicas", "isr"], rows)
        return
    for topic in documents:
        label = topic["configs"].get("placement.label")
        on = f"  on brokers with the label {label}" if label else ""
        print_line(f"{topic['topic']}  id {topic['topic_id']}{on}", bold=True)
        for name, value in topic["configs"].items():
            print_line(f"  {name} = {value}")
        print_records([">partition", ">leader", "replicas", "isr"], topic["partitions"])
        print_line("")


@topics.command()
@click.argument("name", shell_complete=topic_names)
@output_option
@bootstrap_option
def producers(name: str, bootstrap: str) -> None:
    """Show which idempotent producers write to a topic: their ids, epochs and last records.

    A partition forgets a producer that wrote nothing for `producer.id.expiration.ms`.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        partitions = [(name, partition.index) for partition in admin.describe_topic(name).partitions]
        found = admin.describe_producers(partitions)
    print_records(
        [">partition", ">producer_id", ">epoch", ">last_sequence", "last_timestamp"],
        [{"partition": at.partition, **one._asdict()} for at in sorted(found) for one in found[at]],
        {"last_timestamp": format_time},
    )


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)
@regex_option
@click.option("--if-exists", is_flag=True, help="Ignore a topic that does not exist.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation; needed for --regex in scripts.")
@bootstrap_option
def delete(names: Sequence[str], regex: bool, if_exists: bool, yes: bool, bootstrap: str) -> None:
    """Delete topics with all their records. On a terminal, asks for confirmation."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        if regex:
            names = [topic.name for topic in chosen_topics(admin, names, regex)]
            if not yes and not sys.stdin.isatty():
                raise click.UsageError(f"this would delete {', '.join(names)}: confirm it with --yes")
        confirm(f"Delete {', '.join(names)} with all records?", yes)
        outcome = admin.delete_topics(names)
    _report(outcome, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if if_exists else None)


@topics.command()
@click.argument("name", shell_complete=topic_names)
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


@topics.command()
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
        _show_moves(layout, targets, label)
        note_left_out(layout)
        if seconds is not None:
            check_from_latest(admin, {name})
        begins = (
            {}
            if seconds is None
            else {at: one.offset for at, one in admin.offsets(dict.fromkeys(targets, LATEST)).items()}
        )
        begin(admin, targets, throttle=throttle, latest_wait=seconds, labels={name: label})
        if former and former != label:
            note(f"{name} has the label {label}; `pylogd topics relabel {name} {former}` cancels")
        if not no_wait:
            follow(admin, targets, WaitReport(begins) if begins else None)
            admin.unthrottle([name])


def _show_moves(layout: ClusterLayout, targets: Placement, label: str) -> None:
    current = layout.current
    changed = {place: nodes for place, nodes in targets.items() if set(nodes) != set(current[place])}
    copies = sum(len(set(nodes) - set(current[place])) for place, nodes in changed.items())
    note(f"label {label}: {len(changed)} of {len(targets)} partitions move, {copies} replicas are copied")
    rows = [
        {"partition": place.partition, "replicas": current[place], "future_replicas": nodes}
        for place, nodes in sorted(changed.items())
    ]
    print_records([">partition", "replicas", "future_replicas"], rows)


@topics.command("delete-records")
@click.argument("name", metavar="TOPIC", shell_complete=topic_names)
@click.option("-p", "--partition", "chosen", type=click.IntRange(0), multiple=True,
              help="Only this partition. Repeatable.")  # fmt: skip
@click.option("--before", required=True, metavar="WHERE",
              help="Delete what is before this: an offset, end (all records), or a time: 2026-11-21T08:00, @1795219200 "
              "(seconds since 1970), or 15m, 2h, 3d ago.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@yes_option
@output_option
@bootstrap_option
def delete_records(name: str, chosen: Sequence[int], before: str, dry_run: bool, yes: bool, bootstrap: str) -> None:
    """Delete the records of TOPIC before an offset or a time. On a terminal, asks for confirmation.

    Consumers can't read them from then on. Disks have their space back when a whole segment is deleted.

    Prints for each partition: topic, partition, beginning (before), new_beginning, deleted (if none was compacted
    away).

    \b
    pylogd topics delete-records events --before 7d --dry-run
    pylogd topics delete-records events --partition 3 --before 120000 --yes
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        partitions = _chosen_partitions(admin, name, chosen)
        begins = {at: found.offset for at, found in admin.offsets(dict.fromkeys(partitions, EARLIEST)).items()}
        targets = _new_beginnings(admin, partitions, before)
        targets = {at: max(offset, begins[at]) for at, offset in targets.items()}
        count = sum(offset - begins[at] for at, offset in targets.items())
        if not dry_run and count:
            confirm(f"Delete {count} records of {name}?", yes)
            targets |= admin.delete_records({at: offset for at, offset in targets.items() if offset > begins[at]})
    rows: list[dict[str, Any]] = [
        {"topic": at.topic, "partition": at.partition, "beginning": begins[at], "new_beginning": offset,
         "deleted": offset - begins[at]} for at, offset in sorted(targets.items())
    ]  # fmt: skip
    print_records(["topic", ">partition", ">beginning", ">new_beginning", ">deleted"], rows)
    if dry_run:
        note("Nothing was deleted (--dry-run).")


def _chosen_partitions(admin: Admin, name: str, chosen: Sequence[int]) -> list[TopicPartition]:
    there = [one.index for one in admin.describe_topic(name).partitions]
    check_partitions(name, chosen, there)
    return [TopicPartition(name, index) for index in chosen or there]


def _new_beginnings(admin: Admin, partitions: Sequence[TopicPartition], before: str) -> dict[TopicPartition, int]:
    """Return the first offset that stays in each partition."""
    ends = {at: found.offset for at, found in admin.offsets(dict.fromkeys(partitions, LATEST)).items()}
    if before == "end":
        return ends
    if before.isdecimal():
        return {at: min(int(before), end) for at, end in ends.items()}
    timestamp = parse_time(before)
    if timestamp is None:
        raise click.BadParameter(f"{before!r}: use an offset, end, or a time such as 7d", param_hint="--before")
    found = admin.offsets(dict.fromkeys(partitions, timestamp))
    return {at: ends[at] if found[at].offset < 0 else found[at].offset for at in partitions}


def _report(outcome: dict[str, KafkaError | None], ignored: ErrorCode | None) -> None:
    fail_on([f"{name}: {error}" for name, error in outcome.items() if error is not None and error.code is not ignored])


def _as_json(topic: Topic, settings: dict[str, str | None]) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id.hex(),
        "internal": topic.internal,
        "configs": settings,
        "partitions": [
            {"partition": p.index, "leader": p.leader, "replicas": list(p.replicas), "isr": list(p.isr)}
            for p in topic.partitions
        ],
    }
