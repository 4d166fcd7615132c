"""Storage failures on real brokers: a log directory fails, the last one fails, a volume is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.blocking.admin import Admin
from pylogd.client.blocking.consumer import Consumer
from pylogd.client.blocking.producer import Producer
from pylogd.local.broker import STOP_SECONDS, BrokerProcess

SECONDS = 180
VALUE = bytes(range(256)) * 40
SEGMENTS = {"internal.segment.bytes": "65536"}
IN_A_SMALL_VOLUME = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=8m none "$0" && exec "$@"']


def try_to_write(producer: Producer, partition: int) -> ErrorCode | None:
    """Write one record, and return the broker's error code or None."""
    try:
        producer.send("t", VALUE, partition=partition).result(SECONDS)
    except KafkaError as error:
        return error.code
    except PylogdError as error:
        if isinstance(error.__cause__, KafkaError):
            return error.__cause__.code
        raise
    return None


def write_until_it_fails(producer: Producer, partition: int) -> tuple[int, ErrorCode]:
    """Write until an error. Return the number of written records and the error code."""
    for count in range(5000):
        code = try_to_write(producer, partition)
        if code is not None:
            return count, code
    raise AssertionError("nothing failed")


def test_a_broker_survives_a_failed_directory_and_stops_when_the_last_fails(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    for folder in (first, second):
        folder.mkdir()
    store = f"sqlite:{tmp_path}/metadata.sqlite"
    broker = BrokerProcess(first, tmp_path / "log", SEGMENTS | {"metadata.store": store}, ["--data", str(second)])
    try:
        with Admin(broker.address) as admin, Producer(broker.address, linger_ms=0, retry=False) as producer:
            admin.create_topic("t", 2)
            gone = 0 if (first / "t-0").exists() else 1
            other = 1 - gone
            assert try_to_write(producer, gone) is None
            first.rename(tmp_path / "away")
            _, code = write_until_it_fails(producer, gone)
            # The broker answers by itself until the controller has reacted; then the partition has no leader.
            assert code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE)
            assert try_to_write(producer, gone) in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE)
            for _ in range(20):
                assert try_to_write(producer, other) is None
            second.rename(tmp_path / "away too")
            with pytest.raises(PylogdError):
                for _ in range(5000):
                    producer.send("t", VALUE, partition=other).result(SECONDS)
            producer.abandon()
        assert broker.process.wait(STOP_SECONDS) == 1
    finally:
        broker.kill()
    last = broker.log().strip().splitlines()[-1]
    assert last.startswith("pylogd: the last data directory has failed:")
    assert str(second) in last
    assert "Traceback" not in broker.log()


@pytest.fixture
def full_volume(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Path]]:
    """A broker on a small volume, and the path of a file that can fill the volume."""
    data = tmp_path / "data"
    data.mkdir()
    try:
        subprocess.run([*IN_A_SMALL_VOLUME, str(data), "true"], check=True, capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this system does not allow mounting a volume in a namespace")
    broker = BrokerProcess(data, tmp_path / "log", SEGMENTS, prefix=[*IN_A_SMALL_VOLUME, str(data)])
    yield broker, Path(f"/proc/{broker.pid}/root{data}/filler")
    broker.kill()


def test_a_full_volume_fails_produces_until_there_is_room(full_volume: tuple[BrokerProcess, Path]) -> None:
    broker, filler = full_volume
    with Admin(broker.address) as admin, Producer(broker.address, linger_ms=0, retry=False) as producer:
        admin.create_topic("t", 1)
        assert try_to_write(producer, 0) is None
        free = os.statvfs(filler.parent)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 300_000))
        count, code = write_until_it_fails(producer, 0)
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        filler.unlink()
        assert try_to_write(producer, 0) is None
        producer.abandon()  # closing reports the failed deliveries again
        with Consumer(broker.address) as consumer:
            consumer.assign([("t", 0)])
            seen: list[int] = []
            while len(seen) < count + 2:
                records = consumer.poll(SECONDS)
                assert records, "nothing came"
                assert all(record.value == VALUE for record in records)
                seen += [record.offset for record in records]
        assert seen == list(range(count + 2))
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()
