"""The senders, on plain connections and with TLS: order, fairness, cold files, short files, congestion."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol

from pylogd.broker.log import residency
from pylogd.broker.net import sender as sender_module
from pylogd.broker.net.sender import CopyingSender, Sender
from tests.fakes.tls import TlsPair
from tests.fakes.transport import ManualReactor, PairTransport

MAX_CHUNK = 1 << 16
MAX_UNSENT = 1 << 20


class Region:
    """A slice of a file that the test can make cold."""

    in_blocks = False
    zeros = 0

    def __init__(self, file: IO[bytes], position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length
        self.cold = False

    def __len__(self) -> int:
        return self.length

    def fileno(self) -> int:
        return self.file.fileno()

    def is_warm(self, position: int, length: int) -> bool:
        return not self.cold

    def missing(self, position: int, length: int) -> int:
        return length if self.cold else 0

    def send_resident(self, socket: int, head: bytes, length: int) -> int:
        return -1 if self.cold else residency.send_resident(socket, head, self.fileno(), self.position, length)

    def copy(self) -> bytes | None:
        data = os.pread(self.file.fileno(), self.length, self.position)
        return None if self.cold or len(data) < self.length else data


class Rig:
    """A sender with its transport, the slices that it had read ahead, and how often it was drained."""

    transport: PairTransport | TlsPair
    sender: Sender

    def __init__(self, content: bytes, tls: bool) -> None:
        self.content = content
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the fixture
        self.file.write(content)
        self.file.flush()
        self.warming: list[tuple[Region, int, int, Deferred[None]]] = []
        self.drains = 0
        if tls:
            self.transport = TlsPair().handshake()
            self.sender = CopyingSender(self.transport.tls, self.warm, self, max_chunk=MAX_CHUNK, max_unsent=MAX_UNSENT)
            self.tcp = self.transport.tcp
        else:
            self.tcp = self.transport = PairTransport(Protocol(), ManualReactor())
            self.sender = Sender(self.transport, self.warm, self, max_chunk=MAX_CHUNK, max_unsent=MAX_UNSENT)

    def warm(self, source: Any, position: int, length: int) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        self.warming.append((source, position, length, done))
        return done

    def drained(self) -> None:
        self.drains += 1

    def region(self, position: int, length: int) -> Region:
        return Region(self.file, position, length)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(os.urandom(3 * MAX_CHUNK), request.param)
    yield rig
    rig.file.close()
    rig.transport.socket.close()
    rig.transport.peer.close()


def test_bytes_and_slices_leave_in_order_and_intact(rig: Rig) -> None:
    rig.sender.send([b"one", rig.region(5, 2 * MAX_CHUNK), b"two", rig.region(0, 7), rig.region(9, 0), b"three"])
    rig.sender.send([b"four"])
    body = rig.content
    assert rig.transport.pump() == b"one" + body[5 : 5 + 2 * MAX_CHUNK] + b"two" + body[:7] + b"three" + b"four"
    assert rig.sender.idle


def test_a_slice_alone_and_an_empty_one(rig: Rig) -> None:
    rig.sender.send([rig.region(1, 100)])
    rig.sender.send([rig.region(1, 0)])
    assert rig.transport.pump() == rig.content[1:101]
    assert rig.sender.idle


def test_one_turn_sends_at_most_one_chunk(rig: Rig) -> None:
    rig.sender.send([rig.region(0, 3 * MAX_CHUNK)])
    sizes = [len(rig.transport.received())]
    while rig.transport.turns.turn():
        sizes.append(len(rig.transport.received()))
    assert sum(sizes) == 3 * MAX_CHUNK
    assert max(sizes) <= MAX_CHUNK


def test_what_sendfile_takes_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(os.urandom(3 * MAX_CHUNK), tls=False)
    calls: list[tuple[int, int]] = []

    def sendfile(out: int, source: int, at: int, count: int) -> int:
        calls.append((at, count))
        return os.write(out, os.pread(source, min(count, 1000), at))

    monkeypatch.setattr(os, "sendfile", sendfile)
    rig.sender.send([rig.region(0, 3 * MAX_CHUNK)])
    assert calls == [(0, MAX_CHUNK)]
    rig.transport.turns.turn()
    assert calls[1:] == [(1000, MAX_CHUNK)]


@pytest.mark.parametrize("full", [True, False], ids=["takes nothing", "takes a part"])
def test_what_waits_for_the_socket_is_looked_for_in_memory_again(monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    rig = Rig(os.urandom(MAX_CHUNK), tls=False)
    region = rig.region(0, MAX_CHUNK)

    def sendfile(out: int, source: int, at: int, count: int) -> int:
        if full:
            raise BlockingIOError
        return os.write(out, os.pread(source, 1000, at))

    monkeypatch.setattr(os, "sendfile", sendfile)
    rig.sender.send([region])
    region.cold = True  # the kernel needed the memory
    rig.transport.turns.turn()
    assert [one[1] for one in rig.warming] == [0 if full else 1000]


_END = bytes(3)
_RECORDS = 50_000  # bytes, with zeros behind them


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def zeros_behind(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(os.urandom(_RECORDS) + bytes(8) + os.urandom(_RECORDS), request.param)
    yield rig
    rig.file.close()
    rig.transport.socket.close()
    rig.transport.peer.close()


@pytest.mark.parametrize("zeros", [0, 2, 3, 8])
@pytest.mark.parametrize("length", [10, _RECORDS])
@pytest.mark.parametrize("cold", [False, True])
def test_records_leave_between_what_is_around_them(zeros_behind: Rig, zeros: int, length: int, cold: bool) -> None:
    rig = zeros_behind
    expected = b""
    for at in range(4):  # more than the socket takes
        region = rig.region(_RECORDS - length, length)
        region.zeros, region.cold = zeros, cold and at == 1
        head = b"head %d" % at
        rig.sender.send_records(head, region, _END)
        expected += head + rig.content[_RECORDS - length : _RECORDS] + _END
    assert not rig.sender.idle or length < _RECORDS
    got = rig.transport.pump()
    if cold:
        ((source, *_, done),) = rig.warming
        source.cold = False
        done.callback(None)
        got += rig.transport.pump()
    assert got == expected
    assert rig.sender.idle


def test_records_in_memory_leave_with_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    if residency.send_resident is residency.leave:
        pytest.skip("there was no compiler")
    rig = Rig(os.urandom(_RECORDS) + bytes(8), tls=False)
    region = rig.region(0, _RECORDS)
    region.zeros = 3
    monkeypatch.setattr(os, "sendfile", None)
    monkeypatch.setattr(Sender, "write", None)
    rig.sender.send_records(b"head", region, _END)
    assert rig.transport.received() == b"head" + rig.content[:_RECORDS] + _END
    assert rig.sender.idle


def test_zeros_are_not_sent_in_place_of_other_bytes() -> None:
    rig = Rig(os.urandom(_RECORDS) + bytes(8), tls=False)
    for tail in (b"\0\0\1", bytes(4), b""):
        region = rig.region(0, _RECORDS)
        region.zeros = 3
        rig.sender.send([b"head", region, tail, b"next"])
        assert rig.transport.pump() == b"head" + rig.content[:_RECORDS] + tail + b"next"


def test_one_turn_sends_many_small_slices_up_to_its_share(rig: Rig) -> None:
    piece = MAX_CHUNK // 4
    rig.sender.send([part for at in range(6) for part in (b"-", rig.region(at * piece, piece))])
    first = rig.transport.received()
    assert len(first) <= MAX_CHUNK + 6
    pieces = [b"-" + rig.content[at * piece : (at + 1) * piece] for at in range(6)]
    assert first + rig.transport.pump() == b"".join(pieces)


def test_small_slices_leave_with_what_is_around_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sendfile", None)
    rig.sender.send([b"head", rig.region(3, 500), b"middle", rig.region(700, 1000), b"tail"])
    assert rig.transport.received() == b"head" + rig.content[3:503] + b"middle" + rig.content[700:1700] + b"tail"
    assert rig.sender.idle


def test_a_peer_that_takes_nothing_has_no_more_copied_for_it(rig: Rig) -> None:
    size = sender_module.COPIED_BYTES
    regions = [rig.region(at, size) for at in range(40)]
    for region in regions:
        rig.sender.send([b"head", region, b"tail"])
    waiting = [part for part in rig.sender.queued or () if not isinstance(part, bytes)]
    assert len(waiting) > 30
    expected = b"".join(b"head" + rig.content[at : at + size] + b"tail" for at in range(40))
    assert rig.transport.received() + rig.transport.pump() == expected
    assert rig.sender.idle


def test_a_cold_chunk_is_warmed_elsewhere_and_sent_then(rig: Rig) -> None:
    region = rig.region(10, 1000)
    region.cold = True
    rig.sender.send([b"head", region, b"tail"])
    assert rig.transport.pump() == b"head"
    (_source, position, length, done) = rig.warming.pop()
    assert (position, length) == (10, 1000)
    region.cold = False
    done.callback(None)
    assert rig.transport.pump() == rig.content[10:1010] + b"tail"


def test_a_chunk_that_stays_cold_is_sent_all_the_same(rig: Rig) -> None:
    """Not every file system can tell, and the chunk may lie behind the end of a file that was truncated."""
    region = rig.region(0, MAX_CHUNK + 5)
    region.cold = True
    rig.sender.send([region])
    assert rig.transport.pump() == b""
    rig.warming.pop()[3].callback(None)
    assert rig.transport.pump() == rig.content[:MAX_CHUNK]
    rig.warming.pop()[3].callback(None)
    assert rig.transport.pump() == rig.content[MAX_CHUNK : MAX_CHUNK + 5]
    again = rig.region(0, 5)
    again.cold = True
    rig.sender.send([again])
    rig.transport.pump()
    assert rig.warming, "another slice is asked about anew"


def test_a_file_that_can_not_be_read_aborts_the_connection(rig: Rig) -> None:
    region = rig.region(10, 1000)
    region.cold = True
    rig.sender.send([region])
    rig.transport.pump()
    rig.warming.pop()[3].errback(OSError("disk on fire"))
    assert rig.tcp._aborting
    assert not rig.transport.turns.writers


def test_a_short_file_aborts_the_connection(rig: Rig) -> None:
    rig.sender.send([rig.region(3 * MAX_CHUNK - 10, 50), b"never"])
    assert rig.transport.pump() == rig.content[-10:]
    assert rig.tcp._aborting


def test_congestion_ends_when_the_peer_reads(rig: Rig) -> None:
    rig.sender.send([bytes(2 * MAX_UNSENT)])
    assert rig.sender.congested
    drains = rig.drains
    assert len(rig.transport.pump()) == 2 * MAX_UNSENT
    assert not rig.sender.congested
    assert rig.drains > drains


def test_many_slices_queued_congest(rig: Rig) -> None:
    rig.sender.send([rig.region(0, 3 * MAX_CHUNK)])
    assert not rig.sender.congested
    for _ in range(sender_module.MAX_QUEUED_PARTS + 2):
        rig.sender.send([rig.region(0, 1)])
    assert rig.sender.congested


def test_a_lost_connection_drops_what_is_queued(rig: Rig) -> None:
    rig.sender.send([rig.region(0, 3 * MAX_CHUNK), b"tail"])
    rig.transport.received()
    rig.sender.stopProducing()
    rig.sender.resumeProducing()
    assert rig.transport.received() == b""


def test_close_lets_written_bytes_leave(rig: Rig) -> None:
    rig.sender.send([b"last words"])
    rig.sender.close()
    rig.transport.turns.turn()
    assert rig.transport.received() == b"last words"
