"""Damage to one topic affects no other: real brokers with unknown logs, corrupt metadata nodes, too few descriptors."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from pathlib import Path

from kazoo.client import KazooClient

from pylogd.base.errors import ErrorCode
from pylogd.client.blocking.producer import Producer
from pylogd.local.broker import BrokerProcess, pylogd_command
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.commands import run_command
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, create_topic, end_offset, open_files, wait_until
from tests.zookeeper import ZooKeeper


def fill(address: str, topic: str, count: int) -> None:
    """Produce `count` records and wait until they are acknowledged."""
    with Producer(address) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def has_records(client: RawClient, topic: str, count: int) -> bool:
    """Return whether the topic is served and has `count` records."""
    with contextlib.suppress(AssertionError):
        return end_offset(client, topic) == count
    return False


def auto_create(address: str, topics: list[str]) -> dict[str, int]:
    """Ask for the metadata of topics with auto-creation allowed. Return the error code of each."""
    codes = {}
    with RawClient(address) as client:
        for start in range(0, len(topics), 100):
            asked = [MetadataRequestTopic(name=name) for name in topics[start : start + 100]]
            reply = client.request(MetadataRequest(asked, True), 9)
            codes.update({topic.name: topic.error_code for topic in reply.topics})
    return codes


def test_logs_unknown_to_a_restored_metadata_store_are_kept_as_stray(start_broker: StartBroker, tmp_path: Path) -> None:
    first = start_broker()
    with RawClient(first.address) as client:
        create_topic(client, "older")
    assert first.stop() == 0
    copy = shutil.copy(first.data / "metadata.sqlite", tmp_path / "copy.sqlite")
    second = start_broker()
    with RawClient(second.address) as client:
        create_topic(client, "newer")
    fill(second.address, "newer", 1000)
    assert second.stop() == 0
    newest = shutil.copy(second.data / "metadata.sqlite", tmp_path / "newest.sqlite")

    shutil.copy(copy, second.data / "metadata.sqlite")
    third = start_broker()
    with RawClient(third.address) as client:
        assert end_offset(client, "older") == 0
    assert third.stop() == 0
    (stray,) = third.data.glob("newer-0.*-stray")
    assert f"Its log is kept as {stray}" in third.log()
    found = subprocess.run(
        [*pylogd_command(), "verify-log", str(third.data)], capture_output=True, text=True, check=True
    )
    assert f"warning: {stray}: a stray log" in found.stdout

    shutil.copy(newest, third.data / "metadata.sqlite")
    stray.rename(third.data / "newer-0")
    last = start_broker()
    with RawClient(last.address) as client:
        assert end_offset(client, "newer") == 1000


def test_a_corrupt_metadata_node_affects_its_topic_only(start_broker: StartBroker, zookeeper: ZooKeeper) -> None:
    first = start_broker(settings=zookeeper.settings)
    for topic in ("sound", "bad"):
        with RawClient(first.address) as client:
            create_topic(client, topic)
        fill(first.address, topic, 10)
    store = KazooClient(zookeeper.connect)
    store.start()
    try:
        node, _ = store.get("/brokers/topics/bad")
        store.set("/brokers/topics/bad", b"{")
        with RawClient(first.address) as client:
            create_topic(client, "later")
        assert first.stop() == 0
        second = start_broker(settings=zookeeper.settings)
        assert "topic bad can't be read: metadata node /brokers/topics/bad is not readable" in second.log()
        with RawClient(second.address) as client:
            create_topic(client, "last")
            assert end_offset(client, "sound") == 10
            store.set("/brokers/topics/bad", node)
            create_topic(client, "any")
            wait_until(lambda: has_records(client, "bad", 10), "the topic is served again")
    finally:
        store.stop()
        store.close()


def test_reassign_from_latest_refuses_compacted_topics(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        create_topic(client, "plain")
        create_topic(client, "compacted", cleanup_policy="compact")
    plan = tmp_path / "plan.json"
    moves = [{"topic": topic, "partition": 0, "replicas": [0]} for topic in ("plain", "compacted")]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    done = run_command("reassign", "execute", str(plan), "--from-latest", "1h", "-b", broker.address)
    assert done.returncode == 1
    assert "would lose the state of internal and compacted topics: compacted. " in done.stderr


def test_topics_are_refused_when_the_broker_lacks_file_descriptors(tmp_path: Path) -> None:
    few = ["prlimit", "--nofile=512:512", "--"]
    names = [f"auto-{number:04d}" for number in range(300)]
    first = BrokerProcess(tmp_path / "data", tmp_path / "log", prefix=few)
    try:
        codes = auto_create(first.address, names)
        made = [name for name, code in codes.items() if code != ErrorCode.INVALID_PARTITIONS]
        assert made == names[: len(made)]
        assert len(made) == 128
        fill(first.address, made[-1], 10)
        assert open_files(first.pid) < 512
        first.kill()
        second = BrokerProcess(tmp_path / "data", tmp_path / "log", prefix=few)
        with RawClient(second.address) as client:
            wait_until(lambda: has_records(client, made[-1], 10), "the last topic is served")
        assert second.stop() == 0
    finally:
        first.kill()
    assert "Traceback" not in first.log()


def test_a_broker_with_too_few_file_descriptors_starts_with_part_of_its_partitions(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path / "data", tmp_path / "log")
    try:
        auto_create(first.address, [f"auto-{number:04d}" for number in range(200)])
        fill(first.address, "auto-0000", 10)
        fill(first.address, "auto-0199", 10)
        assert first.stop() == 0
        second = BrokerProcess(tmp_path / "data", tmp_path / "log", prefix=["prlimit", "--nofile=512:512", "--"])
        try:
            with RawClient(second.address) as client:
                wait_until(lambda: has_records(client, "auto-0000", 10), "the first topic is served")
                assert not has_records(client, "auto-0199", 10)
            expected = "72 of 200 partitions are offline, starting with auto-0128-0: this broker may have 128"
            assert expected in second.log()
            assert second.stop() == 0
        finally:
            second.kill()
        third = BrokerProcess(tmp_path / "data", tmp_path / "log")
        try:
            with RawClient(third.address) as client:
                wait_until(lambda: has_records(client, "auto-0199", 10), "the last topic is back")
            assert third.stop() == 0
        finally:
            third.kill()
    finally:
        first.kill()
    assert "Traceback" not in first.log()
