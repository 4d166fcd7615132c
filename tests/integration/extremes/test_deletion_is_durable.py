"""What is deleted stays deleted, whatever happens to the broker, and can be deleted when the disk is full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.errors import PylogdError
from pylogd.client import TopicPartition
from pylogd.client.blocking.admin import Admin
from pylogd.client.blocking.producer import Producer
from pylogd.client.core.admin.offsets import EARLIEST
from pylogd.local.broker import BrokerProcess
from pylogd.store.spare_room import SUFFIX
from tests.integration.conftest import StartBroker
from tests.rawclient import wait_until

SECONDS = 120
VALUE = bytes(10_000)
PARTITION = TopicPartition("t", 0)
#: A volume of 64 MB in a namespace of its own, which `sleep` keeps.
KEEP_A_VOLUME = [
    "unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=64m none "$0" && echo mounted && exec sleep 600'
]  # fmt: skip


def test_records_that_were_deleted_do_not_come_back_after_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("t", 1)
        for _ in range(10):
            producer.send("t", VALUE, partition=0).result(SECONDS)
        assert admin.delete_records({PARTITION: 7}) == {PARTITION: 7}
    broker.kill()
    again = start_broker()
    with Admin(again.address) as admin:
        assert admin.offsets({PARTITION: EARLIEST})[PARTITION].offset == 7


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """The path of a small volume, and the command that runs another one in its namespace."""
    data = tmp_path / "data"
    data.mkdir()
    with subprocess.Popen([*KEEP_A_VOLUME, str(data)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as keeper:
        try:
            assert keeper.stdout is not None
            if keeper.stdout.readline() != b"mounted\n":
                pytest.skip("this system does not allow mounting a volume in a namespace")
            yield data, ["nsenter", "-t", str(keeper.pid), "-U", "-m", "--preserve-credentials"]
        finally:
            keeper.kill()


def fill(inside: list[str], data: Path) -> None:
    """Leave nothing free on the volume."""
    script = f"f = open({str(data / 'filler')!r}, 'ab', 0)\nwhile True: f.write(bytes(4096))"
    subprocess.run([*inside, sys.executable, "-c", script], capture_output=True, timeout=SECONDS, check=False)


def test_a_single_broker_starts_on_a_full_disk_and_topics_are_deleted_through_it(
    volume: tuple[Path, list[str]], tmp_path: Path
) -> None:
    data, inside = volume
    broker = BrokerProcess(data, tmp_path / "log", prefix=inside)
    try:
        seen = Path(f"/proc/{broker.pid}/root{data}")
        with Admin(broker.address) as admin, Producer(broker.address) as producer:
            admin.create_topic("large", 1)
            for _ in range(1000):
                producer.send("large", VALUE, partition=0)
            producer.flush()
        wait_until(lambda: list(seen.glob(f"*{SUFFIX}")), "the spare room is kept")
    finally:
        broker.kill()
    fill(inside, data)
    broker = BrokerProcess(data, tmp_path / "log", prefix=inside)
    try:
        seen = Path(f"/proc/{broker.pid}/root{data}")
        with Admin(broker.address) as admin:
            assert [topic.name for topic in admin.list_topics()] == ["large"]
            admin.delete_topic("large")

            def has_room() -> bool:
                volume = os.statvfs(seen)
                return volume.f_bavail * volume.f_frsize > 5_000_000

            wait_until(has_room, "the deleted topic gives its room back")
            assert not admin.list_topics()
        with pytest.raises(PylogdError), Admin(broker.address) as admin:
            admin.delete_topic("large")
        assert broker.stop() == 0
    finally:
        broker.kill()
