"""The console beside real services: a mirror, a table that it fills, an audit service, and a schema registry."""

from __future__ import annotations

import json
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pylogd.client import Admin, AuditedProducer, NewTopic, Producer
from pylogd.local.broker import BrokerProcess
from tests.audits import ServedAudit
from tests.consoles import ConsoleProcess, Visitor
from tests.mirrors import MirrorProcess, write_table_file
from tests.registries import AT_ONCE, RegistryProcess

_AVRO = {"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"},
                                                       {"name": "delay", "type": "int"}]}  # fmt: skip
_PROTOBUF = 'syntax = "proto3"; message Flight { string carrier = 1; int32 delay = 2; }'
_JSON = {"type": "object", "properties": {"carrier": {"type": "string"}, "delay": {"type": "integer"}}}
#: What a message of each type is behind the id of its schema: made by hand, by the rules of each format.
_BODIES = {
    "AVRO": (json.dumps(_AVRO), b"\x04AA\x0a"),
    "JSON": (json.dumps(_JSON), b'{"carrier":"BB","delay":5}'),
    "PROTOBUF": (_PROTOBUF, b"\x00" + b"\x0a\x02CC\x10\x05"),
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("registry")
    broker = BrokerProcess(folder / "data", folder / "broker.log", AT_ONCE)
    process = RegistryProcess(broker.address, folder / "registry.log")
    yield broker.address, process.url
    assert process.stop() == 0
    assert broker.stop() == 0


def register(url: str, subject: str, kind: str, text: str) -> int:
    """Register a schema as the console's users do; return its id."""
    body = json.dumps({"schema": text, "schemaType": kind}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/subjects/{subject}/versions", body, headers), timeout=60
    ) as answer:
        return int(json.loads(answer.read())["id"])


def test_messages_are_decoded_by_the_registry_and_its_schemas_are_shown(
    registry: tuple[str, str], tmp_path: Path
) -> None:
    bootstrap, url = registry
    ids = {}
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        for topic in ("flights", "masked"):
            admin.create_topic(topic, 1)
        for kind, (text, body) in _BODIES.items():
            ids[kind] = register(url, f"flights-{kind.lower()}", kind, text)
            for topic in ("flights", "masked"):
                producer.send(topic, struct.pack(">bI", 0, ids[kind]) + body)
        producer.send("flights", struct.pack(">bI", 0, ids["PROTOBUF"]) + b"\x00\x0a\x09short")
        producer.send("flights", struct.pack(">bI", 0, 9999) + b"unknown")
    config = tmp_path / "console.toml"
    config.write_text(
        f'[clusters.main]\nbootstrap = "{bootstrap}"\nschema-registry = "{url}"\n'
        '[[masking]]\ntopics = "masked"\nfields = ["carrier"]\n'
    )
    process = ConsoleProcess(tmp_path / "console.log", "--config", str(config))
    try:
        visitor = Visitor(process.url)
        visitor.until("/c/main/topics", "masked")
        page = visitor.get("/c/main/topics/flights/messages?from=oldest")
        for kind, title in (("AVRO", "Avro"), ("JSON", "JSON"), ("PROTOBUF", "Protobuf")):
            assert f"{title} schema {ids[kind]}" in page, page
        assert "does not match its schema" in page and "no schema with the id 9999" in page
        exported = visitor.get("/c/main/topics/flights/messages.jsonl?from=oldest")
        values = [json.loads(line)["value"] for line in exported.splitlines()]
        assert values[:3] == [{"carrier": carrier, "delay": 5} for carrier in ("AA", "BB", "CC")]
        assert "1 shown of 5 read" in visitor.get("/c/main/topics/flights/messages?from=oldest&field=carrier%3DCC")
        masked = visitor.get("/c/main/topics/masked/messages?from=oldest")
        assert masked.count("***") == 3 and "CC" not in masked
        subjects = visitor.get("/c/main/schemas")
        assert all(f"flights-{kind.lower()}" in subjects for kind in _BODIES)
        shown = visitor.get("/c/main/schemas/flights-protobuf")
        assert "PROTOBUF" in shown and "string carrier = 1;" in shown and f">{ids['PROTOBUF']}<" in shown
        assert "Not known" in visitor.get("/c/main/schemas/none")
    finally:
        process.stop()


@pytest.mark.timeout(300)
def test_mirrors_the_audit_and_tables_are_shown(registry: tuple[str, str], tmp_path: Path) -> None:
    bootstrap, topic = registry[0], "audited"
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 3, 1)])
    lake = f"parquet:{tmp_path}/lake"
    file, log = write_table_file(tmp_path, bootstrap, lake, topic), tmp_path / "mirror.log"
    times = ("--since", "1m", "--window", "1", "--period", "2", "--grace", "0.2")
    mirror = MirrorProcess(file, log, "--listen", "127.0.0.1:0")
    try:
        mirror.wait()
        with ServedAudit(bootstrap, topic, tmp_path, *times) as audit:
            with Producer(bootstrap) as producer, AuditedProducer(
                producer, topic=f"{topic}-audit", window_ms=1000
            ) as audited:  # fmt: skip
                for number in range(300):
                    audited.send(topic, b"%d" % number, key=b"%d" % number)
            shows_all(tmp_path, bootstrap, mirror.line.split()[-1], audit.url, lake)
    finally:
        assert mirror.stop() == 0, mirror.log()


def shows_all(folder: Path, bootstrap: str, mirror: str, audit: str, lake: str) -> None:
    """Start a console with the services, and look at their pages."""
    config = folder / "console.toml"
    config.write_text(
        f'[clusters.main]\nbootstrap = "{bootstrap}"\nmirrors = ["{mirror}"]\naudit = "{audit}"\n'
        f'[clusters.main.tables.lake]\nlocation = "{lake}"\n'
    )
    process = ConsoleProcess(folder / "console.log", "--config", str(config))
    try:
        visitor: Any = Visitor(process.url)
        page = visitor.until("/c/main/mirrors", ">copying<")
        assert "a-lake" in page and "controller" in page and mirror in page
        assert "Partitions that are copied</dt><dd>3</dd>" in visitor.get("/c/main/mirrors/a-lake")
        visitor.until("/c/main/audit", ">300<")
        assert "<svg" in visitor.page and "complete" in visitor.page and "audited" in visitor.page
        visitor.until("/c/main/tables/lake", "Records behind its topics</dt><dd>0</dd>")
        assert "audited:2" in visitor.page and ">load<" in visitor.page
        assert "/tables/lake" in visitor.get("/c/main/tables")
    finally:
        process.stop()
