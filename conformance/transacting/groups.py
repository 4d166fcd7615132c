"""What each client does in a group of the newer protocol (KIP-848), as one script for all of them."""

from __future__ import annotations

from typing import Final

from conformance.transacting.stage import Stage


def _join(stage: Stage, name: str, topics: list[str], **more: str | int) -> None:
    stage.quietly("consumer", name=name, group=stage.named("g"), protocol="consumer", topics=topics, **more)


def join_and_leave(stage: Stage) -> None:
    """One, two and three members; then two."""
    topic = stage.topic("t", 6)
    _join(stage, "a", [topic])
    stage.settled(["a"], [6])
    _join(stage, "b", [topic])
    stage.settled(["a", "b"], [3, 3])
    _join(stage, "c", [topic])
    stage.settled(["a", "b", "c"], [2, 2, 2])
    stage("describe_group", group=stage.named("g"))
    stage("close", name="a")
    stage.settled(["b", "c"], [3, 3])
    stage("close", name="b")
    stage("close", name="c")
    stage("describe_group", group=stage.named("g"))


def fewer_partitions_than_members(stage: Stage) -> None:
    """Some members have nothing."""
    topic = stage.topic("t", 2)
    for name in ("a", "b", "c"):
        _join(stage, name, [topic])
    stage.settled(["a", "b", "c"], [0, 1, 1])


def uniform_with_two_topics(stage: Stage) -> None:
    """Shares are as equal as they can be."""
    topics = [stage.topic("t", 3), stage.topic("u", 2)]
    _join(stage, "a", topics, assignor="uniform")
    stage.settled(["a"], [5])
    _join(stage, "b", topics, assignor="uniform")
    stage.settled(["a", "b"], [2, 3])


def range_with_two_topics(stage: Stage) -> None:
    """Each topic is divided for itself: who has the larger part of one has it of the other."""
    topics = [stage.topic("t", 3), stage.topic("u", 3)]
    _join(stage, "a", topics, assignor="range")
    stage.settled(["a"], [6])
    _join(stage, "b", topics, assignor="range")
    shares = stage.settled(["a", "b"], [2, 4])
    stage.keep("shares", sorted(sorted(place.rpartition("-")[2] for place in share) for share in shares))


def an_assignor_that_is_not_there(stage: Stage) -> None:
    """The group refuses the member. (franz-go has its own choice.)"""
    topic = stage.topic("t")
    _join(stage, "a", [topic], assignor="sticky")
    stage.until("an error", lambda: _error(stage, "a"))


def _error(stage: Stage, name: str) -> str:
    answer = stage.quietly("poll", name=name, ms=200)
    return answer if isinstance(answer, str) else ""


def a_regular_expression(stage: Stage) -> None:
    """Topics that match count, also those that are made later."""
    stage.topic("logs-1", 2)
    stage.topic("other", 2)
    pattern = stage.named("logs-.*")
    stage.quietly("consumer", name="a", group=stage.named("g"), protocol="consumer", pattern=pattern)
    stage.settled(["a"], [2])
    stage.topic("logs-2", 3)
    stage.settled(["a"], [5])


def a_wrong_regular_expression(stage: Stage) -> None:
    """It is not RE2's. (librdkafka and franz-go compile it themselves.)"""
    stage.quietly("consumer", name="a", group=stage.named("g"), protocol="consumer", pattern="(a")
    stage.until("an error", lambda: _error(stage, "a"))


def partitions_are_added(stage: Stage) -> None:
    """Members get them."""
    topic = stage.topic("t", 2)
    for name in ("a", "b"):
        _join(stage, name, [topic])
    stage.settled(["a", "b"], [1, 1])
    stage.grow(topic, 4)
    stage.settled(["a", "b"], [2, 2])


def a_static_member_restarts(stage: Stage) -> None:
    """It gets what it had, and the other one keeps what it has."""
    topic = stage.topic("t", 4)
    _join(stage, "a", [topic], instance="first")
    _join(stage, "b", [topic], instance="second")
    before = stage.settled(["a", "b"], [2, 2])
    stage("close", name="a")
    stage.keep("b keeps its own", stage.quietly("assignment", name="b") == before[1])
    _join(stage, "a", [topic], instance="first")
    after = stage.settled(["a", "b"], [2, 2])
    stage.keep("the same shares", before == after)


def two_with_one_instance_id(stage: Stage) -> None:
    """The second one is refused while the first one is there."""
    topic = stage.topic("t", 2)
    _join(stage, "a", [topic], instance="same")
    stage.settled(["a"], [2])
    _join(stage, "b", [topic], instance="same")
    stage.until("an error", lambda: _error(stage, "b"))
    stage.settled(["a"], [2])


def commit_and_go_on(stage: Stage) -> None:
    """A member that takes over begins where the other one committed."""
    topic = stage.topic("t")
    stage.producer("p")
    stage("begin", name="p")
    stage("send", name="p", topic=topic, partition=0, values=["one", "two", "three", "four"])
    stage("commit", name="p")
    _join(stage, "a", [topic])
    stage.keep("read by a", _read(stage, "a", 4))
    stage("commit_offsets", name="a", offsets={topic: {"0": 2}})
    stage("committed", name="a", topic=topic, partitions=1)
    stage("close", name="a")
    _join(stage, "b", [topic])
    stage.keep("read by b", _read(stage, "b", 2))


def _read(stage: Stage, name: str, count: int) -> list[str]:
    found: list[str] = []

    def enough() -> bool:
        answer = stage.quietly("poll", name=name, ms=200)
        found.extend(answer)
        return len(found) >= count

    stage.until(f"{count} records", enough)
    return found


def a_commit_by_who_is_not_a_member(stage: Stage) -> None:
    """Groups with members take offsets from these only."""
    topic = stage.topic("t")
    _join(stage, "a", [topic])
    stage.settled(["a"], [1])
    stage.quietly("consumer", name="b", group=stage.named("g"))
    stage("commit_offsets", name="b", offsets={topic: {"0": 2}})
    stage("close", name="a")
    stage("commit_offsets", name="b", offsets={topic: {"0": 3}})
    stage("committed", name="b", topic=topic, partitions=1)


def committed_while_the_transaction_is_open(stage: Stage) -> None:
    """A member's offsets in a transaction, with its member epoch."""
    topic, source = stage.topic("t"), stage.topic("source")
    _join(stage, "a", [source])
    stage.settled(["a"], [1])
    stage.producer("p")
    stage("begin", name="p")
    stage("send", name="p", topic=topic, partition=0, values=["one"])
    stage("offsets", name="p", offsets={source: {"0": 3}}, consumer="a")
    stage("commit", name="p")
    stage("committed", name="a", topic=source, partitions=1)


SCENARIOS: Final = (
    join_and_leave, fewer_partitions_than_members, uniform_with_two_topics, range_with_two_topics,
    an_assignor_that_is_not_there, a_regular_expression, a_wrong_regular_expression, partitions_are_added,
    a_static_member_restarts, two_with_one_instance_id, commit_and_go_on, a_commit_by_who_is_not_a_member,
    committed_while_the_transaction_is_open,
)  # fmt: skip
