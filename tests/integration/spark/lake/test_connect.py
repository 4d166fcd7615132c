"""`pylogd load` and `audit` by Spark Connect, as processes that have no Java: a real server, all formats of tables."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pylogd.cli.main import pylogd
from pylogd.client import Admin, AuditedProducer, NewTopic, Producer
from pylogd.local.broker import pylogd_command
from tests.docs.console import commands
from tests.docs.kinds import blocks_of_kind
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import START_MS, fill, log_of
from tests.integration.spark.lake.test_tables import name_of, rows_of
from tests.kills.comparing import compare
from tests.kills.lakes import on_disk
from tests.sparks import connect_server, python_environment

pytestmark = pytest.mark.timeout(600)
SECONDS = 240
BEYOND_MS = 300_000_000_000_000  # after the year 9999
KEEP = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**62)}

#: Runs `pylogd` with these arguments. Returns the lines of its output, or with `fails` those of its error.
Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of Spark Connect."""
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture
def without_java(broker: Address, tmp_path: Path) -> Run:
    """Return a function that runs a command in a process that can't start Java."""
    environment = {
        **os.environ, **python_environment(), "PYLOGD_BOOTSTRAP_SERVER": broker.address, "PATH": "/nonexistent",
        "JAVA_HOME": "/nonexistent",
    }  # fmt: skip

    def run(*arguments: object, fails: bool = False) -> list[str]:
        done = subprocess.run(
            [*pylogd_command(), *map(str, arguments)], env=environment, cwd=tmp_path, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stderr
        return (done.stderr if fails else done.stdout).splitlines()

    return run


def make(address: str, topic: str) -> None:
    """Make a topic with 200 records."""
    with Admin(address) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, KEEP)])
    fill(address, topic, range(200))


def only(lines: list[str]) -> dict[str, Any]:
    (line,) = lines
    found: dict[str, Any] = json.loads(line)
    return found


def test_the_commands_of_the_page(broker: Address, without_java: Run, server: str, tmp_path: Path) -> None:
    make(broker.address, "flights")
    for words in commands(blocks_of_kind("connect")):
        here = [word.replace("sc://spark:15002", server).replace("/data/", f"{tmp_path}/") for word in words[1:]]
        assert only(without_java(*here, "--json"))["rows"] == 200


def test_a_lake_on_a_shared_disk(broker: Address, without_java: Run, server: str, topic: str, tmp_path: Path) -> None:
    make(broker.address, topic)
    lake = tmp_path / "lake"
    to_lake = ("--to", lake, "--remote", server, "--json")
    assert only(without_java("load", topic, *to_lake, "--max-offsets", 100))["rows"] == 100
    assert only(without_java("load", topic, *to_lake, "--gather"))["rows"] == 100
    fill(broker.address, topic, range(200, 230))
    assert only(without_java("load", topic, *to_lake))["rows"] == 30
    assert compare(broker.address, topic, on_disk(lake)) == 230
    before = without_java("load", *to_lake, "--files")
    assert only(without_java("load", *to_lake, "--compact"))["replaced"] > 1
    assert len(without_java("load", *to_lake, "--files")) < len(before)
    assert compare(broker.address, topic, on_disk(lake)) == 230
    with Producer(broker.address) as producer:
        producer.send(topic, b"late", partition=0, timestamp=BEYOND_MS)
    loaded = only(without_java("load", topic, *to_lake))
    assert (loaded["rows"], loaded["quarantined"]) == (0, 1)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_other_tables(broker: Address, without_java: Run, server: str, topic: str, tmp_path: Path, kind: str) -> None:
    make(broker.address, topic)
    to_table = ("--table", name_of(kind, tmp_path), "--remote", server, "--json")
    assert only(without_java("load", topic, *to_table))["rows"] == 200
    fill(broker.address, topic, range(200, 230))
    assert only(without_java("load", topic, *to_table, "--set", "kafka.client.rack=a"))["rows"] == 30
    assert rows_of(kind, tmp_path) == log_of(broker.address, topic)


def test_the_audit(broker: Address, without_java: Run, server: str, topic: str, tmp_path: Path) -> None:
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(name, 1, 1, KEEP) for name in (topic, f"{topic}-reports")])
    times = itertools.count(START_MS, 2000)
    with (
        Producer(broker.address) as producer,
        AuditedProducer(
            producer, topic=f"{topic}-reports", window_ms=60_000, server="here", now_ms=lambda: next(times)
        ) as audited,
    ):
        for number in range(60):
            audited.send(topic, b"%d" % number)
    lake = tmp_path / "lake"
    without_java("load", topic, "--to", lake, "--remote", server)
    for stage in (["--lake", lake], []):
        found = without_java("audit", topic, "--reports", f"{topic}-reports", *stage, "--remote", server, "--json")
        windows = [json.loads(line) for line in found]
        assert sum(window["reported"] for window in windows) == 60
        assert {window["verdict"] for window in windows} == {"complete"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--to", "hdfs://name:8020/lake"],
            "hdfs://name:8020/lake: by Spark Connect, a Parquet lake has to be on a disk",
        ),
        (["--to", "/lake", "--conf", "spark.executor.memory=2g"], "--conf spark.executor.memory can't be set by Spark"),
    ],
)
def test_what_the_server_can_not_do_is_one_line(
    broker: Address, without_java: Run, server: str, topic: str, arguments: list[str], error: str
) -> None:
    make(broker.address, topic)
    lines = without_java("load", topic, "--remote", server, *arguments, fails=True)
    assert error in lines[-1]
    assert not [line for line in lines if "Traceback" in line]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--remote", "sc://127.0.0.1:1"], "no server of Spark Connect on 127.0.0.1:1: Connection refused"),
        (["--remote", "http://127.0.0.1:1"], "The URL must start with 'sc://'"),
        (["--remote", "sc://127.0.0.1:1", "--master", "local[2]"], "give either --master or --remote"),
    ],
)
def test_a_server_that_is_not_there_is_one_line(
    broker: Address, topic: str, tmp_path: Path, arguments: list[str], error: str
) -> None:
    make(broker.address, topic)
    given = ["load", topic, "-b", broker.address, "--to", str(tmp_path / "lake"), *arguments]
    done = CliRunner().invoke(pylogd, given)
    assert done.exit_code in (1, 2)
    assert error in done.stderr.splitlines()[-1]
    assert not (tmp_path / "lake").exists()
