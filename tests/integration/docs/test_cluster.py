"""The sessions that need several brokers, typed against one test cluster of `pylogd cluster up`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.docs.blocks import Block
from tests.docs.console import Console
from tests.docs.kinds import blocks_of_kind

START, *SESSIONS = blocks_of_kind("cluster")


#: The cluster runs already. Broker 4 joins it, and stays; broker 5 joins for a moment.
WRITTEN = {
    "pylogd cluster up -n 3 --data ./cluster &": "true",
    "pylogd cluster up -n 3 --data /tmp/cluster": "true",
    "0.0.0.0:9092": "127.0.0.1:0",
    "--advertised host4:9092": "",
    "/var/lib/pylogd": "./broker4",
    "--set default.replication.factor=3 --set min.insync.replicas=2": "--set default.replication.factor=3 &",
    "--node-id 1 --data /var/lib/pylogd": "--node-id 5 --listen 127.0.0.1:0 --data ./broker5",
}
ENDLESS = {r"pylogd broker .*": "grep -q 127.0.0.1 $LOG"}
ANSWERS = {r"python \S*zookeeper-\d+\.py": ""}


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console beside the cluster that the README starts: three brokers on ports of this test."""
    folder = tmp_path_factory.mktemp("cluster")
    command, *_ = [line for line in START.text.splitlines() if "cluster up" in line]
    with Console(folder, WRITTEN, ENDLESS, ANSWERS) as console:
        command = command.partition("#")[0].strip().replace("-n 3", "-n 3 -p 0")
        command = command.replace("/tmp/cluster", "./cluster")
        shown = console.type(f"started 'grep -q \"bootstrap servers\" $LOG' '{command}'; cat $LOG", str(START))
        found = re.search(r"bootstrap servers: (\S+)", shown)
        assert found is not None
        console.environment["PYLOGD_BOOTSTRAP_SERVER"] = found[1]
        hosts = re.search(r"zookeeper at (\S+),", shown)
        assert hosts is not None
        console.write("zk1:2181,zk2:2181,zk3:2181/pylogd", hosts[1])
        console.write("/data/b", str(folder / "cluster" / "broker2"))
        console.type("pylogd topics create events -p 2 -r 2", "a topic of the pages")
        yield console


def test_the_readmes_cluster(console: Console) -> None:
    """The lines behind the one that starts it."""
    rest = START.text.partition("cluster up")[2].partition("\n")[2]
    console.run(Block(START.page, START.line, START.language, rest))
    assert console.type("pylogd topics describe payments | wc -l", "the topic").strip() == "6"


@pytest.mark.parametrize("block", SESSIONS, ids=map(str, SESSIONS))
def test_a_session(console: Console, block: Block) -> None:
    console.run(block)
