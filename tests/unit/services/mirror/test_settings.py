"""The file of a mirror: what it may contain, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylogd.config import Settings
from pylogd.lake.tables.interface import Layout
from pylogd.services.mirror.errors import InvalidMirrorFile
from pylogd.services.mirror.settings import parse, read_file

GOOD = """
name = "events"
zookeeper.connect = "localhost:2181/mirror"
commit.interval.ms = 200

[cluster.logs]
bootstrap.servers = "localhost:9092,localhost:9093"

[cluster.offline]
"bootstrap.servers" = ["localhost:9094"]
exactly.once = false
security.protocol = "SASL_PLAINTEXT"
sasl.mechanism = "SCRAM-SHA-256"
sasl.jaas.config = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="secret";'

[[route]]
source = "logs"
target = "offline"
topics = ["events-.*", "orders"]
exclude = ".*-private"
"""


def test_a_good_file() -> None:
    settings = parse(GOOD)
    route = settings.routes["logs-offline"]
    assert (settings.name, settings.commit_seconds) == ("events", 0.2)
    assert settings.clusters["logs"].exactly_once and not settings.clusters["offline"].exactly_once
    assert settings.clusters["offline"].security is not None
    topics = ["orders", "events-1", "orders-2", "__events-1", "xevents-1", "events-private"]
    assert route.patterns.select(topics) == ["events-1", "orders"]
    assert route.target_name("orders") == "orders"
    assert settings.options_of("logs").client_id == "pylogd-mirror-events"


def test_a_dead_worker_is_missed_as_soon_as_a_dead_broker() -> None:
    assert parse(GOOD).session_timeout_ms == Settings({}).integer("zookeeper.session.timeout.ms")
    assert parse("zookeeper.session.timeout.ms = 9000" + GOOD).session_timeout_ms == 9000


def test_names_are_mapped() -> None:
    route = parse(GOOD + 'rename = "{source}.{topic}.copy"').routes["logs-offline"]
    assert route.target_name("orders") == "logs.orders.copy"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('name = "events"', 'name = "a/b"', "name: a name has letters"),
        ('zookeeper.connect = "localhost:2181/mirror"', "", "zookeeper.connect, or for a mirror of one process"),
        ('name = "events"', 'metadata.store = "/tmp/x"', "and not both"),
        ("commit.interval.ms = 200", "commit.interval.ms = 0", "whole number above 0"),
        ("commit.interval.ms = 200", "commit.intervall.ms = 200", "there is no 'commit.intervall.ms' here, but: name"),
        ('"localhost:9092,localhost:9093"', '"localhost:x"', "[cluster.logs]: bootstrap.servers: "),
        ('source = "logs"', 'source = "log"', "number 1: source: 'log' is not one of logs, offline"),
        ('target = "offline"', 'target = "logs"', "the same cluster, 'logs'"),
        ('target = "offline"', "", "[[route]] number 1: target is missing"),
        ('["events-.*", "orders"]', '["("]', "the pattern '(' is not a regular expression"),
        ('["events-.*", "orders"]', "[]", "a list of texts is needed"),
        ('exclude = ".*-private"', 'rename = "all"', "it has to contain {topic}"),
        ('exclude = ".*-private"', 'start = "now"', "'now' is not one of earliest, latest"),
        ('exclude = ".*-private"', "bytes.per.second = -1", "0 for no limit"),
        ('exclude = ".*-private"', 'sync.acls = "yes"', "true or false"),
        ('security.protocol = "SASL_PLAINTEXT"', "", "set security.protocol too"),
        ("[[route]]", "[[route", "not TOML"),
    ],
)
def test_mistakes_are_named_with_their_place(before: str, after: str, said: str) -> None:
    assert before in GOOD
    with pytest.raises(InvalidMirrorFile) as caught:
        parse(GOOD.replace(before, after))
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


TABLE = """
[table.lake]
location = "iceberg:/data/warehouse/demo.events"
partition.by = "day"
commit.bytes = 1000000
property.uri = "http://catalog:8181"
property.s3.region = "x"

[[route]]
source = "logs"
target = "lake"
topics = ["orders"]
"""


def test_a_route_may_end_in_a_table() -> None:
    settings = parse(GOOD + TABLE)
    table, route = settings.tables["lake"], settings.routes["logs-lake"]
    assert settings.ends(route) == (settings.clusters["logs"], table)
    assert (table.location, table.layout) == ("iceberg:/data/warehouse/demo.events", Layout("day", "binary"))
    assert dict(table.properties) == {"uri": "http://catalog:8181", "s3.region": "x"}
    assert (table.commit_seconds, table.commit_bytes) == (10.0, 1_000_000)


def test_a_table_may_have_columns_from_registered_schemas() -> None:
    more = """
schema.registry.url = "https://me:secret@registry:8081"
schema.registry.basic.auth.credentials.source = "URL"
subject = "orders-v2"
message = "shop.Order"
"""
    typed = TABLE.replace('partition.by = "day"', more)
    table = parse(GOOD + typed).tables["lake"]
    assert table.layout == Layout("hour", "columns") and table.schemas is not None
    assert (table.schemas.subject, table.schemas.message) == ("orders-v2", "shop.Order")
    assert table.schemas.url == "https://me:secret@registry:8081" and "secret" not in repr(table)
    assert dict(table.schemas.properties) == {"schema.registry.basic.auth.credentials.source": "URL"}
    for before, after, said in (
        ('"URL"', '"NONE"', "[table.lake]: "),
        ("https://me:secret@registry:8081", "registry:8081", "URL must begin with http"),
        ("basic.auth.credentials", "basic.auth.cred", "no setting 'basic.auth.cred.source'"),
        ("commit.bytes", 'value = "string"\ncommit.bytes', "there is no 'value' here"),
    ):
        assert before in typed
        with pytest.raises(InvalidMirrorFile) as caught:
            parse(GOOD + typed.replace(before, after))
        assert said in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[table.lake]", "[table.offline]", "[table.offline]: there is a cluster of this name"),
        ('"iceberg:/data/warehouse/demo.events"', '"delta:"', "[table.lake]: location: 'delta:' names no table"),
        ('"iceberg:/data/warehouse/demo.events"', "7", "[table.lake]: location: a text is needed"),
        ('"day"', '"month"', "partition.by: 'month' is not one of hour, day, topic"),
        ("property.uri", "uri", "there is no 'uri' here, but: "),
        ('source = "logs"\ntarget = "lake"', 'source = "lake"\ntarget = "logs"', "'lake' is not one of logs, offline"),
        ("[table.lake]", "[[table]]", "tables are written as [table.NAME]"),
        (
            "property.uri",
            "schema.registry.ssl.key.password",
            "schema.registry.ssl.key.password needs schema.registry.url",
        ),
        ("property.uri", "subject", "[table.lake]: subject needs schema.registry.url"),
    ],
)
def test_mistakes_in_tables_are_named(before: str, after: str, said: str) -> None:
    assert before in TABLE
    with pytest.raises(InvalidMirrorFile) as caught:
        parse(GOOD + TABLE.replace(before, after))
    assert said in str(caught.value)


def test_clusters_and_routes_are_needed() -> None:
    with pytest.raises(InvalidMirrorFile, match="there is no cluster"):
        parse('name = "x"')
    with pytest.raises(InvalidMirrorFile, match="there is no route"):
        parse(GOOD[: GOOD.index("[[route]]")])
    with pytest.raises(InvalidMirrorFile, match="two routes have the name 'logs-offline'"):
        parse(GOOD + GOOD[GOOD.index("[[route]]") :])


def test_the_path_is_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "mirror.toml"
    with pytest.raises(InvalidMirrorFile, match="No such file"):
        read_file(path)
    path.write_text("name = ")
    with pytest.raises(InvalidMirrorFile, match=str(path)):
        read_file(path)
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidMirrorFile, match=str(path)):
        read_file(path)
