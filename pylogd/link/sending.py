"""Write to a socket as much as it accepts at once, before the transport gets the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from twisted.internet import tcp

#: The most buffers that one `sendmsg` takes on Linux (IOV_MAX).
_MOST_PARTS: Final = 1024
#: Fewer bytes are left to the transport, which joins them with later ones of the same turn.
_LEAST_BYTES: Final = 1 << 14


def send_now(transport: Any, parts: Sequence[Any], least: int = _LEAST_BYTES) -> Sequence[Any]:
    """Write as much as a connection's socket accepts at once. Return the rest, for `transport.writeSequence`.

    Twisted copies written bytes twice, and sends at most 128 KB per call. Nothing is sent here if the transport holds
    earlier bytes, encrypts, or is being closed, or if there are fewer than `least` bytes. Errors are left for the
    transport.
    """
    if not isinstance(transport, tcp.Connection) or transport.TLS or transport.disconnecting or not transport.connected:
        return parts
    if transport._tempDataBuffer or len(transport.dataBuffer) > transport.offset:
        return parts
    if sum(map(len, parts)) < least:
        return parts
    try:
        sent = transport.socket.sendmsg(parts[:_MOST_PARTS])
    except OSError:  # the socket may be full, too
        return parts
    for at, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[at + 1 :]]
        sent -= len(part)
    return ()
