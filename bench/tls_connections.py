"""SASL_SSL connections, opened one after the other: ApiVersions, SCRAM-SHA-512, and the connection is closed.

Only the broker's processor time is of interest: the client computes PBKDF2 for each connection, the broker does not.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any

from bench.peers.secured import PASSWORD, USER
from pylogd.credentials.scram import SCRAM_SHA_512, ScramClient
from pylogd.wire.authentication import Authentication
from pylogd.wire.negotiation import Negotiation
from pylogd.wire.session import ClientSession

_SECONDS = 30.0
_MAX_REPLY = 1 << 20


class Opener:
    """Opens connections. session: what the last full handshake left, for `resume`."""

    def __init__(self, host: str, port: int, authority: str) -> None:
        """authority: path of the certificate to trust."""
        self._address = host, port
        self._context = ssl.create_default_context(cafile=authority)
        self.session: ssl.SSLSession | None = None
        self.cipher = ""

    def open(self, resume: bool) -> bool:
        """Open a connection, authenticate and close it. Return whether the broker resumed the TLS session."""
        with (
            socket.create_connection(self._address, _SECONDS) as plain,
            self._context.wrap_socket(
                plain, server_hostname=self._address[0], session=self.session if resume else None
            ) as tls,
        ):
            tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _authenticate(tls)
            if not resume:
                self.session = tls.session
            chosen = tls.cipher()
            self.cipher = chosen[0] if chosen else ""
            return bool(tls.session_reused)


def _authenticate(connection: ssl.SSLSocket) -> None:
    session = ClientSession(_MAX_REPLY, "bench")
    negotiation = Negotiation("bench")
    step: tuple[Any, int] | None = negotiation.question()
    while step is not None:
        step = negotiation.answer(_ask(connection, session, *step))
    authentication = Authentication("bench", ScramClient(SCRAM_SHA_512, USER, PASSWORD), negotiation)
    step = authentication.question()
    while step is not None:
        message = authentication.answer(_ask(connection, session, *step))()
        step = authentication.follow(message, None)


def _ask(connection: ssl.SSLSocket, session: ClientSession, request: Any, version: int) -> Any:
    parts: list[Any] = list(session.encode_request(request, version))
    connection.sendall(b"".join(parts))
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    session.receive_data(struct.pack(">i", length) + _exactly(connection, length))
    event = session.next_event()
    assert event is not None
    return event.response


def _exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        chunk = connection.recv(size - len(found))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        found += chunk
    return found
