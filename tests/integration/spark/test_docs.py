"""The blocks of README.md and docs/*.md that need Spark, in the session that all tests of this folder share.

Commands run in this process. `--follow` is left out, since it does not end. Paths and addresses are those of the test.
docs/tables.md and docs/typed-tables.md are run by test_queries.py and test_typed.py, which compare what they load.
"""

from __future__ import annotations

import importlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql.functions import struct

from pylogd.client import Admin, AuditedProducer, NewTopic, Producer
from pylogd.client.registry.avro import AvroSerializer, SchemaRegistryClient
from pylogd.lake.tables.parquet.lake import Lake
from pylogd.lake.tables.parquet.local import LocalFiles
from pylogd.local.broker import pylogd_command
from tests.docs.blocks import Block
from tests.docs.console import Console, commands
from tests.docs.kinds import blocks_of_kind
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import Command
from tests.registries import RegistryProcess

pytestmark = pytest.mark.timeout(600)
FLIGHT = {"type": "record", "name": "Flight", "fields": [{"name": "tail", "type": "string"}]}
EVENTS = 40
#: Windows of the audit that ended long ago: a minute of an hour ago.
AGO_MS = 3_600_000
QUICKSTART = "docs/quickstart-analyse.md"
COMMANDS = [block for block in blocks_of_kind("spark", "sh") if block.page != QUICKSTART]


@dataclass(frozen=True, slots=True)
class Environment:
    """What blocks find: a folder, a broker with topics, a registry with a schema."""

    folder: Path
    written: dict[str, str]

    def filled(self, text: str) -> str:
        names = sorted(self.written, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, names)), lambda found: self.written[found[0]], text)


@pytest.fixture(scope="module")
def environment(broker: Address, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("docs")
    registry = RegistryProcess(broker.address, folder / "registry.log")
    (folder / "flight.avsc").write_text(json.dumps(FLIGHT))
    (folder / "client.properties").write_text("")
    serialize = AvroSerializer(SchemaRegistryClient(registry.url), FLIGHT)
    then = int(time.time() * 1000) - AGO_MS
    with Admin(broker.address) as admin:
        names = ("flights", "events", "events-eu", "avro", "out", "counts", "flights-copy")
        admin.create_topics([NewTopic(name, 2, 1, {"retention.ms": "-1"}) for name in names])
    with Producer(broker.address) as producer:
        with AuditedProducer(producer) as audited:
            for number in range(EVENTS):
                for topic in ("flights", "events", "events-eu"):
                    audited.send(topic, b"%d" % number, partition=number % 2, timestamp=then)
        for number in range(EVENTS):
            producer.send("avro", serialize("avro", {"tail": f"N{number}"}))
    written = {
        "localhost:9092": broker.address, "mirror:9092": broker.address, "http://localhost:8081": registry.url,
        "https://registry:8081": registry.url, "hdfs://namenode/lake": f"{folder}/hdfs", "/data/": f"{folder}/",
        "./": f"{folder}/", '"--as-of", "42"': '"--as-of", "1"', "files(42)": "files(1)",
        "/checkpoints/": f"{folder}/checkpoints/",
        '["pylogd",': f"[*{pylogd_command()!r},",
        's3fs.S3FileSystem(), "bucket/lake"': f'fsspec.filesystem("file"), "{folder}/lake"',
        "flight.avsc": str(folder / "flight.avsc"), "client.properties": str(folder / "client.properties"),
        "complete.svg": str(folder / "complete.svg"),
    }  # fmt: skip
    yield Environment(folder, written)
    assert registry.stop() == 0


def load_once(run: Command, environment: Environment) -> None:
    """Have a lake of the topic in the folder of the pages."""
    assert run("load", "flights", "--to", environment.folder / "lake").exit_code == 0


@pytest.mark.parametrize("block", COMMANDS, ids=map(str, COMMANDS))
def test_commands(environment: Environment, run: Command, monkeypatch: pytest.MonkeyPatch, block: Block) -> None:
    """Of an audit the verdict may be that no window has ended yet (3): when the events were sent, it had not."""
    monkeypatch.setenv("PYLOGD_SCHEMA_REGISTRY", environment.filled("http://localhost:8081"))
    load_once(run, environment)
    for words in commands([block]):
        if words == ["pylogd", "schema-registry"]:
            continue  # it runs already
        arguments = [environment.filled(word) for word in words[1:] if word not in ("--follow", "--interval", "300")]
        if "--as-of" in arguments:
            arguments[arguments.index("--as-of") + 1] = "1"
        done = run(*arguments)
        assert done.exit_code in ((0, 3) if arguments[0] == "audit" else (0,)), (words, done.output)


@pytest.mark.parametrize("page", ["docs/lake.md", "docs/pipeline.md"])
def test_a_directory_has_the_files_that_the_pages_show(environment: Environment, run: Command, page: str) -> None:
    load_once(run, environment)
    (block,) = blocks_of_kind("layout", page=page)
    shown = [line.split("  ")[0] for line in block.text.splitlines()]
    there = {str(path.relative_to(environment.folder / "lake")) for path in (environment.folder / "lake").rglob("*")}
    for name in ("topic=", "_pylogd/commits/"):
        (pattern,) = [each for each in shown if each.startswith(name) and "done" not in each]
        numbers = re.sub(r"\\\.\\?…|…", ".*", re.sub(r"[0-9a-f]{4}…|\d+", "…", pattern)).replace("=.*-.*-.*", "=.*")
        assert any(re.fullmatch(numbers, path) for path in there), (numbers, sorted(there)[:5])


def test_the_programs_on_a_lake(
    spark: Any, environment: Environment, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    load_once(run, environment)
    import subprocess  # noqa: PLC0415 - a name of the page

    names = {"subprocess": subprocess, "pyarrow": pyarrow, "spark": spark, "fsspec": importlib.import_module("fsspec")}
    by_files, by_lake = blocks_of_kind("spark", "python", page="docs/lake.md")
    exec(environment.filled(by_files.text), names)
    assert "partition" in capsys.readouterr().out
    exec(environment.filled(by_lake.text), names)
    lake: Any = names["lake"]
    assert lake.position.offsets == Lake(LocalFiles(environment.folder / "lake")).position.offsets
    assert sum(end for (topic, _), end in lake.position.offsets.items() if topic == "flights") == EVENTS


def test_the_quickstart(broker: Address, run: Command, tmp_path: Path) -> None:
    """Its first block is typed, its loads share the session, and its query prints what the page shows."""
    writing, loading = blocks_of_kind("spark", "sh", page=QUICKSTART)
    with Console(tmp_path, {}, environment={"PYLOGD_BOOTSTRAP_SERVER": broker.address}) as console:
        console.run(writing)
        for words in commands([loading]):  # the directory of the session's JVM is another one
            assert run(*(word.replace("./", f"{tmp_path}/") for word in words[1:])).exit_code == 0, words
        (program,), (output,) = (blocks_of_kind("spark", each, page=QUICKSTART) for each in ("python", "text"))
        assert console.run(program) == output.text


def test_the_programs_of_the_source_and_the_sink(spark: Any, environment: Environment, broker: Address) -> None:
    source, sink, exactly_once, filters, lag = blocks_of_kind("spark", "python", page="docs/spark.md")
    names: dict[str, Any] = {"spark": spark}
    exec(environment.filled(source.text), names)
    assert names["flights"].count() == EVENTS
    names["rows"] = names["flights"].select("value")
    exec(environment.filled(sink.text), names)
    where = {"kafka.bootstrap.servers": broker.address, "subscribe": "out"}
    assert spark.read.format("pylogd").options(**where).load().count() == EVENTS
    names["options"] = where
    exec(environment.filled(filters.text), names)
    exec(environment.filled(lag.text), names)
    names["counts"] = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    before = {query.id for query in spark.streams.active}
    exec(environment.filled(exactly_once.text), names)
    (query,) = [query for query in spark.streams.active if query.id not in before]
    query.stop()


def test_the_programs_on_messages_with_schemas(spark: Any, environment: Environment) -> None:
    frame = spark.read.format("pylogd").option("kafka.bootstrap.servers", environment.filled("localhost:9092"))
    names: dict[str, Any] = {
        "frame": frame.option("subscribe", "avro").load(), "struct": struct, "FLIGHT": FLIGHT,
    }  # fmt: skip
    (block,) = blocks_of_kind("spark", "python", page="docs/pipeline.md")
    exec(environment.filled(block.text), names)
    assert names["flights"].count() == names["messages"].count() == EVENTS


def test_the_settings_of_a_registrys_client(spark: Any, environment: Environment) -> None:
    """The names are those that the client knows: an unknown one, or a file that is not there, is refused."""
    (block,) = blocks_of_kind("spark", "python", page="docs/schema-registry.md")
    assert block.text.count("SchemaRegistryClient(") == 1
    names = re.findall(r'"([\w.]+)": ', block.text)
    assert len(names) == 6
    from pylogd.client.registry.avro import SchemaRegistryClient as Client  # noqa: PLC0415

    Client(
        environment.filled("https://registry:8081"),
        timeout=10,
        settings={names[0]: "USER_INFO", names[1]: "ada:secret"},
    )
