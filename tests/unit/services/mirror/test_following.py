"""Which settings and ACLs of a topic follow the source."""

from __future__ import annotations

from pylogd.client.core.admin.access_operations import Acl
from pylogd.services.mirror.following import TopicFollower, followed_acls
from pylogd.services.mirror.settings import RouteSettings, TopicPatterns


def acl(operation: str, name: str = "events", pattern: str = "LITERAL", permission: str = "ALLOW") -> Acl:
    return Acl("TOPIC", name, pattern, "User:alice", "*", operation, permission)


def test_reading_is_allowed_at_the_target_and_writing_is_not() -> None:
    found = followed_acls([acl("READ"), acl("WRITE"), acl("ALTER"), acl("DESCRIBE")], "events", "a.events")
    assert found == {acl("READ", "a.events"), acl("DESCRIBE", "a.events")}


def test_all_becomes_read_but_a_denial_stays() -> None:
    found = followed_acls([acl("ALL"), acl("ALL", permission="DENY")], "events", "events")
    assert found == {acl("READ"), acl("ALL", permission="DENY")}


def test_prefixes_and_the_star_count_for_topics_that_they_cover() -> None:
    found = followed_acls(
        [acl("READ", "ev", "PREFIXED"), acl("DESCRIBE", "*"), acl("READ", "eventsx", "PREFIXED"), acl("READ", "e")],
        "events", "events",
    )  # fmt: skip
    assert found == {acl("READ"), acl("DESCRIBE")}


def test_what_is_set_follows_and_the_largest_batch_always() -> None:
    route = RouteSettings("r", "a", "b", TopicPatterns(["x"]), configs_exclude=frozenset({"retention.ms"}))
    follower = TopicFollower(route, None, None)  # type: ignore[arg-type]
    assert follower.wanted({
        "retention.ms": ("1", True), "cleanup.policy": ("compact", True), "segment.bytes": ("9", False),
        "min.insync.replicas": ("2", True), "max.message.bytes": ("1048588", False),
    }) == {"cleanup.policy": "compact", "max.message.bytes": "1048588"}  # fmt: skip


def test_the_label_of_the_brokers_of_one_cluster_does_not_follow() -> None:
    """A target without such brokers would refuse the topic: no replica could be placed."""
    follower = TopicFollower(RouteSettings("r", "a", "b", TopicPatterns(["x"])), None, None)  # type: ignore[arg-type]
    assert not follower.wanted({"placement.label": ("online", True)})
