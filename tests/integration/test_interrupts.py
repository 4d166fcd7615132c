"""Ctrl-C ends every blocking call of `pylogd.client` at once, whatever it waits for.

A child process makes the call against a broker that never answers. When the broker has received the request, the test
writes a line to the child's standard input, and a thread of the child sends SIGINT to its own process as soon as the
main thread executes code of the client. The calls have timeouts of an hour.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pylogd.wire.messages import ApiKey
from tests.fakes import broker as fake
from tests.fakes.group_broker import GroupBroker, fill

CHECKOUT = Path(__file__).resolve().parents[2]
SECONDS = 60.0

SCRIPT = """
import os, signal, sys, threading
from pylogd.client import Admin, Consumer, Producer

def interrupt(main):
    sys.stdin.readline()
    inside = False
    while not inside:
        frame = sys._current_frames()[main]
        while frame is not None and not inside:
            inside = "/pylogd/client/" in frame.f_code.co_filename
            frame = frame.f_back
    os.kill(os.getpid(), signal.SIGINT)

{setup}
threading.Thread(target=interrupt, args=(threading.get_ident(),), daemon=True).start()
print("ready", flush=True)
{call}
"""

PRODUCER = "producer = Producer(sys.argv[1], buffer_memory=1000, linger_ms=0, request_timeout=3600)"
SENT = PRODUCER + "\ndelivery = producer.send('t', bytes(1000), partition=0)"
COLUMNS = SENT + "\nimport pyarrow\ncolumns = pyarrow.record_batch({'value': [b'v']})"
CONSUMER = "consumer = Consumer(sys.argv[1], request_timeout=3600)"
ASSIGNED = CONSUMER + "\nconsumer.assign({('t', 0): 0})"
MEMBER = "consumer = Consumer(sys.argv[1], group_id='g', request_timeout=3600, auto_commit_interval=3600)"
#: A member with a record to commit: the second poll tells that the first record was processed.
READING = MEMBER + "\nconsumer.subscribe('t')\nfor _ in range(2):\n    while not consumer.poll(1, 1):\n        pass"
ADMIN = "admin = Admin(sys.argv[1], request_timeout=3600, retry_timeout=3600)"

#: The name of a case -> set-up, call, and the API that is never answered.
CALLS = {
    "send, for metadata": (PRODUCER, "producer.send('t', b'v')", ApiKey.METADATA),
    "send, for space": (SENT, "producer.send('t', b'v')", ApiKey.PRODUCE),
    "send_set": (SENT, "producer.send_set('t', [(None, b'v')])", ApiKey.PRODUCE),
    "send_columns": (
        COLUMNS, "producer.send_columns('t', columns)", ApiKey.PRODUCE,
    ),
    "result": (SENT, "delivery.result()", ApiKey.PRODUCE),
    "flush": (SENT, "producer.flush()", ApiKey.PRODUCE),
    "close of a producer": (SENT, "producer.close()", ApiKey.PRODUCE),
    "poll": (ASSIGNED, "consumer.poll(3600)", ApiKey.FETCH),
    "iteration": (ASSIGNED, "next(iter(consumer))", ApiKey.FETCH),
    "poll_columns": (ASSIGNED, "consumer.poll_columns(3600)", ApiKey.FETCH),
    "partitions": (CONSUMER, "consumer.partitions('t')", ApiKey.METADATA),
    "assign": (CONSUMER, "consumer.assign([('t', 0)])", ApiKey.LIST_OFFSETS),
    "end_offsets": (CONSUMER, "consumer.end_offsets([('t', 0)])", ApiKey.LIST_OFFSETS),
    "offsets_for_times": (CONSUMER, "consumer.offsets_for_times({('t', 0): 0})", ApiKey.LIST_OFFSETS),
    "seek_to_end": (ASSIGNED, "consumer.seek_to_end()", ApiKey.LIST_OFFSETS),
    "committed": (MEMBER, "consumer.committed([('t', 0)], 3600)", ApiKey.FIND_COORDINATOR),
    "commit": (MEMBER, "consumer.commit({('t', 0): 1}, timeout=3600)", ApiKey.FIND_COORDINATOR),
    "poll of a member": (MEMBER + "\nconsumer.subscribe('t')", "consumer.poll(3600)", ApiKey.FIND_COORDINATOR),
    "unsubscribe": (READING, "consumer.unsubscribe()", ApiKey.OFFSET_COMMIT),
    "a message stream": (
        MEMBER + "\n[stream] = consumer.create_message_streams('t')['t']", "next(stream)", ApiKey.FIND_COORDINATOR,
    ),
    "close of a member": (
        MEMBER + "\nconsumer.commit({('t', 0): 1}, wait=False)", "consumer.close(3600)", ApiKey.FIND_COORDINATOR,
    ),
    "an operation": (ADMIN, "admin.list_topics()", ApiKey.METADATA),
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_an_interrupt_ends_the_call(what: str) -> None:
    setup, call, api = CALLS[what]
    with GroupBroker() as broker:
        fill(broker, 0, 10)
        broker.on(api, *[fake.silence] * 100)
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(setup=setup, call=call), broker.address],
            cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
            broker.wait_until_asked(api, seconds=SECONDS)
            _, errors = process.communicate("\n", timeout=SECONDS)
        finally:
            process.kill()
            process.wait()
    assert errors.strip().endswith("KeyboardInterrupt"), errors
    assert "/pylogd/client/" in errors
    assert process.returncode == -signal.SIGINT
