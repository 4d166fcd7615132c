"""Send a request and see what comes of it: an answer, a closed connection, or nothing for a while."""

from __future__ import annotations

import socket
import struct
import time
from enum import Enum
from typing import NamedTuple

from pylogd.wire.schema import request_header_version
from tests.extreme.access import Access
from tests.extreme.messages import Extreme
from tests.rawclient import ConnectionClosed, RawClient, frame


class End(Enum):
    """How a request ended."""

    ANSWERED = "answered"
    REFUSED = "refused: its connection was closed"
    WAITING = "not answered in time: given up"


class Outcome(NamedTuple):
    """What came of a request. size: of the answer, in bytes. seconds: until its last byte."""

    end: End
    size: int
    seconds: float


class Attacker:
    """A client that sends extreme requests one after the other; it connects again where it has to."""

    def __init__(self, access: Access, client_id: bytes = b"extreme") -> None:
        self.access = access
        self._client_id = client_id
        self._client: RawClient | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask(self, request: Extreme, patience: float) -> Outcome:
        """Send a request, and wait for its answer for `patience` seconds."""
        begun = time.monotonic()
        if self._client is None:
            self._client = self.access.connect()
        client = self._client
        client.socket.settimeout(patience)
        try:
            client.send(frame(self._header(request) + request.body))
            if request.is_silent:
                return Outcome(End.ANSWERED, 0, time.monotonic() - begun)
            size = len(client.read_frame())
        except ConnectionClosed:
            self.close()
            return Outcome(End.REFUSED, 0, time.monotonic() - begun)
        except TimeoutError:
            self.close()
            return Outcome(End.WAITING, 0, time.monotonic() - begun)
        return Outcome(End.ANSWERED, size, time.monotonic() - begun)

    def _header(self, request: Extreme) -> bytes:
        key, version, name = request.api_key, request.version, self._client_id
        start = struct.pack(">hhih", key, version, 1, len(name)) + name
        return start + b"\0" if request_header_version(key, version) >= 2 else start


def connect_many(access: Access, count: int) -> list[socket.socket]:
    """Return so many connections, as far as the broker and this process's own limit let them be."""
    return [access.connect(30).socket for _ in range(count)]
