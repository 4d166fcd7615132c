"""What a TLS connection is given to send arrives, whole and in order, however little the socket takes at a time."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.tls import TlsPair


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 200_000)), min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=1),
)
def test_whatever_the_socket_takes_the_client_gets_all_in_order(
    writes: list[tuple[bool, int]], reads: list[bool]
) -> None:
    """writes: by `send_now` or by `write`, and how much. reads: whether the client reads after each."""
    pair = TlsPair().handshake()
    data, got = bytearray(), bytearray()
    for (now, size), read in zip(writes, itertools.cycle(reads)):
        part = bytes([len(data) % 251]) * size
        data += part
        if now:
            left = pair.tls.send_now(memoryview(part))
            assert not left or not pair.tcp.dataBuffer
        else:
            pair.tls.write(part)
        if read:
            got += pair.received()
    got += pair.pump()
    assert got == data
    pair.close()


def test_what_is_sent_after_the_end_or_before_the_handshake() -> None:
    pair = TlsPair()
    assert not pair.tls.send_now(b"early")
    pair.handshake()
    assert pair.pump() == b"early"
    pair.tls.loseConnection()
    pair.tls.send_now(b"late")
    assert pair.pump() == b""
    pair.close()
