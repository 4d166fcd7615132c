"""Routes of a mirror that end in tables: a real broker, tables of each format, and processes that are killed.

Typed tables are tried with a real registry, and Parquet lakes also on an S3 server.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pylogd.client import Admin, Producer
from pylogd.client.registry.avro import AvroSerializer, SchemaRegistryClient
from pylogd.lake.tables.opening import open_table
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.fakes.registered import record
from tests.fakes.s3 import S3Server, environment
from tests.mirrors import MirrorProcess, committed, until, write_table_file
from tests.registries import RegistryProcess
from tests.tables import read_files

PARTITIONS = 3
_KILLS = 2
_TYPED_KILLS = 3
#: The versions of a subject, each of which adds a column.
VERSIONS = (
    record(("id", "int"), name="Event"),
    record(("id", "int"), ("note", ["null", "string"]), name="Event"),
    record(("id", "int"), ("note", ["null", "string"]), ("size", ["null", "long"]), name="Event"),
)
for _version in VERSIONS:
    for _field in _version["fields"][1:]:
        _field["default"] = None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("source")
    found = BrokerProcess(folder / "data", folder / "log")
    yield found
    found.kill()


def location(kind: str, folder: Path) -> str:
    return {
        "parquet": f"parquet:{folder}/lake",
        "iceberg": f"iceberg:{folder}/warehouse/demo.events",
        "delta": f"delta:{folder}/delta",
        "s3": f"parquet:s3://{S3Server.bucket}/{folder.name}",
    }[kind]


def rows(name: str, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """The offsets and values of a topic in a table, by partition, sorted by offset."""
    table = open_table(name)
    found: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(PARTITIONS)}
    for columns in read_files(table, [file for file in table.files() if f"topic={topic}/" in file.path]):
        for index, offset, value in zip(
            *columns.select(["partition", "offset", "value"]).to_pydict().values(), strict=True
        ):
            found[index].append((offset, value))
    return {index: sorted(some) for index, some in found.items()}


def commits(name: str) -> int:
    return sum(1 for _ in open_table(name).history())


def wait_for_commit(name: str, before: int, log: Path) -> None:
    """Wait until a table has more than so many commits."""
    until(lambda: commits(name) > before, "a commit", log.read_text)


def write(broker: BrokerProcess, topic: str, start: int, count: int) -> None:
    """Write plain and compressed batches, a transaction and an aborted one."""
    for codec, first in (("none", start), ("zstd", start + count // 2)):
        with Producer(broker.address, compression=codec, batch_bytes=2000) as producer:
            for number in range(first, first + count // 2):
                producer.send(topic, b"%d" % number, key=b"k", partition=number % PARTITIONS)
    with Producer(broker.address, transactional_id=f"writer of {topic}") as producer:
        for commit in (False, True):
            producer.begin_transaction()
            for index in range(PARTITIONS):
                producer.send(topic, b"%s %d" % (b"committed" if commit else b"aborted", start), partition=index)
            producer.flush()
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()


def create(broker: BrokerProcess, topic: str) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, PARTITIONS, 1)


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta"])
def test_each_committed_record_is_in_the_table_once_while_the_mirror_is_killed(
    kind: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    topic, name = f"events-{kind}", location(kind, tmp_path)
    create(broker, topic)
    file, log = write_table_file(tmp_path, broker.address, name, topic), tmp_path / "mirror.log"
    process = MirrorProcess(file, log)
    try:
        process.wait()
        for kill in range(_KILLS):
            before = commits(name)
            write(broker, topic, 1000 * kill, 1000)
            wait_for_commit(name, before, log)
            write(broker, topic, 1000 * kill, 400)  # some of it is in files that are not committed
            process.kill()
            process = MirrorProcess(file, log)
            process.wait()
        expected = committed(broker.address, topic)
        count = sum(map(len, expected.values()))
        until(lambda: sum(map(len, rows(name, topic).values())) >= count, f"{count} rows", log.read_text)
        found = rows(name, topic)
        assert {index: [value for _, value in some] for index, some in found.items()} == expected
        for some in found.values():
            offsets = [offset for offset, _ in some]
            assert len(set(offsets)) == len(offsets)
        assert process.stop() == 0, log.read_text()
    finally:
        process.kill()


@pytest.fixture(scope="module")
def registry(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    process = RegistryProcess(broker.address, tmp_path_factory.mktemp("registry") / "log")
    yield process
    assert process.stop() == 0


def write_typed(broker: BrokerProcess, registry: RegistryProcess, topic: str, version: int, start: int) -> None:
    """Write records of a version, which is registered by this, and some that are none; all have numbers as keys."""
    serialize = AvroSerializer(SchemaRegistryClient(registry.url), VERSIONS[version])
    names = [field["name"] for field in VERSIONS[version]["fields"][1:]]
    with Producer(broker.address, batch_bytes=2000, compression="zstd") as producer:
        for number in range(start, start + 400):
            more = {"note": f"note {number}", "size": number << 40}
            value: dict[str, Any] = {"id": number, **{name: more[name] for name in names}}
            body = b"junk" if number % 10 == 9 else serialize(topic, value)
            producer.send(topic, body, key=b"%d" % number, partition=number % PARTITIONS)


def typed_rows(name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of a typed table and of its quarantine, sorted by their keys."""
    table = open_table(name)
    found = []
    for files in (table.files(), table.quarantined()):
        rows = [row for each in read_files(table, files) for row in each.to_pylist()]
        found.append(sorted(rows, key=lambda row: int(row["key"])))
    return found[0], found[1]


@pytest.mark.parametrize("kind", ["s3", "iceberg", "delta"])
def test_typed_tables_lose_and_repeat_nothing_while_the_mirror_is_killed(
    kind: str, broker: BrokerProcess, registry: RegistryProcess, bucket: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for variable, value in environment(bucket).items():
        monkeypatch.setenv(variable, value)
    topic, name = f"typed-{kind}", location(kind, tmp_path)
    create(broker, topic)
    write_typed(broker, registry, topic, 0, 0)
    more = f'schema.registry.url = "{registry.url}"'
    file, log = write_table_file(tmp_path, broker.address, name, topic, more), tmp_path / "mirror.log"
    process = MirrorProcess(file, log)
    try:
        process.wait()
        for kill in range(_TYPED_KILLS):
            before = commits(name)
            write_typed(broker, registry, topic, min(kill, 2), 1000 * kill + 400)
            wait_for_commit(name, before, log)
            write_typed(broker, registry, topic, min(kill + 1, 2), 1000 * kill + 1000)  # files that are not committed
            process.kill()
            process = MirrorProcess(file, log)
            process.wait()
        starts = [0, *(1000 * kill + at for kill in range(_TYPED_KILLS) for at in (400, 1000))]
        expected = {number for start in starts for number in range(start, start + 400)}
        until(lambda: sum(map(len, typed_rows(name))) >= len(expected), f"{len(expected)} rows", log.read_text)
        good, bad = typed_rows(name)
        assert [int(row["key"]) for row in good] == sorted(each for each in expected if each % 10 != 9)
        assert [int(row["key"]) for row in bad] == sorted(each for each in expected if each % 10 == 9)
        for row in good:
            number = row["id"]
            assert int(row["key"]) == number and row.get("note") in (None, f"note {number}")
            assert row.get("size") in (None, number << 40)
        assert all(row.get("size") for row in good if row["id"] >= 2000), "the columns of the last version"
        assert {row["value"] for row in bad} == {b"junk"} and {row["reason"][:12] for row in bad} == {"no schema id"}
        assert process.stop() == 0, log.read_text()
    finally:
        process.kill()


def test_what_was_copied_is_committed_when_the_mirror_stops(broker: BrokerProcess, tmp_path: Path) -> None:
    name = location("delta", tmp_path)
    create(broker, "stopped")
    file, log = write_table_file(tmp_path, broker.address, name, "stopped"), tmp_path / "mirror.log"
    file.write_text(file.read_text().replace("commit.interval.ms = 300", "commit.interval.ms = 3600000"))
    process = MirrorProcess(file, log, "--listen", "127.0.0.1:0")
    try:
        process.wait()
        write(broker, "stopped", 0, 300)
        until(
            lambda: process.metric('pylogd_mirror_copied_records_total{route="a-lake"}') >= 303, "copies", log.read_text
        )
        assert process.metric('pylogd_mirror_lag_records{route="a-lake"}') > 0, "nothing is committed yet"
        assert process.stop() == 0, log.read_text()
    finally:
        process.kill()
    assert sum(map(len, rows(name, "stopped").values())) == 303


def test_describe_shows_how_far_a_table_is(broker: BrokerProcess, tmp_path: Path) -> None:
    name = location("parquet", tmp_path)
    create(broker, "described")
    write(broker, "described", 0, 300)
    file, log = write_table_file(tmp_path, broker.address, name, "described"), tmp_path / "mirror.log"
    process = MirrorProcess(file, log)
    try:
        process.wait()
        until(lambda: sum(map(len, rows(name, "described").values())) >= 303, "303 rows", log.read_text)
    finally:
        process.stop()
    write(broker, "described", 300, 300)

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*pylogd_command(), "mirror", *arguments], capture_output=True, text=True, check=False, timeout=60
        )

    found = json.loads(command("describe", str(file), "--json").stdout)
    assert len(found) == PARTITIONS and all(each["lag"] > 0 and each["target_offset"] > 0 for each in found)
    refused = command("translate", str(file), "group")
    assert refused.returncode == 1 and "lake is a table" in refused.stderr
