"""The clients of the benchmarks against the floor, the C broker: their figures are what they claim to be."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.loads.active import TOGETHER, active_connections
from bench.loads.base import Work, parse
from bench.loads.kafka import Librdkafka
from bench.peers import running
from bench.peers.base import Peer
from bench.peers.secured import PylogdTls
from pylogd.local.broker import HOST
from tests.rawclient import wait_until

#: A client that sends a message only when the one before was acknowledged, so that it falls behind its schedule.
_ONE_AT_A_TIME = "queue.buffering.max.messages=1"
_LIMIT = 60.0
_STALL = 1.0
_SIZE = 200


@pytest.fixture
def floor(tmp_path: Path) -> Iterator[Peer]:
    with running("floor", tmp_path) as peer:
        yield peer


def _stamps(floor: Peer) -> Iterator[float]:
    """Return when each message on disk was due; 0 for a probe, by which the client sees that its reader reads."""
    [file] = (path for path in floor.data.rglob("*") if path.is_file())
    stored, start = file.read_bytes(), 0
    while start + 12 <= len(stored):
        start += 12 + int.from_bytes(stored[start + 8 : start + 12], "big")
        if start <= len(stored):
            # each batch has one record, which ends with its value and a byte for the number of headers
            yield struct.unpack_from("<d", stored, start - 1 - _SIZE)[0]


def test_a_stall_delays_every_message_that_was_due_meanwhile(floor: Peer) -> None:
    command = [*Librdkafka().latency_command(floor.address, Work(600, _SIZE, rate=200)), _ONE_AT_A_TIME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        # a tenth of the 600 is sent before the count begins
        wait_until(lambda: sum(stamp > 0 for stamp in _stamps(floor)) > 100, "a hundred messages")
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


def test_values_are_the_lines_of_a_file_in_turn(floor: Peer, tmp_path: Path) -> None:
    lines = [b"first", b"", b"the third line"]
    (tmp_path / "values").write_bytes(b"\n".join(lines))
    load, sent = Librdkafka(), 10
    said = load.produce(floor, Work(sent, values=str(tmp_path / "values")))
    [read] = load.consume(floor, Work(sent))
    assert said.bytes == read.bytes == sum(len(lines[number % 3]) for number in range(sent))


def test_a_reader_follows_a_producer_from_an_offset(floor: Peer) -> None:
    load = Librdkafka()
    load.produce(floor, Work(1000, size=10))
    said = load.through(floor, Work(3000, size=200), 1000)
    assert (said.messages, said.bytes) == (3000, 600_000), "the first thousand is not read"
    assert said.seconds > 0


def test_messages_of_others_do_not_count_as_latency(floor: Peer) -> None:
    load = Librdkafka()
    sending = threading.Thread(target=load.produce, args=(floor, Work(200_000)))
    sending.start()
    said = load.latency(floor, Work(300, rate=1000))
    sending.join()
    assert said.messages == 300
    assert 0 < said.percentiles["p50"] <= said.percentiles["highest"] < _LIMIT


def test_each_active_connection_sends_and_what_is_sent_is_stored(floor: Peer) -> None:
    with active_connections(floor, 16, 100) as many:
        for expected in (800, 1600):
            said = many.produce(800)
            assert 800 <= said.messages < 800 + 16 * TOGETHER
            assert said.bytes == 100 * said.messages
            assert sum(one.messages for one in Librdkafka().consume(floor, Work(expected))) == expected


def test_the_rows_about_tls_send_and_read_encrypted_messages(tmp_path: Path) -> None:
    load, sent = Librdkafka(), 5000
    with running("pylogd TLS", tmp_path) as peer:
        assert isinstance(peer, PylogdTls)
        assert load.produce(peer, Work(sent)).messages == sent
        [read] = load.consume(peer, Work(sent))
        assert (read.messages, read.bytes) == (sent, 200 * sent)
        context = ssl.create_default_context(cafile=peer.authority)
        with (
            socket.create_connection((HOST, peer.tls_port)) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as tls,
        ):
            assert tls.cipher() is not None


def test_an_error_in_an_answer_ends_the_client_with_connections(tmp_path: Path) -> None:
    with (
        running("pylogd", tmp_path) as peer,
        active_connections(peer, 2, 100) as two,
        pytest.raises(RuntimeError, match="an answer has error 3"),  # there is no topic
    ):
        two.produce(10)
