"""`pylogd transactions`: list and describe transactions, find those that hang, and abort them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pylogd.base.clock import wall_ms
from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.cli.commands import Commands
from pylogd.cli.common import bootstrap_option, connect, format_time, parse_span
from pylogd.cli.output import confirm, note, output_option, print_document, print_line, print_records, yes_option
from pylogd.client import Admin, TopicPartition
from pylogd.client.core.model import ActiveProducer

_MAX_TIMEOUT = "15m"  # the default of transaction.max.timeout.ms


def _span(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    """Return a span of time in seconds."""
    if text is None:
        return None
    if (found := parse_span(text)) is None:
        raise click.BadParameter(f"{text!r} is not a span of time: use 90s, 15m, 2h or 1d")
    return found / 1000


@click.group(cls=Commands)
def transactions() -> None:
    """List, describe and abort transactions.

    A producer with a transactional id makes records in several partitions count together or not at all. Consumers that
    read committed records get none behind the first record of a transaction that is open. A transaction hangs if it is
    open in a partition, but its coordinator does not know that: then they wait for ever.

    \b
    pylogd transactions list --state Ongoing --longer-than 5m
    pylogd transactions describe billing-1
    pylogd transactions find-hanging --topic orders
    pylogd transactions abort orders 0 --start-offset 1234
    pylogd transactions abort --transactional-id billing-1
    """


@transactions.command("list")
@click.option("-s", "--state", "states", multiple=True, metavar="STATE",
              help="Only ids in this state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, "
              "CompleteAbort. Repeatable.")  # fmt: skip
@click.option("--producer-id", "producer_ids", type=int, multiple=True, help="Only this producer. Repeatable.")
@click.option("--longer-than", callback=_span, metavar="TIME",
              help="Only transactions that have been open for longer: 90s, 15m, 2h.")  # fmt: skip
@click.option("--matching", metavar="REGEX", help="Only ids that match this regular expression (RE2).")
@output_option
@bootstrap_option
def list_(
    states: Sequence[str], producer_ids: Sequence[int], longer_than: float | None, matching: str | None,
    bootstrap: str,
) -> None:  # fmt: skip
    """List transactional ids with the state of their present or last transaction.

    Prints for each: transactional_id, state, producer_id, coordinator.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        try:
            found = admin.list_transactions(
                states=states, producer_ids=producer_ids, longer_than=longer_than, pattern=matching
            )
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    print_records(["transactional_id", "state", ">producer_id", ">coordinator"], [one._asdict() for one in found])


@transactions.command()
@click.argument("names", nargs=-1, required=True, metavar="ID...")
@output_option
@bootstrap_option
def describe(names: Sequence[str], bootstrap: str) -> None:
    """Show transactional ids: the producer, the timeout, and the partitions of an open transaction."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = [admin.describe_transaction(name) for name in names]
    if print_document([one._asdict() for one in found]):
        return
    for one in found:
        print_line(one.transactional_id, bold=True)
        print_line(f"  state {one.state}, coordinator {one.coordinator}")
        print_line(f"  producer id {one.producer_id}, epoch {one.epoch}, timeout {one.timeout / 1000:g} s")
        if one.started >= 0:
            seconds = max(0, wall_ms() - one.started) / 1000
            since = "open since" if one.is_open else "last transaction began at"
            print_line(f"  {since} {format_time(one.started)} ({seconds:.0f} s ago)")
        for partition in one.partitions:
            print_line(f"  {partition}")


@transactions.command("find-hanging")
@click.option("-t", "--topic", "topics", multiple=True, help="Only partitions of this topic. Repeatable.")
@click.option("--max-timeout", default=_MAX_TIMEOUT, show_default=True, callback=_span, metavar="TIME",
              help="Leave out who wrote within this time: the brokers' transaction.max.timeout.ms.")  # fmt: skip
@output_option
@bootstrap_option
def find_hanging(topics: Sequence[str], max_timeout: float, bootstrap: str) -> None:
    """Find transactions that are open in a partition, and not known to their coordinator.

    Exit status 1 if there are any. Prints for each: topic, partition, producer_id, epoch, transaction_start (its first
    offset), last_timestamp. `pylogd transactions abort` ends them.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        described = [admin.describe_topic(name) for name in topics] if topics else admin.list_topics(internal=True)
        partitions = [TopicPartition(topic.name, each.index) for topic in described for each in topic.partitions]
        before = wall_ms() - max_timeout * 1000
        producers = {
            at: [one for one in found if one.last_timestamp < before]
            for at, found in admin.describe_producers(partitions).items()
        }
        hanging = admin.hanging_transactions(producers)
    print_records(
        ["topic", ">partition", ">producer_id", ">epoch", ">transaction_start", "last_timestamp"],
        [{"topic": at.topic, "partition": at.partition, **one._asdict()} for at, one in hanging],
        {"last_timestamp": format_time},
    )
    if not hanging:
        note(f"No transaction hangs (partitions searched: {len(partitions)}).")
    if hanging:
        raise click.exceptions.Exit(1)


@transactions.command()
@click.argument("topic", required=False)
@click.argument("partition", type=click.IntRange(0), required=False)
@click.option("--start-offset", type=click.IntRange(0), help="The first offset of the transaction.")
@click.option("--producer-id", type=click.IntRange(0), help="The producer; in place of --start-offset.")
@click.option("--transactional-id", metavar="ID",
              help="The transactional id; in place of TOPIC, PARTITION and --start-offset.")  # fmt: skip
@yes_option
@bootstrap_option
def abort(
    topic: str | None, partition: int | None, start_offset: int | None, producer_id: int | None,
    transactional_id: str | None, yes: bool, bootstrap: str,
) -> None:  # fmt: skip
    """Abort a transaction, whatever its state: one that hangs in a PARTITION of TOPIC, or one of a transactional id.

    A transaction that hangs is not known to its coordinator: the marker is written that its coordinator does not write,
    in this partition. One that its coordinator knows would end at the latest after its timeout. The coordinator aborts
    it at once in all of its partitions, and fences its producer, which fails. If its outcome is decided already, the
    command waits until each partition has its marker.
    """
    if transactional_id is not None:
        if (topic, partition, start_offset, producer_id) != (None, None, None, None):
            raise click.UsageError("--transactional-id names the transaction; leave out everything else")
        with connect(bootstrap) as connected, Admin(connected) as admin:
            _terminate(admin, transactional_id, yes)
        return
    if topic is None or partition is None:
        raise click.UsageError("name TOPIC and PARTITION, or --transactional-id")
    if (start_offset is None) == (producer_id is None):
        raise click.UsageError("name the transaction by --start-offset or by --producer-id; see find-hanging")
    at = TopicPartition(topic, partition)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = _find(admin, at, start_offset, producer_id)
        if not admin.hanging_transactions({at: [found]}):
            [known] = admin.list_transactions(producer_ids=[found.producer_id])
            _terminate(admin, known.transactional_id, yes)
            return
        question = (
            f"Abort the transaction of producer {found.producer_id} from offset {found.transaction_start} of {at}?"
        )
        confirm(question, yes)
        admin.abort_transaction(at, found)
    note(f"{at}: aborted the transaction of producer {found.producer_id}")


def _terminate(admin: Any, transactional_id: str, yes: bool) -> None:
    """Have the coordinator end the transaction of a transactional id."""
    before = admin.describe_transaction(transactional_id)
    question = (
        f"End the transaction of {transactional_id} (state {before.state}, partitions: {len(before.partitions)}) and "
        "fence its producer?"
    )
    confirm(question, yes)
    try:
        admin.force_terminate_transaction(transactional_id)
    except KafkaError as error:
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            raise
        left = admin.describe_transaction(transactional_id)
        raise KafkaError(
            error.code,
            f"{transactional_id}: {left.state} is decided, but some partition does not have its marker yet: "
            f"{', '.join(map(str, left.partitions))}. See that they have leaders (pylogd cluster health); the "
            "coordinator keeps trying",
        ) from None
    if before.is_open:
        outcome = "committed" if before.state == "PrepareCommit" else "aborted"
        note(f"{transactional_id}: {outcome} the transaction, and fenced its producer")
    else:
        note(f"{transactional_id}: no transaction is open; fenced its producer")


def _find(admin: Any, at: TopicPartition, start_offset: int | None, producer_id: int | None) -> ActiveProducer:
    """Return the producer of the selected transaction. Raises KafkaError if it is not found."""
    for one in admin.describe_producers([at])[at]:
        producer: ActiveProducer = one
        if producer.transaction_start >= 0 and (
            producer.transaction_start == start_offset or producer.producer_id == producer_id
        ):
            return producer
    named = f"from offset {start_offset}" if producer_id is None else f"of producer {producer_id}"
    raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"{at}: no transaction {named} is open")
