"""`pylogd mirror check` opens what `run` opens, names all that can't be used, and changes nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.ports import free_ports
from pylogd.client import Admin, Producer
from pylogd.client.registry.avro import SchemaRegistryClient
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.fakes.registered import record
from tests.registries import RegistryProcess

SECONDS = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("source")
    found = BrokerProcess(folder / "data", folder / "log")
    with Admin(found.address) as admin:
        admin.create_topic("events", 2, 1)
    with Producer(found.address) as producer:
        producer.send("events", b"1")
    yield found
    found.kill()


def check(file: Path, *options: str) -> tuple[int, str, str]:
    command = [*pylogd_command(), "mirror", "check", str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stdout, done.stderr


def write(folder: Path, broker: BrokerProcess, *more: str) -> Path:
    """Write a file with a route from the broker's cluster to itself, and what else is given."""
    path = folder / "mirror.toml"
    first = f"""
metadata.store = "{folder}/store"
[cluster.logs]
bootstrap.servers = "{broker.address}"
[cluster.offline]
bootstrap.servers = "{broker.address}"
"""
    route = """
[[route]]
source = "logs"
target = "offline"
topics = ["events"]
rename = "copy.{topic}"
"""
    path.write_text(first + "".join(more) + route)
    return path


def test_what_can_be_used_is_found_and_left_as_it_is(broker: BrokerProcess, tmp_path: Path) -> None:
    tables = f"""
[table.lake]
location = "{tmp_path}/lake"
[table.delta]
location = "delta:{tmp_path}/delta"
[table.iceberg]
location = "iceberg:{tmp_path}/warehouse/demo.events"
"""
    file = write(tmp_path, broker, tables)
    code, out, err = check(file, "--output", "tsv")
    assert (code, out, err) == (0, "logs-offline\tlogs\toffline\tcopy.{topic}\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["mirror.toml"]
    with Admin(broker.address) as admin:
        assert {topic.name for topic in admin.list_topics(internal=True)} == {"events"}


def test_all_that_can_not_be_used_is_named_at_once(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    gone, registry = free_ports(2)
    rest = f"""
[cluster.gone]
bootstrap.servers = "127.0.0.1:{gone}"
[cluster.tls]
bootstrap.servers = "{broker.address}"
security.protocol = "SSL"
ssl.truststore.location = "{tmp_path}/missing.pem"
[cluster.user]
bootstrap.servers = "{broker.address}"
security.protocol = "SASL_PLAINTEXT"
sasl.mechanism = "PLAIN"
sasl.jaas.config = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
[table.lake]
location = "{tmp_path}/file/lake"
[table.delta]
location = "delta:hdfs://127.0.0.1:{gone}/delta"
[table.typed]
location = "delta:{tmp_path}/typed"
schema.registry.url = "http://127.0.0.1:{registry}"
"""
    routes = "".join(
        f'[[route]]\nsource = "{source}"\ntarget = "{target}"\ntopics = ["events"]\n'
        for source, target in (("gone", "offline"), ("tls", "offline"), ("logs", "user"))
    )
    code, out, err = check(write(tmp_path, broker, rest, routes))
    said = {place: line for line in err.splitlines() for place in [line.partition(": ")[2].partition(": ")[0]]}
    assert code == 1 and not out, err
    assert "Start the cluster, or correct bootstrap.servers" in said["[cluster.gone]"]
    assert "missing.pem" in said["[cluster.tls]"] and "Compare security.protocol and ssl.*" in said["[cluster.tls]"]
    assert "[cluster.user]" in said
    assert "file is a file, where a directory is needed" in said["[table.lake]"]
    assert "Connection refused" in said["[table.delta]"]
    assert "[table.typed]" in said
    assert "6 things that" in err and "Traceback" not in err
    assert "[cluster.logs]" not in err and "[cluster.offline]" not in err


def test_a_file_can_be_checked_alone(broker: BrokerProcess, tmp_path: Path) -> None:
    file = write(tmp_path, broker, f'[table.lake]\nlocation = "{tmp_path}/mirror.toml/lake"\n')
    assert check(file)[0] == 1
    code, out, _ = check(file, "--file-only", "--output", "json")
    assert code == 0 and json.loads(out)[0]["route"] == "logs-offline"


def test_a_subject_has_to_be_registered(broker: BrokerProcess, tmp_path: Path) -> None:
    registry = RegistryProcess(broker.address, tmp_path / "registry.log")
    try:
        typed = f"""
[table.typed]
location = "delta:{tmp_path}/typed"
schema.registry.url = "{registry.url}"
subject = "events-value"
"""
        file = write(tmp_path, broker, typed)
        code, _, err = check(file)
        assert code == 1 and "[table.typed]: the registry has no subject 'events-value'" in err
        SchemaRegistryClient(registry.url).register("events-value", record(("id", "int"), name="Event"))
        assert check(file)[0] == 0
    finally:
        registry.kill()
