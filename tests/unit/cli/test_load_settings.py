"""`pylogd load --set kafka.NAME=VALUE`: which settings reach the source, and which are refused before Spark starts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pylogd.cli.common import bootstrap_option, kafka_options, security
from pylogd.cli.main import pylogd
from pylogd.cli.spark import kafka_setting_option
from pylogd.client.core.security import SecurityOptions
from pylogd.lake.spark.options import SourceOptions

FILE = """security.protocol=SASL_SSL
ssl.truststore.location=/ca.pem
sasl.mechanism=PLAIN
sasl.jaas.config=some.PlainLoginModule required username="alice" password="s3cret";
"""


@click.command()
@kafka_setting_option
@bootstrap_option
def show(bootstrap: str) -> None:
    """Print what the source and connections of the command get."""
    options = kafka_options()
    found = SourceOptions.for_batch({"kafka.bootstrap.servers": bootstrap, "subscribe": "t", **options})
    assert found.client.get("security") == security()
    click.echo(repr({name: value for name, value in found.client.items() if name != "security"}))
    click.echo(repr(security()))


def shown(*arguments: str) -> list[str]:
    done = CliRunner().invoke(show, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_settings_reach_the_client() -> None:
    names = ["client.rack=a", "isolation.level=read_committed", "fetch.max.bytes=100", "max.partition.fetch.bytes=10"]
    words = [word for name in names for word in ("--set", f"kafka.{name}")]
    expected = {"client_rack": "a", "isolation": "committed", "fetch_max_bytes": 100, "partition_max_bytes": 10}
    assert shown(*words) == [repr(expected), "None"]
    assert shown("-s", "KAFKA.Client.Rack=a=b") == ["{'client_rack': 'a=b'}", "None"]


def test_settings_replace_lines_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    secured = SecurityOptions(
        protocol="SASL_SSL", ssl_ca="/other.pem", sasl_mechanism="PLAIN", sasl_username="alice", sasl_password="s3cret"
    )
    given = ("-s", "kafka.ssl.truststore.location=/other.pem")
    for words in ((*given, "--command-config", str(path)), ("--command-config", str(path), *given)):
        assert shown(*words) == ["{}", repr(secured)]


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ("client.rack=a", "'client.rack' is not a setting of Kafka's consumer, such as kafka.client.rack"),
        ("kafka.client.rack", "is not NAME=VALUE"),
        ("kafka.client.rak=a", "does not have Kafka's setting 'client.rak'; did you mean 'client.rack'?"),
        ("kafka.max.poll.records=5", "does not have Kafka's setting 'max.poll.records'; it has client.id, client.rack"),
        ("kafka.fetch.max.bytes=-1", "option 'kafka.fetch.max.bytes' must be a valid value"),
        ("kafka.fetch.max.bytes=4294967296", "option 'kafka.fetch.max.bytes' must be a valid value"),
        ("kafka.request.timeout.ms=1_0", "option 'kafka.request.timeout.ms' must be a valid value"),
        ("kafka.isolation.level=committed", "option 'kafka.isolation.level' must be a valid value"),
        ("kafka.auto.offset.reset=latest", "'auto.offset.reset' is not supported"),
        ("kafka.enable.auto.commit=true", "the source does not commit offsets"),
        ("kafka.bootstrap.servers=h:1", "kafka.bootstrap.servers can't be set: give --bootstrap-server"),
        ("kafka.group.id=g", "kafka.group.id can't be set: the command is in no group"),
        ("kafka.sasl.mechanism=PLAIN", "set security.protocol too"),
        ("kafka.security.protocol=SSH", "security.protocol"),
    ],
)
def test_what_can_not_be_set_is_refused_before_anything_is_done(setting: str, error: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(pylogd, ["load", "t", "--to", str(tmp_path), "--set", setting])
    assert done.exit_code == 2
    assert error in " ".join(done.output.split())


def test_the_isolation_can_not_be_given_twice_differently(tmp_path: Path) -> None:
    level = ["--set", "kafka.isolation.level=read_committed"]
    done = CliRunner().invoke(pylogd, ["load", "t", "--to", str(tmp_path), *level, "--isolation", "uncommitted"])
    assert done.exit_code == 2
    assert "--isolation uncommitted contradicts --set kafka.isolation.level=read_committed" in done.output
