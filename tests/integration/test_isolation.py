"""One bad thing stops one thing: what real brokers do about logs, links and topics that they can't make sense of."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from pylogd.client.blocking.producer import Producer
from tests.brokers import pylogd_command
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, create_topic, end_offset


def fill(address: str, topic: str, count: int) -> None:
    """Have so many records acknowledged."""
    with Producer(address) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def test_an_older_copy_of_the_metadata_store_costs_no_record(start_broker: StartBroker, tmp_path: Path) -> None:
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
