"""Spark, the loader and the audit on a secured cluster, and where their passwords must not be found."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pylogd.cli.main import pylogd
from pylogd.client import Admin, AuditedProducer, Cluster, NewTopic, Producer
from pylogd.credentials.passwords import add_user
from pylogd.lake.spark.avro import from_avro, to_avro
from tests.registries import FLIGHT, RegistryProcess
from tests.secured import Secured
from tests.sparks import retried

pytestmark = pytest.mark.timeout(600)
SECONDS = 240.0
REGISTRY_PASSWORD = "hush-of-the-registry"
KEEP = {"retention.ms": "-1"}


def create(secured: Secured, *topics: str) -> None:
    """Make topics as bob, to whom they belong."""
    with Cluster(secured.sasl_bootstrap, security=secured.security("bob")) as connection:
        Admin(connection).create_topics([NewTopic(topic, 2, 3, KEEP) for topic in topics])


def options(secured: Secured, way: str) -> dict[str, str]:
    """Return the options of a Spark source or sink."""
    _, servers, properties = secured.way(way)
    return {"kafka.bootstrap.servers": servers, **{f"kafka.{name}": value for name, value in properties.items()}}


def found_in(folder: Path, secrets: list[str]) -> list[tuple[Path, str]]:
    """Return where secrets are in the files of a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [(path, secret) for path in files for secret in secrets if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize("way", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_source_and_sink(spark: Any, secured: Secured, tmp_path: Path, way: str) -> None:
    topic, copy = f"bob-spark-{way}", f"bob-copy-{way}"
    create(secured, topic, copy)
    client = options(secured, way)
    numbers = spark.range(100).selectExpr("cast(id as string) as value")
    retried(lambda: numbers.write.format("pylogd").options(**client).option("topic", topic).mode("append").save())
    stream = spark.readStream.format("pylogd").options(**client, subscribe=topic, startingOffsets="earliest").load()
    writer = stream.selectExpr("value").writeStream.format("pylogd").options(**client).option("topic", copy)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    seen: list[str] = []

    def once() -> None:
        query = writer.start()
        assert query.awaitTermination(SECONDS)
        seen.extend(progress.json for progress in query.recentProgress)

    retried(once)
    rows = spark.read.format("pylogd").options(**client).option("subscribe", copy).load()
    assert {row.value for row in rows.selectExpr("cast(cast(value as string) as int) as value").collect()} == {
        *range(100)
    }
    shown = rows._jdf.queryExecution().toString() + stream._jdf.queryExecution().toString() + "".join(seen)
    assert json.loads(seen[-1]) and not [secret for secret in secured.secrets if secret in shown]
    assert not found_in(tmp_path / "checkpoint", secured.secrets)


@pytest.fixture
def run(spark: Any, secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that runs `pylogd COMMAND ...` as bob, with the shared session."""
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("pylogd.cli.spark.session", lambda *_: spark)
    monkeypatch.setenv("PYLOGD_BOOTSTRAP_SERVER", secured.sasl_bootstrap)
    monkeypatch.setenv("PYLOGD_COMMAND_CONFIG", str(secured.properties("bob")))

    def run(*arguments: object) -> Result:
        result = CliRunner().invoke(pylogd, [str(each) for each in arguments])
        assert not [secret for secret in secured.secrets if secret in result.output]
        return result

    yield run


def test_the_loader_and_the_audit(secured: Secured, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, reports = "bob-audited", "bob-audited-reports"
    create(secured, topic, reports)
    times = itertools.count(1_700_000_040_000, 2000)
    with (
        Producer(secured.sasl_bootstrap, security=secured.security("bob")) as producer,
        AuditedProducer(
            producer, topic=reports, window_ms=60_000, server="here", now_ms=lambda: next(times)
        ) as audited,
    ):
        for number in range(60):
            audited.send(topic, b"%d" % number, partition=number % 2)
    loaded = run("load", topic, "--to", tmp_path / "lake", "--json")
    assert loaded.exit_code == 0, loaded.output
    assert json.loads(loaded.stdout)["rows"] == 60
    monkeypatch.delenv("PYLOGD_COMMAND_CONFIG")
    _, _, properties = secured.way("SCRAM-SHA-512")
    by_settings = [word for name, value in properties.items() for word in ("--set", f"kafka.{name}={value}")]
    loaded = run("load", topic, "--to", tmp_path / "again", "--json", *by_settings)
    assert loaded.exit_code == 0, loaded.output
    assert json.loads(loaded.stdout)["rows"] == 60
    assert not found_in(tmp_path / "again", secured.secrets)
    monkeypatch.setenv("PYLOGD_COMMAND_CONFIG", str(secured.properties("bob")))
    done = run("audit", topic, "--reports", reports, "--lake", tmp_path / "lake")
    assert done.exit_code == 0, done.output
    assert not found_in(tmp_path / "lake", secured.secrets)


def test_avro_with_a_secured_registry(spark: Any, secured: Secured, tmp_path: Path) -> None:
    add_user(tmp_path / "users", "spark", REGISTRY_PASSWORD)
    registry = RegistryProcess(
        secured.sasl_bootstrap, tmp_path / "log", "--command-config", str(secured.properties("bob")),
        "--topic", "bob-spark-schemas", "--group-id", "bob-registries", "--users", str(tmp_path / "users"),
        "--tls-certificate", str(secured.tls / "broker1.pem"),
    )  # fmt: skip
    settings = {
        "basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": f"spark:{REGISTRY_PASSWORD}",
        "ssl.truststore.location": str(secured.authority),
    }  # fmt: skip
    try:
        values = spark.range(3).selectExpr("named_struct('carrier', 'A', 'delay', cast(id as int)) as v")
        messages = values.select(to_avro("v", registry.url, "bob-flights", FLIGHT, settings=settings).alias("m"))
        back = messages.select(from_avro("m", registry.url, FLIGHT, settings=settings).alias("v"))
        assert [row.v.delay for row in retried(back.collect)] == [0, 1, 2]
        assert REGISTRY_PASSWORD not in back._jdf.queryExecution().toString()
        assert registry.stop() == 0
    finally:
        registry.process.kill()  # a process that has ended is left alone


def test_the_event_log_has_no_secrets(spark: Any, secured: Secured, event_log: Path) -> None:
    """It has what Spark's web pages show of all queries of this session, also those of the tests above."""
    client = options(secured, "SCRAM-SHA-512")
    create(secured, "bob-logged")
    frame = spark.read.format("pylogd").options(**client).option("subscribe", "bob-logged").load()
    assert retried(frame.count) == 0
    text = "".join(path.read_text() for path in event_log.rglob("*") if path.is_file())
    assert "SparkListenerSQLExecutionStart" in text and "physicalPlanDescription" in text
    assert not found_in(event_log, [*secured.secrets, REGISTRY_PASSWORD])
