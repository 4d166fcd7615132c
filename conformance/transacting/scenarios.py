"""What each client does with transactions, as one script for all of them, against each broker.

Each function is a scenario; its transcript has to be the same with both brokers. The name of a check is that of the
function, with blanks.
"""

from __future__ import annotations

import time
from typing import Any, Final

from conformance.transacting.stage import Stage

_VALUES: Final = ["one", "two", "three"]
_LEVELS: Final = ("read_committed", "read_uncommitted")


def _look(stage: Stage, topic: str, partitions: int = 1) -> None:
    """Keep what readers of both isolation levels see, and where the log ends for them."""
    for level in _LEVELS:
        stage("read", topic=topic, partitions=partitions, isolation=level)
        stage("ends", topic=topic, partitions=partitions, isolation=level)


def _begin(stage: Stage, topic: str, value: str, name: str = "p") -> None:
    """Begin a transaction with a record."""
    stage("begin", name=name)
    stage("send", name=name, topic=topic, partition=0, values=[value])


def _commit(stage: Stage, topic: str, value: str, name: str = "p") -> None:
    """Commit a transaction of one record."""
    _begin(stage, topic, value, name)
    stage("commit", name=name)


def _stable(stage: Stage, topic: str) -> None:
    """Wait until no transaction is open in a topic of one partition, and keep what readers see."""

    def over() -> bool:
        ends = [stage.quietly("ends", topic=topic, partitions=1, isolation=level) for level in _LEVELS]
        return bool(ends[0] == ends[1])

    stage.until("nothing is open", over)
    _look(stage, topic)


def commit_in_two_topics(stage: Stage) -> None:
    """Offsets have a place for the marker."""
    orders, bills = stage.topic("orders", 2), stage.topic("bills")
    stage.producer("p")
    for number in range(2):
        stage("begin", name="p")
        stage("send", name="p", topic=orders, partition=0, values=_VALUES)
        stage("send", name="p", topic=orders, partition=1, values=[f"number {number}"])
        stage("send", name="p", topic=bills, partition=0, values=_VALUES[:2])
        stage("commit", name="p")
    _stable(stage, bills)
    _look(stage, orders, 2)


def abort(stage: Stage) -> None:
    """Aborted records are for readers of what is not committed only."""
    topic = stage.topic("t")
    stage.producer("p")
    for ending in ("commit", "abort", "commit", "abort", "abort"):
        stage("begin", name="p")
        stage("send", name="p", topic=topic, partition=0, values=[f"{ending} {value}" for value in _VALUES])
        stage(ending, name="p")
    _stable(stage, topic)


def an_open_transaction(stage: Stage) -> None:
    """The last stable offset stays before it, also for another producer's transaction behind it."""
    topic = stage.topic("t")
    stage.producer("p", "first")
    stage.producer("q", "second")
    _begin(stage, topic, "before")
    _commit(stage, topic, "within", name="q")
    stage.until("the marker is there", lambda: _end(stage, topic) == {"0": 3})
    _look(stage, topic)
    stage("commit", name="p")
    _stable(stage, topic)


def _end(stage: Stage, topic: str) -> Any:
    return stage.quietly("ends", topic=topic, partitions=1, isolation="read_uncommitted")


def nothing_sent(stage: Stage) -> None:
    """Transactions without records leave no marker."""
    topic = stage.topic("t")
    stage.producer("p")
    for ending in ("commit", "abort", "commit"):
        stage("begin", name="p")
        stage(ending, name="p")
    stage("begin", name="p")
    stage("send", name="p", topic=topic, partition=0, values=_VALUES)
    stage("commit", name="p")
    _stable(stage, topic)


def steps_in_the_wrong_order(stage: Stage) -> None:
    """What the client itself refuses."""
    topic = stage.topic("t")
    stage.quietly("producer", name="p", id=stage.named("id"), timeout=30000)
    stage("begin", name="p")
    stage("init", name="p")
    stage("commit", name="p")
    stage("abort", name="p")
    stage("begin", name="p")
    stage("begin", name="p")
    stage("send", name="p", topic=topic, partition=0, values=_VALUES)
    stage("commit", name="p")
    _stable(stage, topic)


def fenced_by_a_second_producer(stage: Stage) -> None:
    """Its open transaction is aborted; it can neither send nor commit."""
    topic = stage.topic("t")
    stage.producer("p")
    _begin(stage, topic, "of the first")
    stage.producer("q")
    _begin(stage, topic, "of the second", name="q")
    stage("send", name="p", topic=topic, partition=0, values=["too late"])
    stage("commit", name="p")
    stage("commit", name="q")
    _stable(stage, topic)


def fenced_at_its_commit(stage: Stage) -> None:
    """The first word that the first producer hears of the second is the answer to its commit."""
    topic = stage.topic("t")
    stage.producer("p")
    _begin(stage, topic, "of the first")
    stage.producer("q")
    stage("commit", name="p")
    _commit(stage, topic, "of the second", name="q")
    _stable(stage, topic)


def fenced_at_its_abort(stage: Stage) -> None:
    """The same with an abort."""
    topic = stage.topic("t")
    stage.producer("p")
    _begin(stage, topic, "of the first")
    stage.producer("q")
    stage("abort", name="p")
    _stable(stage, topic)


def fenced_between_transactions(stage: Stage) -> None:
    """A producer without an open transaction hears of it at its next one."""
    topic = stage.topic("t")
    stage.producer("p")
    _commit(stage, topic, "the first one")
    stage.producer("q")
    _commit(stage, topic, "too late")
    _stable(stage, topic)


def aborted_after_its_timeout(stage: Stage) -> None:
    """The coordinator ends it. The producer hears of it at its commit; a new one goes on."""
    topic = stage.topic("t")
    stage.producer("p", timeout=1000)
    stage("begin", name="p")
    stage("send", name="p", topic=topic, partition=0, values=_VALUES)
    _stable(stage, topic)
    stage("commit", name="p")
    stage("abort", name="p")
    stage.producer("q")
    _commit(stage, topic, "after", name="q")
    _stable(stage, topic)


def send_after_its_timeout(stage: Stage) -> None:
    """The same, but it sends first."""
    topic = stage.topic("t")
    stage.producer("p", timeout=1000)
    _begin(stage, topic, "in time")
    _stable(stage, topic)
    stage("send", name="p", topic=topic, partition=0, values=["too late"])
    stage("commit", name="p")
    stage("abort", name="p")
    _commit(stage, topic, "again")
    _stable(stage, topic)


def abort_after_its_timeout(stage: Stage) -> None:
    """The producer wants what the coordinator did already."""
    topic = stage.topic("t")
    stage.producer("p", timeout=1000)
    _begin(stage, topic, "in time")
    _stable(stage, topic)
    stage("abort", name="p")
    _commit(stage, topic, "again")
    _stable(stage, topic)


def a_timeout_over_the_maximum(stage: Stage) -> None:
    """The broker allows 15 minutes."""
    stage.producer("p", timeout=900_001)
    stage.producer("q", id="other", timeout=900_000)


def a_topic_that_is_not_there(stage: Stage) -> None:
    """A transaction with a failed record can be aborted only."""
    topic = stage.topic("t")
    stage.producer("p")
    _begin(stage, topic, "before")
    stage("send", name="p", topic=topic, partition=7, values=["nowhere"])
    stage("commit", name="p")
    stage("abort", name="p")
    _commit(stage, topic, "after")
    _stable(stage, topic)


def a_record_that_is_too_large(stage: Stage) -> None:
    """The topic takes 1,000 bytes at a time."""
    topic = stage.topic("t")
    stage.limit(topic)
    stage.producer("p")
    _begin(stage, topic, "small")
    stage("send", name="p", topic=topic, partition=0, values=["large" * 1000])
    time.sleep(0.5)  # Java's client says that a record failed a moment before its transaction knows of it
    stage("commit", name="p")
    stage("abort", name="p")
    _commit(stage, topic, "after")
    _stable(stage, topic)


def offsets_committed_and_aborted(stage: Stage) -> None:
    """Offsets count when their transaction is committed. The consumer is not a member."""
    topic, source = stage.topic("t"), stage.topic("source", 2)
    stage.quietly("consumer", name="c", group=stage.named("g"))
    stage.producer("p")
    for offset, ending in ((5, "commit"), (9, "abort"), (7, "commit")):
        stage("begin", name="p")
        stage("send", name="p", topic=topic, partition=0, values=[ending])
        stage("offsets", name="p", offsets={source: {"0": offset, "1": offset + 1}}, consumer="c")
        stage(ending, name="p")
        _stable(stage, topic)
        stage("committed", name="c", topic=source, partitions=2)


def offsets_of_an_open_transaction(stage: Stage) -> None:
    """Who reads what is stable waits for its end."""
    topic, source = stage.topic("t"), stage.topic("source")
    stage.quietly("consumer", name="c", group=stage.named("g"))
    stage.producer("p")
    _begin(stage, topic, "one")
    stage("offsets", name="p", offsets={source: {"0": 5}}, consumer="c")
    stage("committed", name="c", topic=source, partitions=1)
    stage("commit", name="p")
    _stable(stage, topic)
    stage("committed", name="c", topic=source, partitions=1)


def offsets_only(stage: Stage) -> None:
    """A transaction without records. (franz-go ends it only if it knows of the offsets; its program asks by itself.)"""
    source = stage.topic("source")
    stage.quietly("consumer", name="c", group=stage.named("g"))
    stage.producer("p")
    stage("begin", name="p")
    stage("offsets", name="p", offsets={source: {"0": 5}}, consumer="c")
    stage("commit", name="p")
    stage("committed", name="c", topic=source, partitions=1)


def offsets_of_an_old_generation(stage: Stage) -> None:
    """A member of a classic group commits with what it knew before the others joined."""
    _zombie(stage, "classic")


def offsets_of_an_old_member_epoch(stage: Stage) -> None:
    """The same in a group of the newer protocol."""
    _zombie(stage, "consumer")


def _zombie(stage: Stage, protocol: str) -> None:
    topic, source, group = stage.topic("t"), stage.topic("source", 2), stage.named("g")
    stage.quietly("consumer", name="c", group=group, protocol=protocol, topics=[source])
    stage.settled(["c"], [2])
    stage.quietly("metadata", consumer="c", **{"as": "old"})
    stage.quietly("consumer", name="d", group=group, protocol=protocol, topics=[source])
    shares = stage.settled(["c", "d"], [1, 1])
    lost = next(iter(shares[1])).rpartition("-")[2]
    stage.producer("p")
    _begin(stage, topic, "stale")
    stage("offsets", name="p", offsets={source: {lost: 5}}, metadata="old")
    stage("commit", name="p")
    stage("abort", name="p")
    _begin(stage, topic, "fresh")
    stage("offsets", name="p", offsets={source: {lost: 6}}, consumer="d")
    stage("commit", name="p")
    _stable(stage, topic)
    stage.keep("committed", sorted(map(str, stage.quietly("committed", name="d", topic=source, partitions=2))))


def described(stage: Stage) -> None:
    """What the client's own admin operations say of it."""
    topic = stage.topic("t", 2)
    stage.producer("p")
    for ending in ("commit", "abort"):
        stage("begin", name="p")
        stage("send", name="p", topic=topic, partition=0, values=_VALUES)
        stage("send", name="p", topic=topic, partition=1, values=_VALUES[:1])
        stage("describe_transaction", id=stage.named("id"))
        stage("describe_producers", topic=topic, partition=0)
        stage(ending, name="p")
        time.sleep(1.0)  # markers are written after the answer
        stage("describe_transaction", id=stage.named("id"))
        stage("describe_producers", topic=topic, partition=0)


def many_transactions(stage: Stage) -> None:
    """A hundred, of which every third is aborted: each read at its place."""
    topic = stage.topic("t")
    stage.producer("p")
    for number in range(100):
        stage("begin", name="p")
        stage("send", name="p", topic=topic, partition=0, values=[str(number)])
        stage("abort" if number % 3 == 2 else "commit", name="p")
    _stable(stage, topic)


SCENARIOS: Final = (
    commit_in_two_topics, abort, an_open_transaction, nothing_sent, steps_in_the_wrong_order,
    fenced_by_a_second_producer, fenced_at_its_commit, fenced_at_its_abort, fenced_between_transactions,
    aborted_after_its_timeout, send_after_its_timeout, abort_after_its_timeout, a_timeout_over_the_maximum,
    a_topic_that_is_not_there, a_record_that_is_too_large, offsets_committed_and_aborted,
    offsets_of_an_open_transaction, offsets_only, offsets_of_an_old_generation, offsets_of_an_old_member_epoch,
    described, many_transactions,
)  # fmt: skip
