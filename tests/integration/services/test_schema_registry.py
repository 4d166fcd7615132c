"""A schema registry process on a real broker, with Confluent's client and pylogd's."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaRegistryClient as ConfluentClient
from confluent_kafka.schema_registry.avro import AvroDeserializer as ConfluentDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as ConfluentSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError as ConfluentError
from confluent_kafka.serialization import MessageField, SerializationContext

from conformance.refused.registry import REQUESTS, is_expected
from pylogd import __version__
from pylogd.cli.main import pylogd
from pylogd.client import Admin, Consumer
from pylogd.client.registry.avro import (
    AvroDeserializer,
    AvroSerializer,
    NotAvro,
    SchemaRegistryClient,
    SchemaRegistryError,
)
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.integration.conftest import StartBroker
from tests.registries import AT_ONCE, FLIGHT, LATER, SECONDS, RegistryProcess, ask, made


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(settings=AT_ONCE)


@pytest.fixture
def registry(broker: BrokerProcess, tmp_path: Path) -> Iterator[RegistryProcess]:
    process = RegistryProcess(broker.address, tmp_path / "registry.log")
    yield process
    if process.process.poll() is None:
        assert process.stop() == 0
    assert "Traceback" not in (tmp_path / "registry.log").read_text()


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
    with pytest.raises(NotAvro, match="no schema with the id 77"):
        deserialise(b"\x00\x00\x00\x00\x4dx")
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


def test_codes_and_texts_of_errors_are_confluent_s(registry: RegistryProcess) -> None:
    for method, path, body, status, code, text in REQUESTS:
        found, document = ask(registry.url + path, method, body)
        assert found == status, (method, path, found, document)
        if status >= 400:
            assert document["error_code"] == code, (method, path, document)
            assert is_expected(document["message"], text), (method, path, document)
    assert ask(f"{registry.url}/subjects") == (200, [":.c:s", "a/b c"])


def test_contexts_have_ids_and_settings_of_their_own(registry: RegistryProcess) -> None:
    url = registry.url
    assert made(ask(f"{url}/subjects/s/versions", "POST", {"schema": '"int"'})) == (200, 1, 1)
    one = f"{url}/contexts/.one"
    assert made(ask(f"{one}/subjects/s/versions", "POST", {"schema": '"string"'})) == (200, 1, 1)
    assert made(ask(f"{url}/subjects/:.one:t/versions", "POST", {"schema": '"long"'})) == (200, 2, 1)
    assert ask(f"{url}/contexts") == (200, [".", ".one"])
    assert made(ask(f"{one}/subjects/v/versions", "POST", {"schema": '"int"'})) == (200, 3, 1)
    guid = ask(f"{url}/schemas/ids/1")[1]["guid"]
    assert ask(f"{url}/schemas/guids/{guid}")[1]["schema"] == '"int"', "the same schema has the same one everywhere"
    assert ask(f"{url}/schemas/guids/{guid}/ids") == (200, [{"context": ".", "id": 1}, {"context": ".one", "id": 3}])
    assert ask(f"{url}/schemas/guids/none")[1] == {"error_code": 40403, "message": "Schema none not found"}
    assert ask(f"{one}/subjects") == (200, [":.one:s", ":.one:t", ":.one:v"])
    assert ask(f"{url}/subjects") == (200, [":.one:s", ":.one:t", ":.one:v", "s"])
    assert ask(f"{url}/subjects?subjectPrefix=") == (200, ["s"])
    assert ask(f"{one}/schemas/ids/1")[1]["schema"] == '"string"'
    found = ask(f"{url}/schemas/ids/1?fetchMaxId=true")[1]
    assert (found["schema"], found["maxId"]) == ('"int"', 1)
    assert ask(f"{url}/schemas/ids/2?subject=t&fetchMaxId=true")[1]["schema"] == '"long"', "found in another context"
    enum = {"schema": json.dumps({"type": "enum", "name": "E", "symbols": ["A"]})}
    using = {"schema": '["null","E"]', "references": [{"name": "E", "subject": "e", "version": 1}]}
    assert made(ask(f"{one}/subjects/e/versions", "POST", enum)) == (200, 4, 1)
    assert made(ask(f"{one}/subjects/w/versions", "POST", using)) == (200, 5, 1)
    for path in ("subjects/w/versions/1", "schemas/ids/5"):
        found = ask(f"{one}/{path}?referenceFormat=qualified&format=resolved")[1]
        assert [each["subject"] for each in found["references"]] == [":.one:e"]
        assert json.loads(found["schema"])[1]["symbols"] == ["A"]
        assert ask(f"{one}/{path}")[1]["references"] == using["references"]
    assert made(ask(f"{one}/subjects/e/versions?force=true", "POST", {"schema": '"int"'})) == (200, 3, 2)
    assert ask(f"{one}/config", "PUT", {"compatibility": "NONE"}) == (200, {"compatibility": "NONE"})
    assert ask(f"{url}/config/:.one:s?defaultToGlobal=true") == (200, {"compatibilityLevel": "NONE"})
    assert ask(f"{url}/config/s?defaultToGlobal=true") == (200, {"compatibilityLevel": "BACKWARD"})
    assert ask(f"{one}/mode", "PUT", {"mode": "READONLY"})[0] == 200
    assert ask(f"{one}/subjects/u/versions", "POST", {"schema": '"int"'})[1]["message"] == (
        "Subject :.one:u in context :.one: is in read-only mode"
    )
    assert ask(f"{url}/subjects/u/versions", "POST", {"schema": '"int"'})[0] == 200


def test_lists_in_pages_metadata_and_deleted_versions(registry: RegistryProcess) -> None:
    url, subjects = registry.url, f"{registry.url}/subjects"
    for number in range(3):
        body = {"schema": '{"type":"string"}', "metadata": {"properties": {"owner": f"team{number}"}}}
        assert ask(f"{subjects}/s/versions", "POST", body)[1]["version"] == number + 1
    assert ask(f"{subjects}/s/versions", "POST", {"schema": '{"type":"string"}'})[1]["version"] == 3, "it inherits"
    assert ask(f"{subjects}/s/versions?offset=1&limit=1") == (200, [2])
    found = ask(f"{subjects}/s/metadata?key=owner&value=team1")[1]
    assert (found["version"], found["metadata"]) == (2, {"properties": {"owner": "team1"}})
    assert ask(f"{subjects}/s/versions/1", "DELETE") == (200, 1)
    assert ask(f"{subjects}/s/versions") == (200, [2, 3])
    assert ask(f"{subjects}/s/versions?deleted=true") == (200, [1, 2, 3])
    assert ask(f"{subjects}/s/versions?deletedOnly=true") == (200, [1])
    assert ask(f"{subjects}/s/versions?deletedAsNegative=true") == (200, [-1, 2, 3])
    assert ask(f"{subjects}/t/versions", "POST", {"schema": '"int"'})[0] == 200
    assert ask(f"{subjects}/t", "DELETE") == (200, [1])
    assert ask(f"{subjects}?deletedOnly=true") == (200, ["t"])
    assert ask(f"{subjects}?deleted=true&offset=1") == (200, ["t"])
    assert [each["version"] for each in ask(f"{url}/schemas?deleted=true")[1]] == [1, 2, 3, 1]
    assert [each["subject"] for each in ask(f"{url}/schemas?latestOnly=true")[1]] == ["s"]
    assert ask(f"{url}/schemas/types") == (200, ["AVRO", "JSON", "PROTOBUF"])
    assert ask(f"{url}/config/a", "PUT", {"alias": "s", "normalize": True})[1] == {"alias": "s", "normalize": True}
    assert ask(f"{subjects}/a/versions") == (200, [2, 3]), "an alias of s"
    assert ask(f"{url}/schemas?subjectPrefix=a") == (200, [])
    assert [each["version"] for each in ask(f"{url}/schemas?subjectPrefix=a&aliases=true")[1]] == [2, 3]


def test_metadata_and_rules_of_settings(registry: RegistryProcess) -> None:
    url, versions = registry.url, f"{registry.url}/subjects/s/versions"
    settings = {"defaultMetadata": {"properties": {"owner": "ada"}}}
    assert ask(f"{url}/config/s", "PUT", settings) == (200, settings)
    assert ask(f"{url}/config/s")[1] == {**settings, "compatibilityLevel": "BACKWARD"}
    assert made(ask(versions, "POST", {"schema": '"int"'})) == (200, 1, 1)
    rules = {"domainRules": [{"name": "positive", "kind": "CONDITION", "type": "CEL", "mode": "WRITE", "expr": "true"}]}
    assert made(ask(versions, "POST", {"ruleSet": rules})) == (200, 2, 2), "the schema of the version before"
    found = ask(f"{versions}/2")[1]
    assert (found["schema"], found["metadata"], found["ruleSet"]) == ('"int"', settings["defaultMetadata"], rules)
    assert [each["version"] for each in ask(f"{url}/schemas?ruleType=CEL")[1]] == [2]
    assert ask(f"{url}/schemas?ruleType=ENCRYPT") == (200, [])


def test_what_the_registry_is(registry: RegistryProcess, broker: BrokerProcess) -> None:
    with Admin(broker.address) as admin:
        clusters = {"kafka-cluster": admin.describe_cluster().cluster_id, "schema-registry-cluster": "schema-registry"}
        assert ask(f"{registry.url}/v1/metadata/id") == (200, {"scope": {"path": [], "clusters": clusters}, "id": ""})
        assert ask(f"{registry.url}/v1/metadata/version") == (200, {"version": __version__})
        assert ask(f"{registry.url}/contexts?contextPrefix=.no") == (200, [])
        admin.alter_configs("topic", "_schemas", {"max.message.bytes": "1000"})
    large = {"type": "enum", "name": "E", "symbols": [f"S{number}" for number in range(1000)]}
    found = ask(f"{registry.url}/subjects/e/versions", "POST", {"schema": json.dumps(large)})
    assert found == (422, {"error_code": 42209, "message": "Write failed because schema is too large"})


def test_the_command_line(registry: RegistryProcess, tmp_path: Path) -> None:
    def run(*arguments: str, code: int = 0, given: str = "") -> list[str]:
        environment = {**os.environ, "PYLOGD_SCHEMA_REGISTRY": registry.url}
        done = subprocess.run(
            [*pylogd_command(), "schemas", *arguments], input=given, capture_output=True, text=True, timeout=SECONDS,
            check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return (done.stdout or done.stderr).splitlines()

    flight, later = tmp_path / "flight.avsc", tmp_path / "later.avsc"
    flight.write_text(json.dumps(FLIGHT))
    later.write_text(json.dumps({**FLIGHT, "fields": [*FLIGHT["fields"][:1], {"name": "x", "type": "int"}]}))
    assert run("check", "flights-value", str(flight)) == ["compatible"]
    assert run("register", "flights-value", str(flight)) == ["1"]
    assert run("check", "flights-value", str(later), code=1) == ["not compatible"]
    assert "409" not in run("register", "flights-value", str(later), code=1)[0]
    proto = 'syntax = "proto3";\nmessage A {\n  int32 a = 1;\n}\n'
    assert run("register", "a", "-", "--type", "protobuf", given=proto) == ["2"]
    used = 'syntax = "proto3"; import "a.proto"; message B { A a = 1; }'
    assert run("register", "b", "-", "--type", "protobuf", "--reference", "a.proto=a:1", given=used) == ["3"]
    assert run("list") == ["a\t1\t2\tPROTOBUF\t0", "b\t1\t3\tPROTOBUF\t1", "flights-value\t1\t1\tAVRO\t0"]
    assert json.loads("".join(run("show", "flights-value"))) == FLIGHT
    assert run("show", "--id", "2")[-3:] == ["message A {", "  int32 a = 1;", "}"]
    assert run("show", "nothing", code=1) == ["Error: Subject 'nothing' not found."]


def test_the_command_line_deletes_and_changes_what_is_accepted(registry: RegistryProcess) -> None:
    """Run the commands in this process, which is quicker."""

    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner(env={"PYLOGD_SCHEMA_REGISTRY": registry.url}).invoke(pylogd, ["schemas", *arguments])
        assert done.exit_code == code, done.output
        return done.output

    ask(f"{registry.url}/subjects/s/versions", "POST", {"schema": '"int"'})
    ask(f"{registry.url}/subjects/s/versions", "POST", {"schema": '"long"'})
    [own] = json.loads(run("config", "get", "s", "--json"))
    assert own == {"subject": "s", "compatibilityLevel": "BACKWARD", "normalize": None, "inherited": True}
    run("config", "set", "s", "--compatibility", "full", "--normalize")
    [own] = json.loads(run("config", "get", "s", "--json"))
    assert own == {"subject": "s", "compatibilityLevel": "FULL", "normalize": True, "inherited": False}
    run("config", "reset", "s")
    assert "nothing was changed" in run("config", "reset", "s")
    assert run("mode", "get").split() == ["-", "READWRITE", "no"]
    run("mode", "set", "s", "readonly")
    assert run("mode", "get", "s").split() == ["s", "READONLY", "no"]
    assert "mode" in run("delete", "s", "1", "--yes", code=1).lower()
    run("mode", "reset", "s")
    assert "not deleted" in run("delete", "s", "1", "--permanent", "--yes", code=1)
    assert run("delete", "s", "1", "--yes").split() == ["s", "1"]
    assert run("list", "--all").split()[:2] == ["s", "2"]
    assert run("delete", "s", "1", "--permanent", "--yes").split() == ["s", "1"]
    assert run("delete", "s", "--yes").split() == ["s", "2"]
    assert "READONLY" in run("mode", "set", "s", "closed", code=2)


def test_a_missing_broker_is_one_line_of_error(tmp_path: Path) -> None:
    command = [*pylogd_command(), "schema-registry", "-b", "127.0.0.1:9", "-l", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:9" in done.stderr.splitlines()[-1]
