"""Choose free ports of this machine for several processes, before they listen."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

_HOST: Final = "127.0.0.1"
_RESERVED: Final[list[socket.socket]] = []  # a socket for each port that was given out


def free_ports(count: int) -> list[int]:
    """Return port numbers on which nothing listens, and that no other process gets here while this one lives.

    The ports are below the range for outgoing connections, of which a restarted broker would sometimes find its port
    taken. Raises OSError.
    """
    return [free_row(1) for _ in range(count)]


def free_row(count: int) -> int:
    """Return the first of `count` consecutive free port numbers (see `free_ports`). Raises OSError."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for first in random.sample(range(lowest // 2, lowest - count), lowest - lowest // 2 - count):
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probes.enter_context(socket.socket()).bind((_HOST, port))
                _reserve(port)
            return first
    raise OSError(f"there are no {count} free ports in a row below {lowest}")


def _reserve(port: int) -> None:
    """Keep a port from other processes that call `free_ports`. Raises OSError if another process has it.

    Names of abstract sockets are unique on a machine, and the kernel frees them when their process ends.
    """
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0pylogd-port-{port}")
    except OSError:
        mark.close()
        raise
    _RESERVED.append(mark)
