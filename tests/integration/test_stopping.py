"""How brokers stop and recover: clean stops, crashes, torn files, full disks.

Every test that writes ends with `pylogd verify-log`, which reads all batches and indexes.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.local.broker import STOP_SECONDS, BrokerProcess, pylogd_command
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.records import NewRecord, decode_batch, encode_batch, iter_batches
from tests.rawclient import (
    PATIENCE,
    ConnectionClosed,
    RawClient,
    check_serves,
    create_topic,
    end_offset,
    produce,
    wait_until,
    wait_until_at_rest,
)

FETCH_VERSION = 11
LONG_POLL_MS = 600_000
CLEAN_MARK = ".kafka_cleanshutdown"
UNCLEAN = "was not closed cleanly"

StartBroker = Callable[..., BrokerProcess]


def batch(number: int, size: int = 100) -> bytes:
    """Return a batch of one record whose value begins with its number."""
    value = struct.pack(">i", number) + bytes(size)
    return encode_batch([NewRecord(None, value, time.time_ns() // 1_000_000)])


def fetch(topic: str, offset: int, *, wait_ms: int = 0, max_bytes: int = 1 << 30) -> FetchRequest:
    """Fetch partition 0 without a session."""
    wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, topics=[FetchTopic(topic, partitions=[wanted])]
    )


def numbers_in(client: RawClient, topic: str) -> list[int]:
    """Read partition 0 of a topic, check the CRCs, and return the numbers of its records."""
    numbers: list[int] = []
    end = end_offset(client, topic)
    while len(numbers) < end:
        partition = client.request(fetch(topic, len(numbers)), FETCH_VERSION).responses[0].partitions[0]
        assert partition.error_code == 0
        for header, data in iter_batches(partition.records):
            for record in decode_batch(data, header):
                assert record.offset == len(numbers)
                numbers.append(struct.unpack_from(">i", record.value or b"")[0])
    return numbers


def active_segment(broker: BrokerProcess, topic: str) -> Path:
    """Return the last segment of a topic's partition 0."""
    return max((broker.data / f"{topic}-0").glob("*.log"))


def verify(broker: BrokerProcess) -> None:
    """Check the files of a stopped broker."""
    command = [*pylogd_command(), "verify-log", str(broker.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Clean stops ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_clean_stop_is_marked_and_the_next_start_scans_nothing(
    start_broker: StartBroker, number: signal.Signals
) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        create_topic(client, "kept")
        for count in range(20):
            assert produce(client, "kept", [batch(count)])[0].error_code == 0
    os.kill(broker.pid, number)
    assert broker.process.wait(STOP_SECONDS) == 0
    assert (broker.data / CLEAN_MARK).exists()
    verify(broker)

    again = start_broker()
    assert not (broker.data / CLEAN_MARK).exists(), "the marker is valid for one start"
    with RawClient(again.address) as client:
        assert numbers_in(client, "kept") == list(range(20))
        assert produce(client, "kept", [batch(20)])[0].base_offset == 20
    log = again.log()
    assert UNCLEAN not in log
    assert "#warn]" not in log
    assert "#error]" not in log
    assert again.stop() == 0
    verify(again)


def test_a_stop_answers_waiting_fetches(start_broker: StartBroker) -> None:
    """A long poll gets an empty response. Then the connection is closed."""
    broker = start_broker()
    with RawClient(broker.address) as client, RawClient(broker.address) as idle:
        create_topic(client, "waited")
        request = client.send_request(fetch("waited", 0, wait_ms=LONG_POLL_MS), FETCH_VERSION)
        wait_until_at_rest(broker.pid)
        os.kill(broker.pid, signal.SIGTERM)
        reply = client.response(1, FETCH_VERSION, request)
        assert (reply.error_code, reply.responses[0].partitions[0].error_code) == (0, 0)
        assert client.is_closed_by_broker()
        assert idle.is_closed_by_broker()
        assert broker.process.wait(STOP_SECONDS) == 0


def test_a_stop_waits_until_a_large_reply_is_sent(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"controlled.shutdown.drain.ms": str(LONG_POLL_MS)})
    with RawClient(broker.address, receive_buffer=1 << 14) as client:
        create_topic(client, "large")
        for number in range(20):
            produce(client, "large", [batch(number, 900_000)])
        request = client.send_request(fetch("large", 0), FETCH_VERSION)
        wait_until_at_rest(broker.pid)
        os.kill(broker.pid, signal.SIGTERM)
        reply = client.response(1, FETCH_VERSION, request)
        assert len(list(iter_batches(reply.responses[0].partitions[0].records))) == 20
        assert broker.process.wait(STOP_SECONDS) == 0


def test_a_stop_does_not_wait_for_ever_for_a_client_that_does_not_read(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"controlled.shutdown.drain.ms": "500"})
    with RawClient(broker.address, receive_buffer=1 << 14) as client:
        owe_a_large_reply(broker, client)
        os.kill(broker.pid, signal.SIGTERM)
        assert broker.process.wait(STOP_SECONDS) == 0
    assert (broker.data / CLEAN_MARK).exists()
    verify(broker)


def test_a_second_signal_ends_the_wait(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"controlled.shutdown.drain.ms": str(LONG_POLL_MS)})
    with RawClient(broker.address, receive_buffer=1 << 14) as client:
        owe_a_large_reply(broker, client)
        os.kill(broker.pid, signal.SIGTERM)
        wait_until(lambda: "Stopping" in broker.log(), "the stop has begun")
        os.kill(broker.pid, signal.SIGINT)
        assert broker.process.wait(STOP_SECONDS) == 0
    assert (broker.data / CLEAN_MARK).exists()


def owe_a_large_reply(broker: BrokerProcess, client: RawClient) -> None:
    """Ask for a reply of 18 MB and do not read it."""
    create_topic(client, "owed")
    for number in range(20):
        produce(client, "owed", [batch(number, 900_000)])
    client.send_request(fetch("owed", 0), FETCH_VERSION)
    wait_until_at_rest(broker.pid)


def test_a_stop_under_load_keeps_acknowledged_records(start_broker: StartBroker) -> None:
    broker = start_broker()
    acknowledged = produce_until_closed(broker, "loaded", lambda: os.kill(broker.pid, signal.SIGTERM))
    assert broker.process.wait(STOP_SECONDS) == 0
    verify(broker)
    with RawClient(start_broker().address) as client:
        kept = numbers_in(client, "loaded")
    assert kept[: len(acknowledged)] == acknowledged


def produce_until_closed(broker: BrokerProcess, topic: str, end_it: Callable[[], None]) -> list[int]:
    """Produce numbers until `end_it` has ended the broker. Return the acknowledged numbers."""
    acknowledged: list[int] = []
    enough = threading.Event()

    def end_it_after_some() -> None:
        enough.wait(PATIENCE)
        end_it()

    helper = threading.Thread(target=end_it_after_some)
    helper.start()
    with RawClient(broker.address) as client:
        create_topic(client, topic)
        try:
            while True:
                number = len(acknowledged)
                answer = produce(client, topic, [batch(number)])[0]
                assert (answer.error_code, answer.base_offset) == (0, number)
                acknowledged.append(number)
                if number == 500:
                    enough.set()
        except (ConnectionClosed, ConnectionResetError):
            pass
    helper.join()
    assert len(acknowledged) > 500
    return acknowledged


# Crashes --------------------------------------------------------------------------------------------------------------


def test_a_killed_broker_keeps_acknowledged_records(start_broker: StartBroker) -> None:
    broker = start_broker()
    acknowledged = produce_until_closed(broker, "killed", broker.process.kill)
    broker.kill()
    assert not (broker.data / CLEAN_MARK).exists()
    again = start_broker()
    assert again.log().count(UNCLEAN) == 1
    with RawClient(again.address) as client:
        kept = numbers_in(client, "killed")
        assert kept[: len(acknowledged)] == acknowledged
        assert len(kept) <= len(acknowledged) + 1, "the record in flight may have been stored"
        assert produce(client, "killed", [batch(len(kept))])[0].base_offset == len(kept)
    assert again.stop() == 0
    verify(again)


TORN: dict[str, Callable[[bytes], bytes]] = {
    "random bytes": lambda whole: whole + bytes(range(256)) * 3,
    "zeros": lambda whole: whole + bytes(5000),
    "half a batch": lambda whole: whole + batch(99, 400)[:300],
    "a few bytes": lambda whole: whole + b"\0\0\0",
    "a batch that fails its CRC": lambda whole: whole + batch(99)[:-1] + b"!",
}


@pytest.mark.parametrize("name", TORN)
def test_recovery_truncates_torn_batches(start_broker: StartBroker, name: str) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        create_topic(client, "torn")
        for number in range(10):
            produce(client, "torn", [batch(number)])
    broker.kill()
    segment = active_segment(broker, "torn")
    whole = segment.read_bytes()
    torn = TORN[name](whole)
    segment.write_bytes(torn)

    again = start_broker()
    assert f"{len(torn) - len(whole)} bytes are removed" in again.log()
    assert segment.read_bytes() == whole
    with RawClient(again.address) as client:
        assert numbers_in(client, "torn") == list(range(10))
        assert produce(client, "torn", [batch(10)])[0].base_offset == 10
        assert numbers_in(client, "torn") == list(range(11))
    assert again.stop() == 0
    verify(again)


def test_recovery_repairs_damage_in_many_segments(start_broker: StartBroker) -> None:
    """There are a missing index, an index of garbage, and a torn end after a crash."""
    broker = start_broker()
    with RawClient(broker.address) as client:
        create_topic(client, "many", segment_bytes=str(1 << 20))
        for number in range(40):
            produce(client, "many", [batch(number, 200_000)])
    assert broker.stop() == 0
    indexes = sorted((broker.data / "many-0").glob("*.index"))
    assert len(indexes) > 3
    indexes[0].unlink()
    indexes[1].write_bytes(b"garbage")

    broker = start_broker()
    with RawClient(broker.address) as client:
        assert numbers_in(client, "many") == list(range(40))
        for number in range(40, 60):
            produce(client, "many", [batch(number, 200_000)])
    broker.kill()
    segment = active_segment(broker, "many")
    segment.write_bytes(segment.read_bytes() + b"torn")

    broker = start_broker()
    with RawClient(broker.address) as client:
        assert numbers_in(client, "many") == list(range(60))
    assert broker.stop() == 0
    verify(broker)


# Full disks -----------------------------------------------------------------------------------------------------------

SMALL_VOLUME = 12 << 20
FULL = ErrorCode.KAFKA_STORAGE_ERROR


class FullByLimit:
    """Simulate a full disk by a limit of file sizes (setrlimit(2), RLIMIT_FSIZE), which needs no privileges."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._pid = broker.pid
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (SMALL_VOLUME // 2, resource.RLIM_INFINITY))

    def make_room(self) -> None:
        """Lift the limit."""
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class FullVolume:
    """Fill a small volume, half of which is taken by a file that can be deleted."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._filler = broker.data / "filler.tmp"
        self._filler.write_bytes(bytes(SMALL_VOLUME // 2))

    def make_room(self) -> None:
        """Delete the file."""
        self._filler.unlink()


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """Mount a volume of 12 MiB for the broker's directory. Skip the test without the right to mount."""
    path = tmp_path / "broker"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_VOLUME}", "none", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a volume; test_a_file_size_limit_is_handled_as_a_full_disk covers the same code")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_broker_survives_a_full_disk(small_volume: Path, start_broker: StartBroker) -> None:
    broker = start_broker()
    assert broker.data == small_volume
    fill_and_recover(broker, FullVolume)
    assert broker.stop() == 0
    verify(broker)


def test_a_full_disk_refuses_new_topics_and_allows_a_stop(small_volume: Path, start_broker: StartBroker) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        create_topic(client, "first")
        assert produce(client, "first", [batch(0)])[0].error_code == 0
        with (small_volume / "filler.tmp").open("wb", buffering=0) as filler:
            for size in (1 << 20, 1 << 12):
                while filler_fits(filler.fileno(), size):
                    pass
        topics = [CreatableTopic(f"new-{number}", 1, 1, [], []) for number in range(5)]
        reply = client.request(CreateTopicsRequest(topics, 5000), 5)
        refused = [topic for topic in reply.topics if topic.error_code]
        assert refused, "five topics were created on a full disk"
        assert all(topic.error_message for topic in refused)
        assert numbers_in(client, "first") == [0]
        (small_volume / "filler.tmp").unlink()
        create_topic(client, "second")
        assert produce(client, "second", [batch(0)])[0].error_code == 0
    assert broker.stop() == 0
    verify(broker)


def filler_fits(fd: int, size: int) -> bool:
    try:
        return os.write(fd, bytes(size)) == size
    except OSError:
        return False


def test_a_file_size_limit_is_handled_as_a_full_disk(start_broker: StartBroker) -> None:
    broker = start_broker()
    fill_and_recover(broker, FullByLimit)
    assert broker.stop() == 0
    verify(broker)


def fill_and_recover(broker: BrokerProcess, obstacle: Callable[[BrokerProcess], FullByLimit | FullVolume]) -> None:
    """Fill the disk. Check that acknowledged records can be read, and that writing succeeds once there is room."""
    with RawClient(broker.address) as client:
        create_topic(client, "full")
        in_the_way = obstacle(broker)
        count = 0
        while (answer := produce(client, "full", [batch(count, 300_000)])[0]).error_code == 0:
            count += 1
            assert count < 100
        assert ErrorCode(answer.error_code) is FULL
        assert answer.error_message
        assert (answer.base_offset, end_offset(client, "full")) == (-1, count)
        for _ in range(20):
            assert ErrorCode(produce(client, "full", [batch(count, 300_000)])[0].error_code) is FULL
        assert numbers_in(client, "full") == list(range(count)), "reads go on"
        check_serves(broker.address)
        in_the_way.make_room()
        for number in range(count, count + 5):
            answer = produce(client, "full", [batch(number, 300_000)])[0]
            assert (answer.error_code, answer.base_offset) == (0, number)
        assert numbers_in(client, "full") == list(range(count + 5))
    complaints = [line for line in broker.log().splitlines() if "storage failed" in line]
    assert 0 < len(complaints) < 10, "logged, but not for every request"
