"""A schema registry process on a real broker, with Confluent's client and pylogd's."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaRegistryClient as ConfluentClient
from confluent_kafka.schema_registry.avro import AvroDeserializer as ConfluentDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as ConfluentSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError as ConfluentError
from confluent_kafka.serialization import MessageField, SerializationContext

from pylogd.client import Consumer
from pylogd.local.broker import BrokerProcess, pylogd_command
from pylogd.schemas.avro import AvroDeserializer, AvroSerializer, NotAvro, SchemaRegistryClient, SchemaRegistryError
from tests.integration.conftest import StartBroker

SECONDS = 180
FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "int"}],
}
LATER = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "origin", "type": "string", "default": "?"}]}


class RegistryProcess:
    """A running `pylogd schema-registry`. The constructor returns when it answers."""

    def __init__(self, bootstrap: str, log: Path, *options: str) -> None:
        command = [*pylogd_command(), "schema-registry", "-b", bootstrap, "-l", "127.0.0.1:0", *options]
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        line = self.process.stdout.readline().decode() if ready else ""
        if "://" not in line:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the registry does not answer: {line!r} {log.read_text()}")
        self.url = line.split()[-1]

    def stop(self) -> int:
        """Its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def kill(self) -> None:
        """At once."""
        os.kill(self.process.pid, signal.SIGKILL)
        self._end()

    def _end(self) -> int:
        assert self.process.stdout is not None
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.stdout.close()


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker()


@pytest.fixture
def registry(broker: BrokerProcess, tmp_path: Path) -> Iterator[RegistryProcess]:
    process = RegistryProcess(broker.address, tmp_path / "registry.log")
    yield process
    if process.process.poll() is None:
        assert process.stop() == 0
    assert "Traceback" not in (tmp_path / "registry.log").read_text()


def ask(url: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    """Status and document."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_confluents_client_registers_and_reads_schemas(registry: RegistryProcess) -> None:
    client = ConfluentClient({"url": registry.url})
    first = client.register_schema("flights-value", ConfluentSchema(json.dumps(FLIGHT), "AVRO"))
    assert client.register_schema("flights-value", ConfluentSchema(json.dumps(FLIGHT), "AVRO")) == first
    assert client.test_compatibility("flights-value", ConfluentSchema(json.dumps(LATER), "AVRO"))
    second = client.register_schema("flights-value", ConfluentSchema(json.dumps(LATER), "AVRO"))
    assert second != first
    assert client.get_subjects() == ["flights-value"]
    assert client.get_versions("flights-value") == [1, 2]
    assert client.get_latest_version("flights-value").schema_id == second
    assert client.lookup_schema("flights-value", ConfluentSchema(json.dumps(FLIGHT), "AVRO")).version == 1
    assert json.loads(ConfluentClient({"url": registry.url}).get_schema(first).schema_str or "") == FLIGHT
    broken = {**FLIGHT, "fields": [{"name": "carrier", "type": "int"}]}
    with pytest.raises(ConfluentError) as caught:
        client.register_schema("flights-value", ConfluentSchema(json.dumps(broken), "AVRO"))
    assert (caught.value.http_status_code, caught.value.error_code) == (409, 409)
    client.set_compatibility("flights-value", "NONE")
    assert client.get_compatibility("flights-value") == "NONE"
    client.register_schema("flights-value", ConfluentSchema(json.dumps(broken), "AVRO"))
    client.delete_version("flights-value", 3)
    assert client.delete_subject("flights-value") == [1, 2]
    assert client.delete_subject("flights-value", permanent=True) == [1, 2, 3]
    assert client.get_subjects() == []
    with pytest.raises(ConfluentError) as caught:
        ConfluentClient({"url": registry.url}).get_latest_version("flights-value")
    assert caught.value.error_code == 40401


def test_confluents_serializer_and_pylogd_s_write_the_same_messages(
    broker: BrokerProcess, registry: RegistryProcess
) -> None:
    """What one writes and the broker stores, the other reads."""
    theirs = ConfluentClient({"url": registry.url})
    ours = SchemaRegistryClient(registry.url)
    serialise = ConfluentSerializer(theirs, json.dumps(FLIGHT))
    context = SerializationContext("flights", MessageField.VALUE)
    values = [{"carrier": f"C{number}", "delay": number - 3} for number in range(10)]
    producer = ConfluentProducer({"bootstrap.servers": broker.address})
    for value in values:
        message = serialise(value, context)
        assert AvroSerializer(ours, FLIGHT)("flights", value) == message
        producer.produce("flights", message)
    assert producer.flush(SECONDS) == 0
    deserialise = AvroDeserializer(ours)
    later = AvroDeserializer(ours, LATER)
    found: list[bytes] = []
    with Consumer(broker.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("flights", 0)])
        while len(found) < len(values):
            found += [record.value or b"" for record in consumer.poll(1.0)]
    assert [deserialise(message) for message in found] == values
    assert later(found[0]) == {**values[0], "origin": "?"}
    mine = AvroSerializer(ours, LATER)("flights", {"carrier": "X", "delay": 1, "origin": "JFK"})
    assert ConfluentDeserializer(theirs)(mine, context) == {"carrier": "X", "delay": 1, "origin": "JFK"}


def test_pylogd_s_client_reports_errors_of_the_registry(registry: RegistryProcess) -> None:
    client = SchemaRegistryClient(registry.url)
    serialise, deserialise = AvroSerializer(client, FLIGHT), AvroDeserializer(client)
    with pytest.raises(NotAvro, match="does not fit"):
        serialise("flights", {"carrier": 5})
    good = serialise("flights", {"carrier": "A", "delay": 1})
    for bad in (b"", b"\x01" + good[1:], good[:4], good[:-1], good + b"x"):
        with pytest.raises(NotAvro):
            deserialise(bad)
    with pytest.raises(SchemaRegistryError, match="Schema 77 not found") as caught:
        deserialise(b"\x00\x00\x00\x00\x4dx")
    assert caught.value.code == 40403
    with pytest.raises(SchemaRegistryError, match="can't reach the schema registry"):
        SchemaRegistryClient("http://127.0.0.1:9", timeout=5).schema(1)


def test_a_killed_registry_has_kept_every_schema_it_confirmed(
    broker: BrokerProcess, registry: RegistryProcess, tmp_path: Path
) -> None:
    ids = {}
    for number in range(20):
        schema = json.dumps({"type": "enum", "name": f"E{number}", "symbols": ["A"]})
        ids[schema] = ask(f"{registry.url}/subjects/s{number}/versions", "POST", {"schema": schema})[1]["id"]
    assert ask(f"{registry.url}/config", "PUT", {"compatibility": "FULL"}) == (200, {"compatibility": "FULL"})
    registry.kill()
    again = RegistryProcess(broker.address, tmp_path / "registry.log")
    assert ask(f"{again.url}/config") == (200, {"compatibilityLevel": "FULL"})
    for schema, schema_id in ids.items():
        status, found = ask(f"{again.url}/schemas/ids/{schema_id}")
        assert (status, json.loads(found["schema"])) == (200, json.loads(schema))
    status, found = ask(f"{again.url}/subjects/new/versions", "POST", {"schema": '"string"'})
    assert found["id"] == max(ids.values()) + 1
    assert again.stop() == 0


def test_bad_requests_are_answered_with_confluents_error_codes(registry: RegistryProcess) -> None:
    url = registry.url
    assert ask(f"{url}/schemas/types") == (200, ["AVRO"])
    assert ask(f"{url}/") == (200, {})
    wrong = [
        ("/subjects/a/versions", "POST", b"{", 422, 422),
        ("/subjects/a/versions", "POST", [], 422, 422),
        ("/subjects/a/versions", "POST", {}, 422, 42201),
        ("/subjects/a/versions", "POST", {"schema": "{}"}, 422, 42201),
        ("/subjects/a/versions", "POST", {"schema": '"int"', "schemaType": "JSON"}, 422, 42201),
        ("/subjects/a/versions", "POST", {"schema": '"int"', "references": [{}]}, 422, 422),
        ("/subjects/a/versions", "GET", None, 404, 40401),
        ("/subjects/a", "POST", {"schema": '"int"'}, 404, 40401),
        ("/subjects/a/versions/latest", "GET", None, 404, 40401),
        ("/subjects/a/versions/none", "GET", None, 422, 42202),
        ("/schemas/ids/1", "GET", None, 404, 40403),
        ("/schemas/ids/x", "GET", None, 404, 40403),
        ("/config", "PUT", {"compatibility": "SIDEWAYS"}, 422, 42203),
        ("/config/a", "GET", None, 404, 40408),
        ("/nowhere", "GET", None, 404, 404),
        ("/subjects", "PUT", {}, 405, 405),
    ]
    for path, method, body, status, code in wrong:
        found = ask(url + path, method, body)
        assert (found[0], found[1]["error_code"]) == (status, code), (path, method, found)
    subject = "a%2Fb%20c"
    assert ask(f"{url}/subjects/{subject}/versions", "POST", {"schema": '"int"'})[0] == 200
    assert ask(f"{url}/subjects") == (200, ["a/b c"])


def test_a_missing_broker_is_one_line_of_error(tmp_path: Path) -> None:
    command = [*pylogd_command(), "schema-registry", "-b", "127.0.0.1:9", "-l", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:9" in done.stderr.splitlines()[-1]
