"""Records are decrypted in a row, by a compiled loop, by OpenSSL's functions or, without them, by pyOpenSSL's."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from OpenSSL import SSL

from pylogd.net import tls_records
from pylogd.net.tls_records import decrypt
from tests.fakes.tls import client_context, make_context, options


@pytest.fixture(params=["compiled", "OpenSSL's functions", "pyOpenSSL"], autouse=True)
def functions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled":
        if tls_records._read_records is None:
            pytest.skip("it is not compiled")
    else:
        monkeypatch.setattr(tls_records, "_read_records", None)
    if request.param == "pyOpenSSL":
        monkeypatch.setattr(tls_records, "_read", None)


class Pair:
    """A broker's end without a transport, and a client."""

    def __init__(self) -> None:
        self.broker = SSL.Connection(make_context(options()), None)
        self.broker.set_accept_state()
        incoming, self._sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client_context().wrap_bio(incoming, self._sent, server_hostname="localhost")
        for _ in range(3):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            with contextlib.suppress(SSL.WantReadError):
                self.give()
                self.broker.do_handshake()
            with contextlib.suppress(SSL.WantReadError):
                incoming.write(self.broker.bio_read(1 << 16))

    def give(self, count: int = -1) -> None:
        """Give the broker's OpenSSL so many of the bytes that the client has sent, by default all."""
        data = self._sent.read(count)
        if data:
            self.broker.bio_write(data)

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
