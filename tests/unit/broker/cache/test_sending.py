"""Slices of a log with a block cache, sent over a connection: from blocks, from the file, or from both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol

from pylogd.broker.cache.cold_reads import SMALL_BYTES, ReadBuffers
from pylogd.broker.cache.ranges import BlockCache, BlockRange, BlockSlice
from pylogd.broker.log.files import RealFileSystem, SegmentFile
from pylogd.broker.net.page_cache import read_ahead
from pylogd.broker.net.sender import CopyingSender, Sender
from tests.fakes.tls import TlsPair
from tests.fakes.transport import ManualReactor, PairTransport

BLOCK = 1 << 14
BLOCKS = 32
CHUNK = 1 << 18
SIZE = 3 * SMALL_BYTES + 777


class Rig:
    """A file that a range may hold, and a connection. `waiting`: the slices that are to be read in a thread."""

    transport: PairTransport | TlsPair
    sender: Sender

    def __init__(self, path: Path, tls: bool) -> None:
        self.content = os.urandom(SIZE)
        path.write_bytes(self.content)
        self.file = SegmentFile(RealFileSystem(), str(path))
        self.cache = BlockCache(BLOCKS, block_bytes=BLOCK)
        self.held = self.cache.new_range()
        self.waiting: list[tuple[Deferred[None], Any, int, int]] = []
        self.drains = 0
        if tls:
            self.transport = TlsPair().handshake()
            self.sender = CopyingSender(self.transport.tls, self.warm, self, max_chunk=CHUNK, max_unsent=1 << 20)
            self.tcp = self.transport.tcp
        else:
            self.tcp = self.transport = PairTransport(Protocol(), ManualReactor())
            self.sender = Sender(self.transport, self.warm, self, max_chunk=CHUNK, max_unsent=1 << 20)

    def warm(self, source: Any, position: int, length: int) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        self.waiting.append((done, source, position, length))
        return done

    def read_one(self) -> None:
        """Do what a thread is asked for."""
        done, source, position, length = self.waiting.pop()
        read_ahead(source, position, length)
        done.callback(None)

    def drained(self) -> None:
        self.drains += 1

    def hold(self, position: int) -> None:
        """Have the range hold the file from here on."""
        data = self.content[position:]
        self.held.wrote(self.file, position, [data], len(data), True)

    def evict(self) -> None:
        """Take all blocks for another range."""
        other: BlockRange = self.cache.new_range()
        other.wrote(self.file, 0, [bytes(BLOCKS * BLOCK)], BLOCKS * BLOCK, True)

    def slice(self, position: int, length: int) -> BlockSlice:
        return self.held.slice(self.file, position, length, sealed=True)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(os, "sendfile", None)
    rig = Rig(tmp_path / "file", request.param)
    yield rig
    rig.transport.socket.close()
    rig.transport.peer.close()


def test_what_is_held_is_sent_from_blocks_and_the_file_is_not_read(rig: Rig) -> None:
    rig.hold(0)
    rig.sender.send([b"head", rig.slice(5, SIZE - 5), b"middle", rig.slice(7, 100), b"tail"])
    got = rig.transport.pump()
    assert got == b"head" + rig.content[5:] + b"middle" + rig.content[7:107] + b"tail"
    assert not rig.waiting
    counters = rig.cache.counters
    assert (counters.hits, counters.misses, counters.hit_bytes, counters.miss_bytes) == (2, 0, SIZE - 5 + 100, 0)
    assert rig.sender.idle


def test_what_is_not_held_is_read_in_a_thread_a_chunk_at_a_time(rig: Rig) -> None:
    rig.cache.read_buffers = ReadBuffers(large_buffers=0)
    rig.sender.send([b"head", rig.slice(0, SIZE), b"tail"])
    got = rig.transport.pump()
    assert got == b"head"
    for _ in range(4):
        rig.read_one()
        got += rig.transport.pump()
    assert got == b"head" + rig.content + b"tail"
    assert not rig.waiting
    counters = rig.cache.counters
    assert (counters.hits, counters.misses, counters.hit_bytes, counters.miss_bytes) == (0, 1, 0, SIZE)


def test_only_what_is_in_front_of_the_blocks_is_read(rig: Rig) -> None:
    rig.hold(1000)
    rig.sender.send([rig.slice(0, SIZE)])
    assert rig.transport.pump() == b""
    rig.read_one()
    assert rig.transport.pump() == rig.content
    assert rig.cache.counters.miss_bytes == 1000
    assert rig.cache.counters.hit_bytes == SIZE - 1000


def test_a_client_that_does_not_read_holds_no_block_and_gets_the_rest_from_the_file(rig: Rig) -> None:
    rig.hold(0)
    rig.sender.send([rig.slice(0, SIZE)])
    got = rig.transport.received()
    assert 0 < len(got) < SIZE
    rig.evict()
    got += rig.transport.pump()
    while rig.waiting:
        rig.read_one()
        got += rig.transport.pump()
    assert got == rig.content


def test_a_slice_of_a_dropped_range_is_read_from_the_file(rig: Rig) -> None:
    rig.hold(0)
    records = rig.slice(0, 500)
    assert records.is_hit
    rig.held.drop()
    assert not records.is_hit
    rig.sender.send([records])
    rig.read_one()
    assert rig.transport.pump() == rig.content[:500]


def test_a_file_that_is_shorter_aborts_the_connection(rig: Rig) -> None:
    rig.sender.send([rig.slice(SIZE - 10, 50), b"never"])
    rig.read_one()
    got = rig.transport.pump()
    rig.read_one()
    assert got + rig.transport.pump() == rig.content[-10:]
    assert rig.tcp._aborting


def test_a_lost_connection_drops_what_was_loaded(rig: Rig) -> None:
    rig.sender.send([rig.slice(0, SIZE)])
    rig.sender.stopProducing()
    rig.read_one()
    assert rig.transport.pump() == b""
    assert not rig.waiting
