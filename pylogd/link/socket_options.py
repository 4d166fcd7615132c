"""Set the options of connections' sockets, and check that file descriptors are left for more connections."""

from __future__ import annotations

import contextlib
import resource
import socket
from array import array
from fcntl import ioctl
from termios import FIONREAD
from typing import Any

_MOST_MS = (1 << 31) - 1
_DESCRIPTORS_FOR_FILES = 256  # or a quarter of the process's limit if that is less


def tune(transport: Any, max_idle_ms: int, send_buffer_bytes: int, receive_buffer_bytes: int) -> None:
    """Set the options of a connection's socket. Buffers of 0 bytes or less keep the system's size."""
    handle = _socket_of(transport)
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


def wait_for_bytes(transport: Any, size: int) -> None:
    """Report a connection as readable only when it has `size` bytes, has ended, or its buffer is full."""
    with contextlib.suppress(OSError):  # the connection may just have ended
        _socket_of(transport).setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


def unread_bytes(transport: Any) -> int:
    """Return how many received bytes a connection's socket holds unread; 0 if the connection has ended."""
    count = array("i", [0])
    with contextlib.suppress(OSError, ValueError):
        ioctl(_socket_of(transport).fileno(), FIONREAD, count)
    return count[0]


def _socket_of(transport: Any) -> socket.socket:
    handle: Any = transport.getHandle()
    return handle if isinstance(handle, socket.socket) else transport.socket  # with TLS, the handle is OpenSSL's


def descriptors_left(transport: Any) -> bool:
    """Return whether enough file descriptors are left for files.

    A new connection gets the lowest free number, so its number tells how many are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit == resource.RLIM_INFINITY or transport.fileno() < limit - min(limit // 4, _DESCRIPTORS_FOR_FILES)
