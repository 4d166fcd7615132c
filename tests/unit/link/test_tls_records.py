"""Records are decrypted in a row, by a compiled loop, by OpenSSL's functions or, without them, by pyOpenSSL's.

The compiled loops also read and write sockets; whatever pieces the bytes come and leave in, they stay the same.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from OpenSSL import SSL

from pylogd.credentials.certificates import PARTIAL_WRITE
from pylogd.link import tls_records
from pylogd.link.tls_records import decrypt, receive, send
from tests.fakes.tls import client_context, make_context, options


@pytest.fixture(params=["compiled", "OpenSSL's functions", "pyOpenSSL"], autouse=True)
def functions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled":
        if tls_records._read_records is None:
            pytest.skip("it is not compiled")
    else:
        for name in ("_read_records", "_receive_records", "_send_records"):
            monkeypatch.setattr(tls_records, name, None)
    if request.param == "pyOpenSSL":
        monkeypatch.setattr(tls_records, "_read", None)


class Pair:
    """A broker's end without a transport, and a client."""

    def __init__(self, parts: bool = False) -> None:
        """parts: the broker writes one record at a time, as OpenSSL does unless it is told not to."""
        context = make_context(options())
        if parts:
            context.set_mode(PARTIAL_WRITE)
        self.broker = SSL.Connection(context, None)
        self.broker.set_accept_state()
        self.incoming, self._sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client_context().wrap_bio(self.incoming, self._sent, server_hostname="localhost")
        for _ in range(3):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            with contextlib.suppress(SSL.WantReadError):
                self.give()
                self.broker.do_handshake()
            with contextlib.suppress(SSL.WantReadError):
                self.incoming.write(self.broker.bio_read(1 << 16))

    def give(self, count: int = -1) -> None:
        """Give the broker's OpenSSL so many of the bytes that the client has sent, by default all."""
        data = self._sent.read(count)
        if data:
            self.broker.bio_write(data)

    def encrypted(self) -> bytes:
        """Return what the client has sent."""
        return self._sent.read()

    def read(self, source: socket.socket) -> bytes:
        """Return what the client can read of what a socket has."""
        got = bytearray()
        with contextlib.suppress(BlockingIOError):
            while data := source.recv(1 << 20):
                self.incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            while data := self.client.read(1 << 20):
                got += data
        return bytes(got)

    def send(self, *sizes: int) -> bytes:
        """Send a record of each of these sizes, at most 16,384; return what is in them."""
        data = b"".join(bytes([number % 256]) * size for number, size in enumerate(sizes))
        at = 0
        for size in sizes:
            self.client.write(data[at : at + size])
            at += size
        return data


def test_many_records_fill_the_memory_behind_each_other() -> None:
    pair, memory = Pair(), bytearray(100_000)
    data = pair.send(*[4096, 10] * 10, 16384)
    pair.give()
    size, why = decrypt(pair.broker, memory, len(memory))
    assert (bytes(memory[:size]), type(why)) == (data, SSL.WantReadError)
    size, why = decrypt(pair.broker, memory, len(memory))
    assert (size, type(why)) == (0, SSL.WantReadError)


def test_no_more_than_was_asked_for() -> None:
    pair, memory = Pair(), bytearray(b"." * 9000)
    data = pair.send(5000, 5000)
    pair.give()
    assert decrypt(pair.broker, memoryview(memory)[1000:], 6000) == (6000, None)
    assert bytes(memory) == b"." * 1000 + data[:6000] + b"." * 2000
    size, why = decrypt(pair.broker, memory, 9000)
    assert (bytes(memory[:size]), type(why)) == (data[6000:], SSL.WantReadError)


def test_a_record_that_is_there_in_part() -> None:
    pair, memory = Pair(), bytearray(9000)
    data = pair.send(3000, 3000)
    pair.give(4000)
    assert decrypt(pair.broker, memory, 9000)[0] == 3000
    pair.give()
    assert decrypt(pair.broker, memory, 9000)[0] == 3000
    assert bytes(memory[:3000]) == data[3000:]


def test_the_closing_alert_ends_it_behind_the_data() -> None:
    pair, memory = Pair(), bytearray(9000)
    pair.send(700)
    with contextlib.suppress(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.give()
    size, why = decrypt(pair.broker, memory, 9000)
    assert (size, type(why)) == (700, SSL.ZeroReturnError)


def test_a_broken_record_is_told_of_and_disturbs_no_other_connection() -> None:
    pair, other, memory = Pair(), Pair(), bytearray(9000)
    pair.send(700)
    pair.give()
    pair.broker.bio_write(b"\x17\x03\x03\x00\x20" + bytes(32))
    size, why = decrypt(pair.broker, memory, 9000)
    assert size == 700
    assert isinstance(why, SSL.Error) and "bad record mac" in str(why)
    assert type(decrypt(other.broker, memory, 9000)[1]) is SSL.WantReadError


def test_an_end_keeps_no_memory() -> None:
    """The frames in the traceback of the error refer to the memory, and the caller's to the error."""
    pair = Pair()
    with contextlib.suppress(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.give()
    _, why = decrypt(pair.broker, bytearray(9000), 9000)
    assert isinstance(why, SSL.ZeroReturnError)
    assert why.__traceback__ is None


# -- with sockets

#: Sizes of records, and of the pieces in which the network brings what was encrypted.
RECORDS = st.lists(st.integers(1, 16_384), min_size=1, max_size=30)
PIECES = st.lists(st.integers(1, 150_000), min_size=1, max_size=5)
EXAMPLES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextlib.contextmanager
def socket_pair(buffer_bytes: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, peer = socket.socketpair()
    with ours, peer:
        for one in (ours, peer):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        yield ours, peer


@EXAMPLES
@given(RECORDS, PIECES, st.integers(1, 200_000), st.integers(1, 1 << 18))
def test_whatever_pieces_come_the_same_bytes_are_received(
    sizes: list[int], pieces: list[int], portion: int, limit: int
) -> None:
    pair, got = Pair(), bytearray()
    data = pair.send(*sizes)
    rest = memoryview(pair.encrypted())
    memory = bytearray(portion + 1)
    with socket_pair(1 << 18) as (ours, peer):
        for size in itertools.cycle(pieces):
            with contextlib.suppress(BlockingIOError):
                rest = rest[peer.send(rest[:size]) :]
            while True:
                count, why, taken = receive(pair.broker, ours, memoryview(memory)[:portion], portion, limit)
                got += memory[:count]
                assert taken < limit + (1 << 17)
                if not count:
                    break
            assert isinstance(why, SSL.WantReadError)
            if not rest and len(got) == len(data):
                break
    assert bytes(got) == data and memory[portion] == 0


def test_from_a_limit_on_the_socket_is_not_read() -> None:
    pair, memory = Pair(), bytearray(100_000)
    data = pair.send(1000, 2000)
    with socket_pair(1 << 18) as (ours, peer):
        peer.send(pair.encrypted())
        assert receive(pair.broker, ours, memoryview(memory), 100_000, 0)[::2] == (0, 0)
        count, why, taken = receive(pair.broker, ours, memoryview(memory), 100_000, 1)
        assert (bytes(memory[:count]), type(why), taken > 3000) == (data, SSL.WantReadError, True)


def test_a_record_behind_what_was_asked_for_is_kept() -> None:
    pair, memory = Pair(), bytearray(2500)
    data = pair.send(1000, 1000, 1000)
    with socket_pair(1 << 18) as (ours, peer):
        peer.send(pair.encrypted())
        assert receive(pair.broker, ours, memoryview(memory), 2500, 1 << 18)[:2] == (2500, None)
        assert bytes(memory) == data[:2500]
        count, why, _ = receive(pair.broker, ours, memoryview(memory), 2500, 1 << 18)
        assert (bytes(memory[:count]), type(why)) == (data[2500:], SSL.WantReadError)


@pytest.mark.parametrize("end", ["closed socket", "end of the stream", "closing alert", "garbage"])
def test_the_end_of_a_connection_that_is_received(end: str) -> None:
    pair, memory = Pair(), bytearray(9000)
    data = pair.send(700)
    kinds = {"closing alert": SSL.ZeroReturnError, "garbage": SSL.Error}
    if end == "closing alert":
        with contextlib.suppress(ssl.SSLWantReadError):
            pair.client.unwrap()
    with socket_pair(1 << 18) as (ours, peer):
        peer.send(pair.encrypted() + (b"\x17\x03\x03\x00\x20" + bytes(32) if end == "garbage" else b""))
        if end == "end of the stream":
            peer.close()
        if end == "closed socket":
            ours.close()
        count, why, _ = receive(pair.broker, ours, memoryview(memory), 9000, 1 << 18)
    assert bytes(memory[:count]) == (b"" if end == "closed socket" else data)
    assert isinstance(why, kinds.get(end, SSL.WantReadError))


@EXAMPLES
@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=4), st.integers(1 << 12, 1 << 17), st.booleans())
def test_whatever_the_socket_takes_the_same_bytes_are_sent(sizes: list[int], buffer_bytes: int, parts: bool) -> None:
    pair, got = Pair(parts), bytearray()
    data = b"".join(bytes([number + 1]) * size for number, size in enumerate(sizes))
    left = memoryview(data)
    with socket_pair(buffer_bytes) as (ours, peer):
        while left:
            found = send(pair.broker, ours, left[: sizes[0]])
            if found is None:
                return  # it is not compiled, and nothing was done
            written, rest = found
            left = left[written:]
            assert written or rest
            while True:
                got += pair.read(peer)
                if not rest:
                    break
                rest = rest[ours.send(rest) :]
    assert got == data


def test_a_connection_that_cannot_send_takes_nothing() -> None:
    pair = Pair()
    pair.broker.shutdown()
    with socket_pair(1 << 18) as (ours, _):
        assert send(pair.broker, ours, b"late") in (None, (0, b""))
    unfinished = SSL.Connection(make_context(options()), None)
    unfinished.set_accept_state()
    with socket_pair(1 << 18) as (ours, _):
        assert send(unfinished, ours, b"early") in (None, (0, b""))


def test_a_socket_that_has_ended_takes_nothing() -> None:
    pair = Pair()
    with socket_pair(1 << 18) as (ours, peer):
        peer.close()
        found = send(pair.broker, ours, bytes(200_000))
    if found is not None:
        written, rest = found
        assert 0 < written < 200_000 and len(rest) > written
