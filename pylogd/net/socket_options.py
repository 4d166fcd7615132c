"""The options of the sockets of connections, and whether there are descriptors for more of them."""

from __future__ import annotations

import resource
import socket
from typing import Any

_MOST_MS = (1 << 31) - 1
_DESCRIPTORS_FOR_FILES = 256  # or a quarter of what the process may have, if that is less


def tune(transport: Any, max_idle_ms: int, send_buffer_bytes: int, receive_buffer_bytes: int) -> None:
    """Set the options of a connection's socket. Buffers of 0 bytes or less are the system's."""
    handle: Any = transport.getHandle()
    if not isinstance(handle, socket.socket):  # that of TLS
        handle = transport.socket
    if handle.family in (socket.AF_INET, socket.AF_INET6):
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        if max_idle_ms > 0:  # only the kernel sees a peer that takes no bytes
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(max_idle_ms, _MOST_MS))
    for option, size in (
        (socket.SO_SNDBUF, send_buffer_bytes),
        (socket.SO_RCVBUF, receive_buffer_bytes),
    ):
        if size > 0:
            handle.setsockopt(socket.SOL_SOCKET, option, size)


def descriptors_left(transport: Any) -> bool:
    """Return whether enough descriptors are left for files. The kernel gives out the lowest free number."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit == resource.RLIM_INFINITY or transport.fileno() < limit - min(limit // 4, _DESCRIPTORS_FOR_FILES)
