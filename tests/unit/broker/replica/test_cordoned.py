"""Cordoned data directories take no new partitions, and a broker that has no others no new replicas (KIP-1066)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from pylogd.broker.metadata.errors import IneligibleReplica, InvalidReplicaAssignment, InvalidReplicationFactor
from pylogd.broker.metadata.image import Broker, Endpoint, Outages
from pylogd.broker.metadata.layout import encode_broker
from pylogd.broker.replica.outages import OutageReporter
from pylogd.config import ConfigError
from pylogd.store.paths import BROKERS
from pylogd.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from tests.fakes.metadata import result_of
from tests.fakes.parts import NODE, Parts


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, log_dirs="/a,/b")
    yield made
    made.close()


def cordon(parts: Parts, *paths: str) -> None:
    parts.settings.set_dynamic({}, {"cordoned.log.dirs": ",".join(paths)})


def directories(parts: Parts, topic: str) -> set[str]:
    return {log.directory.split("/")[1] for (name, _), log in parts.logs.logs.items() if name == topic}


def listed(parts: Parts) -> dict[str, bool]:
    answer = parts.call(DescribeLogDirsRequest(None), 5)
    return {found.log_dir: found.is_cordoned for found in answer.results}


def test_new_partitions_go_to_the_other_directories(parts: Parts) -> None:
    cordon(parts, "/a")
    parts.create("t", partitions=4)
    assert directories(parts, "t") == {"b"}
    assert listed(parts) == {"/a": True, "/b": False}
    cordon(parts)
    parts.create("u", partitions=4)
    assert directories(parts, "u") == {"a"}, "which has the fewest"
    assert listed(parts) == {"/a": False, "/b": False}


def test_partitions_that_are_there_stay_in_use(parts: Parts) -> None:
    parts.create("t", partitions=2)
    cordon(parts, "*")
    assert listed(parts) == {"/a": True, "/b": True}
    for index in (0, 1):
        parts.append("t", b"v", partition=index)


def test_a_replica_that_was_assigned_before_is_created_with_a_warning(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    cordon(parts, "*")  # which nobody has reported to the cluster yet
    parts.create("t")
    assert directories(parts, "t") == {"a"}
    assert "t-0 is created in /a although that is cordoned" in caplog.text


@pytest.mark.parametrize("value", ["/c", "/a,/a/t-0", "*,/c"])
def test_only_data_directories_can_be_cordoned(parts: Parts, value: str) -> None:
    with pytest.raises(ConfigError, match=r"not in log\.dirs"):
        cordon(parts, value)


@pytest.fixture
def reporter(parts: Parts) -> Iterator[OutageReporter]:
    made = OutageReporter(
        parts.partitions, parts.logs, parts.cluster.own.report_outages, parts.clock, parts.replica_parts.disk_calls, 1.0
    )
    parts.settings.subscribe(lambda _: made.changed())
    parts.logs.on_directory_failed = lambda _path, _keys: made.changed()
    made.start()
    yield made
    result_of(made.stop())


def test_a_broker_whose_directories_are_all_cordoned_gets_no_replicas(parts: Parts, reporter: OutageReporter) -> None:
    parts.create("t")
    cordon(parts, "/a,/b")
    parts.time.advance(0)
    assert parts.cluster.brokers[NODE].outages == Outages(cordoned=True)
    with pytest.raises(InvalidReplicationFactor, match=r"cordoned\.log\.dirs"):
        parts.create("u")
    with pytest.raises(InvalidReplicaAssignment, match="is cordoned"):
        result_of(parts.topic_admin.create_topic("u", assignment={0: [NODE]}))
    with pytest.raises(InvalidReplicationFactor, match=r"cordoned\.log\.dirs"):
        result_of(parts.topic_admin.add_partitions("t", 2))
    assert result_of(parts.partition_admin.move({("t", 0): [NODE]})) == {("t", 0): None}, "it has that replica"
    cordon(parts, "/b")
    parts.time.advance(0)
    assert parts.cluster.brokers[NODE].outages == Outages()
    parts.create("u", partitions=2)
    assert directories(parts, "u") == {"a"}


def test_the_last_directory_that_works_being_cordoned_counts(parts: Parts, reporter: OutageReporter) -> None:
    cordon(parts, "/a")
    parts.time.advance(0)
    assert not parts.cluster.brokers[NODE].outages.cordoned
    parts.fs.identities["/b"] = 7  # another volume is mounted there: the directory is gone
    parts.time.pump([1.0, 0])
    assert parts.cluster.brokers[NODE].outages.cordoned


def test_a_reassignment_to_a_cordoned_broker_is_refused(parts: Parts) -> None:
    other = Broker(2, (Endpoint("PLAINTEXT", "other", 9092),))
    result_of(parts.metadata.store.create(f"{BROKERS}/2", encode_broker(other)))
    result_of(Deferred.fromCoroutine(parts.cluster.look_again()))
    result_of(parts.topic_admin.create_topic("t", assignment={0: [2]}))
    result_of(parts.cluster.own.report_outages(Outages(cordoned=True)))
    (refused,) = result_of(parts.partition_admin.move({("t", 0): [2, NODE]})).values()
    assert isinstance(refused, IneligibleReplica)
