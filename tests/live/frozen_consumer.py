"""A member of a ZooKeeper group that stops itself (SIGSTOP) while it decodes its first records.

    python frozen_consumer.py ZOOKEEPER BOOTSTRAP READING SESSION_SECONDS

The group is named READING: `poll`, `columns` or `iterate`. Lines on the standard output: `stopping`, `lost`
when the partitions are lost, and `read OFFSET` for the first record that is handed out.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from pylogd.client import Consumer
from pylogd.client.core.consumer import reader


def stop_in(name: str) -> None:
    """Have a function that decodes stop the process once, before it returns."""
    function = getattr(reader, name)

    def decode(*arguments: Any, **options: Any) -> Any:
        found = function(*arguments, **options)
        setattr(reader, name, function)
        say("stopping")
        os.kill(os.getpid(), signal.SIGSTOP)
        return found

    setattr(reader, name, decode)


def say(what: str) -> None:
    print(what, flush=True)


def offsets(consumer: Consumer, reading: str) -> Iterator[int]:
    """Yield the first offset of each piece that is handed out."""
    consumer.subscribe("events", on_lost=lambda _: say("lost"))
    if reading == "iterate":
        for record in consumer:
            yield record.offset
    while True:
        if reading == "columns":
            for _, columns in consumer.poll_columns(0.1):
                yield columns.column("offset")[0].as_py()
        else:
            for record in consumer.poll(0.1)[:1]:
                yield record.offset


def main(zookeeper: str, bootstrap: str, reading: str, seconds: str) -> None:
    stop_in("decode_batches" if reading == "columns" else "decode_batch")
    consumer = Consumer(
        bootstrap, group_id=reading, coordinator="zookeeper", zookeeper=zookeeper, session_timeout=float(seconds),
        auto_commit="off", auto_offset_reset="earliest",
    )  # fmt: skip
    for offset in offsets(consumer, reading):
        say(f"read {offset}")


if __name__ == "__main__":
    main(*sys.argv[1:])
