"""Mirror between pylogd and Apache Kafka, both ways, exactly once: `python -m tests.mirror.kafka` (a minute).

A producer of each side writes with every codec and in transactions, some of them aborted; processes of the mirror are
killed meanwhile. Exit status 1 if the copy of a partition is not what is committed at its source.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from conformance import kafka_peer
from pylogd.client import Admin, Producer
from pylogd.local.broker import BrokerProcess
from tests.mirrors import MirrorProcess, committed, until, write_file

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
_KILLS = 4
_STORE = 'metadata.store = "{}"'


def fill(bootstrap: str, topic: str, seconds: float) -> None:
    """Write for some seconds: plain batches with each codec, transactions, and aborted ones."""
    end, number = time.monotonic() + seconds, 0
    with Producer(bootstrap, transactional_id=f"writer of {topic}") as transactional:
        while time.monotonic() < end:
            for codec in CODECS:
                with Producer(bootstrap, compression=codec) as producer:
                    for _ in range(300):
                        producer.send(topic, b"plain %d" % number, partition=number % PARTITIONS)
                        number += 1
            for outcome in (b"committed", b"aborted"):
                transactional.begin_transaction()
                for _ in range(50):
                    transactional.send(topic, b"%s %d" % (outcome, number), partition=number % PARTITIONS)
                    number += 1
                if outcome == b"committed":
                    transactional.commit_transaction()
                else:
                    transactional.abort_transaction()


def copy(folder: Path, source: str, target: str, topic: str) -> list[str]:
    """Copy a topic while the mirror is killed, and return what is wrong with the copy."""
    folder.mkdir()
    with Admin(source) as admin:
        admin.create_topic(topic, PARTITIONS, 1, {"retention.ms": "345600000"})
    route = {"source": "from", "target": "to", "topics": [topic]}
    file = write_file(folder / "mirror.toml", {"from": source, "to": target}, [route], _STORE.format(folder / "store"))
    log = folder / "mirror.log"
    process = MirrorProcess(file, log)
    try:
        process.wait()
        for _ in range(_KILLS):
            fill(source, topic, 2.0)
            process.kill()
            process = MirrorProcess(file, log)
            process.wait()
        fill(source, topic, 2.0)
        expected = committed(source, topic)
        count = sum(map(len, expected.values()))
        until(lambda: sum(map(len, committed(target, topic).values())) >= count, f"{count} copies", log.read_text)
        found = committed(target, topic)
        with Admin(target) as admin:
            settings = {entry.name: entry.value for entry in admin.describe_configs("topic", topic)}
        assert process.stop() == 0, log.read_text()
    finally:
        process.kill()
    faults = [
        f"{topic}-{index}: {len(values)} records at the source, {len(found[index])} at the target, or other ones"
        for index, values in expected.items()
        if found[index] != values
    ]
    if settings.get("retention.ms") != "345600000":
        faults.append(f"{topic}: retention.ms is {settings.get('retention.ms')} at the target")
    print(f"{topic}: {count} records were copied through {_KILLS} kills")
    return faults


def main() -> int:
    """Copy both ways, and return the exit status."""
    with tempfile.TemporaryDirectory(prefix="mirror-") as name:
        folder = Path(name)
        (folder / "kafka").mkdir()
        broker = BrokerProcess(folder / "pylogd", folder / "pylogd.log")
        try:
            with kafka_peer.running(folder / "kafka") as kafka:
                faults = copy(folder / "to-kafka", broker.address, kafka, "to-kafka")
                faults += copy(folder / "from-kafka", kafka, broker.address, "from-kafka")
        finally:
            broker.kill()
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
