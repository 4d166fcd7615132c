"""`pylogd zookeeper` on a real tree: it prints what brokers and consumers registered, or one line of error."""

from __future__ import annotations

import json
import subprocess

import pytest
from kazoo.client import KazooClient

from pylogd.local.broker import pylogd_command
from pylogd.local.zookeeper import LocalZooKeeper
from tests.zookeeper import ZooKeeper

NODES = {
    "/brokers/ids/1": '{"version":4,"host":"h1","port":9092,"endpoints":["PLAINTEXT://h1:9092"],"rack":"r1"}',
    "/brokers/ids/10": "not JSON",
    "/brokers/topics/t": '{"version":3,"partitions":{"10":[1],"0":[1,10]}}',
    "/controller": '{"version":1,"brokerid":1,"timestamp":"1"}',
    "/controller_epoch": "7",
    "/consumers/g/ids/c1": '{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1"}',
    "/consumers/g/owners/t/0": "c1-0",
    "/consumers/g/offsets/t/0": "42",
    "/consumers/g/offsets/t/10": "7",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*pylogd_command(), "zookeeper", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture
def connect(zookeeper: ZooKeeper) -> str:
    client = KazooClient(zookeeper.hosts)
    client.start(60)
    for path, data in NODES.items():
        client.create(zookeeper.chroot + path, data.encode(), makepath=True)
    client.stop()
    client.close()
    return zookeeper.connect


def test_registrations_are_printed_as_lines(connect: str) -> None:
    done = run("-z", connect)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("\t") for line in done.stdout.splitlines()] == [
        ["brokers", "1", "h1", "9092", "r1"],
        ["brokers", "10", "", "", ""],
        ["controller", "1", "7"],
        ["topics", "t", "0", "1,10"],
        ["topics", "t", "10", "1"],
        ["groups", "g", "t", "0", "c1-0", "42"],
        ["groups", "g", "t", "10", "", "7"],
    ]


def test_registrations_are_printed_as_json(connect: str) -> None:
    done = run("-z", connect, "groups", "controller", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "controller": {"broker": 1, "epoch": "7"},
        "groups": [
            {
                "group": "g",
                "consumers": {"c1": {"t": 2}},
                "owners": {"t": {"0": "c1-0"}},
                "offsets": {"t": {"0": "42", "10": "7"}},
            }
        ],
    }


def test_errors_are_one_line_that_names_the_server(zookeeper: ZooKeeper, own_zookeeper: LocalZooKeeper) -> None:
    missing = run("-z", f"{zookeeper.hosts}/not-there")
    why = f"Error: ZooKeeper at {zookeeper.hosts} has no node /not-there: is the chroot right?\n"
    assert (missing.returncode, missing.stderr) == (1, why)
    malformed = run("-z", "no port:here")
    assert malformed.returncode == 2 and "write host:port,host:port/chroot" in malformed.stderr
    own_zookeeper.stop()
    nobody = run("-z", own_zookeeper.hosts)
    assert (nobody.returncode, nobody.stderr) == (
        1, f"Error: no ZooKeeper server answered at {own_zookeeper.hosts} within 10 s\n"
    )  # fmt: skip


def test_an_empty_tree_is_not_an_error(zookeeper: ZooKeeper) -> None:
    done = run("-z", zookeeper.hosts, "brokers")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
