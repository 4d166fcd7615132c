"""The sessions and programs of README.md and docs/*.md, typed in one folder against one broker.

`tests/docs/kinds.py` says which blocks; `tests/docs/console.py` types them. The other modules of this folder type those
that need a cluster or a secured broker, and tests/integration/spark/test_docs.py those that need Spark.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.ports import free_ports
from pylogd.client import Admin, NewTopic, Producer
from pylogd.local.broker import BrokerProcess
from tests.docs.blocks import Block, blocks_of
from tests.docs.console import Console
from tests.docs.kinds import blocks_of_kind, kind_of
from tests.integration.conftest import _finish

FLIGHT = {"type": "record", "name": "Flight", "fields": [{"name": "tail", "type": "string"}]}
_DELAY = {"name": "delay", "type": ["null", "int"], "default": None}
_SERVES = "grep -q 127.0.0.1 $LOG"
#: Lines that do not end, and when they may be interrupted.
ENDLESS = {
    r"pylogd broker .*": _SERVES,
    r"pylogd audit serve .*": "grep -q 'audit judges' $LOG",
    r"pylogd schema-registry .*": _SERVES,
    r"pylogd consume events --from end": "echo news | pylogd produce events && grep -q news $LOG",
    r"pylogd consume events --group .*": "echo news | pylogd produce events && grep -q . $LOG",
}
ANSWERS = {r"pylogd users (add|bootstrap) .*": "an uncommon secret"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with an authorizer, in which clients without a name may do everything."""
    folder = tmp_path_factory.mktemp("broker")
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
    }
    process = BrokerProcess(folder / "data", folder / "log", settings)
    with Admin(process.address) as admin:
        admin.create_topics([NewTopic("events", 3), NewTopic("orders", 1)])
    with Producer(process.address) as producer:
        for number in range(10):
            producer.send("events", b"event %d" % number)
            producer.send("orders", b"march %d" % number, key=b"ada")
    yield process
    _finish([process])


@pytest.fixture(scope="module")
def console(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """One console for all sessions, as a reader has one."""
    folder = tmp_path_factory.mktemp("console")
    registry, audit, metrics = (f"127.0.0.1:{port}" for port in free_ports(3))
    for name in ("data", "etc", "app", "logs"):
        (folder / name).mkdir()
    (folder / "etc" / "pylogd.toml").write_text(f'"log.dirs" = "{folder / "unused"}"\n')
    (folder / "my-events.txt").write_text("N1:departed\nN2:departed\n")
    (folder / "dpkg.log").write_text("installed\n")
    (folder / "flight.avsc").write_text(json.dumps(FLIGHT))
    (folder / "flight2.avsc").write_text(json.dumps({**FLIGHT, "fields": [*FLIGHT["fields"], _DELAY]}))
    written = {
        "localhost:9092": broker.address,
        "127.0.0.1:9092": broker.address,
        "mirror:9092": broker.address,
        "127.0.0.1:8081": registry,
        "127.0.0.1:8090": audit,
        "127.0.0.1:9404": metrics,
        "/var/lib/pylogd": str(folder / "data" / "one"),
        "/var/lib/app": str(folder / "app"),
        "/var/log/dpkg.log": str(folder / "dpkg.log"),
        "/etc/pylogd": str(folder / "etc"),
        "/data/": f"{folder}/data/",
        "pylogd broker --data": "pylogd broker --listen 127.0.0.1:0 --data",
    }
    environment = {"PYLOGD_BOOTSTRAP_SERVER": broker.address, "PYLOGD_SCHEMA_REGISTRY": f"http://{registry}"}
    with Console(folder, written, ENDLESS, ANSWERS, environment) as console:
        yield console


#: What a reader has done before a block, by page and first line: bash, or for Python lines before it.
BEFORE = {
    ("docs/consuming.md", "pylogd groups list --lag"): "pylogd consume events --group billing --until-end",
    ("docs/exactly-once.md", "from pylogd.client import Consumer, Producer, TransactionAborted"): (
        "invoice_of = bytes.upper\n"
    ),
}
#: Programs that do not end, and when they may be interrupted.
UNTIL = {
    (
        "README.md",
        "from pylogd.client import Consumer, Producer",
    ): "echo news | pylogd produce events; grep -q news $LOG",
    ("docs/exactly-once.md", "from pylogd.client import Consumer, Producer, TransactionAborted"): (
        "pylogd consume invoices --until-end | grep -q MARCH"
    ),
}
#: What a block prints, among other things.
SHOWN = {
    ("docs/authentication.md", "pylogd users add alice"): "SCRAM-SHA-512",
    ("docs/authorization.md", "pylogd acls list"): "User:alice",
    ("docs/consuming.md", "pylogd groups list --lag"): "billing",
    ("docs/monitoring.md", "pylogd cluster health"): '"healthy"',
    ("docs/quotas.md", "pylogd quotas set --user ann --producer-byte-rate 10MB"): "ann",
}
SESSIONS = blocks_of_kind("session")


@pytest.mark.parametrize("block", SESSIONS, ids=map(str, SESSIONS))
def test_a_session(console: Console, block: Block) -> None:
    named = block.page, block.first
    shown = console.run(block, BEFORE.get(named, ""), UNTIL.get(named, ""))
    assert SHOWN.get(named, "") in shown


def test_the_five_minutes_of_the_readme(tmp_path: Path) -> None:
    """A broker of its own, which is stopped where the text says that it is."""
    start, minutes = blocks_of_kind("one broker", page="README.md")
    (port,) = free_ports(1)
    (tmp_path / "dpkg.log").write_text("installed\n")
    written = {
        "pip install . && pylogd broker": f"pylogd broker --listen 127.0.0.1:{port}",
        "/var/log/dpkg.log": str(tmp_path / "dpkg.log"),
    }
    environment = {"PYLOGD_BOOTSTRAP_SERVER": f"127.0.0.1:{port}"}
    running, checking = re.split(r"^(?=# with the broker stopped)", minutes.text, flags=re.MULTILINE)
    with Console(tmp_path, written, ENDLESS, environment=environment) as console:
        command = console.filled(start.text).strip()
        console.type(f"started '{_SERVES}' '{command}'", str(start))
        shown = console.run(Block(minutes.page, minutes.line, "sh", running))
        assert "signed up" in shown and '"key":"ada"' in shown.replace(" ", "") and "readers" in shown
        console.stop()
        for block in (Block(minutes.page, minutes.line, "sh", checking), *blocks_of_kind("stopped broker")):
            console.run(block)


def test_the_first_quickstart(tmp_path: Path) -> None:
    """As the README's five minutes, with what follows the start of its broker."""
    (port,) = free_ports(1)
    written = {"pylogd broker": f"pylogd broker --listen 127.0.0.1:{port}"}
    environment = {"PYLOGD_BOOTSTRAP_SERVER": f"127.0.0.1:{port}"}
    with Console(tmp_path, written, ENDLESS, environment=environment) as console:
        shown = "".join(console.run(block) for block in blocks_of_kind("quickstart"))
    assert "bonjour" in shown and "readers" in shown


def test_the_profiles_that_the_page_names(console: Console) -> None:
    (block,) = blocks_of_kind("profiles")
    console.write("/etc/pylogd/pylogd.toml", f"{console.folder}/etc/pylogd.toml --listen 127.0.0.1:0")
    assert "online" in console.run(block)


PROGRAMS = blocks_of_kind("program")


@pytest.fixture(scope="module")
def empty_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with default settings, and the topics that programs make."""
    folder = tmp_path_factory.mktemp("empty")
    process = BrokerProcess(folder / "data", folder / "log")
    yield process
    _finish([process])


@pytest.mark.parametrize("block", PROGRAMS, ids=map(str, PROGRAMS))
def test_a_program_prints_what_the_document_shows(empty_broker: BrokerProcess, block: Block) -> None:
    page = blocks_of(block.page)
    output = page[page.index(block) + 1]
    assert kind_of(output) == "output"
    done = subprocess.run(
        [sys.executable, "-c", block.text.replace("localhost:9092", empty_broker.address)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, output.text), done.stderr


def test_each_output_is_that_of_a_program() -> None:
    assert len(blocks_of_kind("output")) == len(PROGRAMS) >= 4


#: Tables of the mirror's page that need a registry or an object store: the file is checked, and no route runs.
_BY_ITSELF = ("[table.orders]", '[table.lake]\nlocation = "parquet:s3:', '[table.lake]\nlocation = "parquet:hdfs:')


def test_the_pages_of_the_mirror(tmp_path: Path) -> None:
    """Two clusters, a file of routes that grows as the page goes on, and a group that moves."""
    logs, offline = (f"127.0.0.1:{port}" for port in free_ports(2))
    written = {
        "127.0.0.1:9092": logs, "localhost:9092": logs, "127.0.0.1:9093": offline, "localhost:9093": offline,
        "/tmp/": f"{tmp_path}/",
    }  # fmt: skip
    copied = f"[ $(pylogd consume events --until-end -b {offline} | wc -l) = 1000 ]"
    loaded = f"python -c \"import deltalake; exit(deltalake.DeltaTable('{tmp_path}/lake').count() != 1000)\""
    endless = {r"pylogd broker .*": _SERVES, r"pylogd mirror run .*": copied}
    before = {
        "pylogd mirror describe mirror.toml --route logs-lake": f"until {loaded} 2>/dev/null; do sleep 0.2; done",
        "pylogd mirror translate mirror.toml billing --route logs-offline": (
            "pylogd consume events --group billing --until-end"
        ),
    }
    shown = ""
    with Console(tmp_path, written, endless, environment={"PYLOGD_BOOTSTRAP_SERVER": logs}) as console:
        for block in blocks_of_kind("mirror"):
            if block.language == "toml" and not block.text.startswith(_BY_ITSELF):
                with (tmp_path / "mirror.toml").open("a") as file:
                    file.write(console.filled(block.text))
            elif block.language == "toml":
                first, *_ = blocks_of_kind("mirror", "toml")
                (tmp_path / "another.toml").write_text(console.filled(first.text + block.text))
                console.type("pylogd mirror check another.toml --file-only", str(block))
            else:
                shown += console.run(block, before.get(block.first, ""))
    assert "\n1000\n" in shown


def test_an_address_of_the_metrics_answers(tmp_path: Path) -> None:
    (block,) = blocks_of_kind("metrics")
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    written = {
        "127.0.0.1:9404": address,
        "/var/lib/pylogd": str(tmp_path / "data"),
        "pylogd broker": "pylogd broker -l 127.0.0.1:0",
    }
    with Console(tmp_path, written) as console:
        command = console.filled(block.text.splitlines()[-1])
        console.type(f"started '{_SERVES}' '{command}'", str(block))
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            assert b"pylogd_build_info" in answer.read()
