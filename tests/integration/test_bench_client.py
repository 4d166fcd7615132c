"""The client of the benchmarks against the floor, the C broker: its figures are what they claim to be."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.loads.base import Work, parse
from bench.loads.kafka import Librdkafka
from bench.peers import running
from bench.peers.base import Peer
from tests.rawclient import wait_until

pytestmark = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="there is no C compiler")

#: A client that sends a message only when the one before was acknowledged, so that it falls behind its schedule.
_ONE_AT_A_TIME = "queue.buffering.max.messages=1"
_LIMIT = 60.0
_STALL = 1.0


@pytest.fixture
def floor(tmp_path: Path) -> Iterator[Peer]:
    with running("floor", tmp_path) as peer:
        yield peer


def test_a_stall_delays_every_message_that_was_due_meanwhile(floor: Peer) -> None:
    command = [*Librdkafka().latency_command(floor.address, Work(600, rate=200)), _ONE_AT_A_TIME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        wait_until(lambda: floor.disk() > 100 * 200, "a hundred messages")
        os.kill(floor.pid, signal.SIGSTOP)
        stalled = threading.Timer(_STALL, os.kill, (floor.pid, signal.SIGCONT))
        stalled.start()
        try:
            output, _ = client.communicate(timeout=_LIMIT)
        finally:
            stalled.join()
            client.kill()
    said = parse(output).percentiles
    # about 200 of the 540 messages that count were due in the stall; if only the one that was under way had been
    # delayed, the 99th percentile would know nothing of it
    assert said["highest"] > 0.9 * _STALL
    assert said["p99"] > 0.5 * _STALL
    assert said["p50"] <= said["p99"] <= said["p999"] <= said["highest"]


def test_at_rate_0_the_last_message_has_waited_for_all(floor: Peer) -> None:
    load = Librdkafka()
    command = [*load.latency_command(floor.address, Work(2000, rate=0)), _ONE_AT_A_TIME]
    said = parse(subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT).stdout)
    assert said.messages == 2000
    assert said.percentiles["highest"] > said.seconds / 2
    assert said.percentiles["p50"] > said.percentiles["highest"] / 4
