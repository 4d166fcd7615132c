"""The compiled loops over records of TLS (`link/_tls_records.c`) against those in Python, with an odd OpenSSL.

Strategy: the functions of OpenSSL, whose addresses the compiled ones are given, are Python's here: `_Stream` encrypts
nothing, returns few bytes or many at a time, and fails where the input says so. A socket brings the bytes in pieces.
`agree_on_receiving` asserts that as many of the same bytes are received as in Python; `agree_on_sending_records`, that
what leaves, and what is left over, is the beginning of what was given.
"""

from __future__ import annotations

import ctypes
import random
import socket
from functools import partial
from typing import Any
from unittest.mock import patch

from OpenSSL import SSL

from pylogd.link import tls_records

_WANT_READ = 2  # of OpenSSL's interface, like the next
_FAILED = 1
_RECORD_BYTES = 1 << 14
_MEMORY_BYTES = 1 << 17
_function = partial(ctypes.CFUNCTYPE, ctypes.c_int, ctypes.c_void_p)
_WITH_BYTES = _function(ctypes.c_void_p, ctypes.c_int)
_GET_ERROR = _function(ctypes.c_int)


class _Stream:
    """What stands for a connection of OpenSSL: bytes come out as they went in, at most so many in a call.

    fails_after: how many bytes it gives before it fails; takes: how many it takes in a call.
    """

    def __init__(self, record: int, fails_after: int, takes: int) -> None:
        self._record, self._left, self._takes = record, fails_after, takes
        self.inside = bytearray()

    def take(self, most: int) -> bytes | None:
        """Return the next bytes; None if there are none, or if it has failed."""
        data = bytes(self.inside[: min(most, self._record, self._left)])
        self._left -= len(data)
        del self.inside[: len(data)]
        return data or None

    def give(self, data: bytes) -> int:
        """Take bytes; return how many."""
        self.inside += data[: self._takes]
        return min(len(data), self._takes)

    @property
    def failed(self) -> bool:
        return not self._left

    # As pyOpenSSL's connections

    def recv_into(self, buffer: memoryview) -> int:
        data = self.take(len(buffer))
        if data is None:
            raise SSL.Error if self.failed else SSL.WantReadError
        buffer[: len(data)] = data
        return len(data)

    def bio_write(self, data: memoryview) -> int:
        return self.give(bytes(data))

    # As OpenSSL's functions

    def read(self, _: int, buffer: int, size: int) -> int:
        data = self.take(size)
        if data is None:
            return -1
        ctypes.memmove(buffer, data, len(data))
        return len(data)

    def write(self, _: int, data: int, size: int) -> int:
        return self.give(ctypes.string_at(data, size)) or -1

    def error(self, _: int, result: int) -> int:
        return _FAILED if self.failed else _WANT_READ


def _addresses(*functions: Any) -> tuple[int, ...]:
    return tuple(ctypes.cast(one, ctypes.c_void_p).value or 0 for one in functions)


def agree_on_receiving(number: int, module: Any) -> bool:
    """Assert that `module` receives what Python does for input `number`; return whether it was all that was wanted."""
    chance = random.Random(number)
    sent = [chance.randbytes(chance.choice((0, 1, 5, 3000, 40_000))) for _ in range(chance.randint(1, 4))]
    record, fails_after = chance.choice((90, 700, _RECORD_BYTES)), chance.choice((1 << 30, 1 << 30, 1, 5000))
    most, limit = chance.choice((1, 10, 5000, 100_000)), chance.choice((0, 1, 5000, 1 << 30))
    found = []
    for compiled in (True, False):
        stream, memory = _Stream(record, fails_after, 1 << 30), bytearray(most)
        functions = _WITH_BYTES(stream.read), _GET_ERROR(stream.error), _WITH_BYTES(stream.write)
        ours, peer = socket.socketpair()
        rounds = []
        with ours, peer:
            ours.setblocking(False)
            for piece in sent:
                peer.sendall(piece)
                if compiled:
                    received = bytearray(_MEMORY_BYTES)  # its own, so that a sanitizer sees its end
                    got, size, taken = module.receive_records(
                        _addresses(*functions), 1, 1, ours.fileno(), memory, most, received, limit
                    )
                    assert (got == most) or size <= 0, f"input {number}"
                else:
                    connection: Any = stream
                    with patch.multiple(tls_records, _read=None, _read_records=None):
                        got, _, taken = tls_records._receive(connection, ours, memoryview(memory), most, limit)
                rounds.append((bytes(memory[:got]), taken))
        found.append(rounds)
    assert found[0] == found[1], f"input {number}: not the bytes that Python receives"
    stream = _Stream(record, fails_after, 1 << 30)
    stream.inside += b"".join(sent)
    small = bytearray(chance.choice((most, 0, 1)))
    got, _ = module.read_records(_addresses(_WITH_BYTES(stream.read))[0], 1, small, most)
    assert bytes(small[:got]) == b"".join(sent)[:got], f"input {number}"
    assert got == min(len(small), most, len(b"".join(sent)), fails_after), f"input {number}"
    return len(found[0][0][0]) == most


def agree_on_sending_records(number: int, module: Any) -> bool:
    """Assert that `module` sends the beginning of what it is given; return whether it was all."""
    chance = random.Random(number)
    data = chance.randbytes(chance.choice((0, 1, 5000, 70_000, 300_000)))
    stream = _Stream(1 << 30, 1 << 30, chance.choice((1 << 30, _RECORD_BYTES, 0)))
    functions = _WITH_BYTES(stream.write), _WITH_BYTES(stream.read)
    ours, peer = socket.socketpair()
    with ours, peer:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, chance.choice((1, 1 << 20)))
        if chance.random() < 0.1:
            peer.shutdown(socket.SHUT_RD)
        memory = bytearray(chance.choice((_MEMORY_BYTES, 1000, 1)))
        target = chance.choice((ours.fileno(), ours.fileno(), ours.fileno(), -1))
        written, rest = module.send_records(_addresses(*functions), 1, 1, target, data, memory)
        ours.close()
        got = b"".join(iter(partial(peer.recv, 1 << 20), b""))
    assert got + rest + bytes(stream.inside) == data[:written], f"input {number}: {written} bytes were written"
    return bool(written == len(data))
