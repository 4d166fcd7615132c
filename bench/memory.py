"""Prepare the machine's memory before a round that writes.

On a virtual machine that returns free memory to its host, the first write to a page costs as much as fifteen later
ones (measured: 2.85 ms instead of 0.19 per MB of `write`). A broker that writes 300 MB a second would need nearly a
core for that alone, and a round would measure the state of the memory instead of the broker. So each round gets warm
pages, as on a machine that keeps its memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

_BLOCK = bytes(999_807)  # the size of a log's writes, so that freed pages fit the next ones
_MOST = 900 << 20  # larger pieces are returned to the host at once
_SPARE = 200 << 20  # for sockets, clients and indexes


def warm_pages(folder: Path, size: int) -> None:
    """Leave the kernel warm pages for `size` bytes: write a file of that size next to the logs and remove it.


    For about two seconds, the kernel gives these pages to the next writer. Mapped memory, or memory read from a sparse
    file, does not work: it is freed in large blocks, which are returned to the host first.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as ballast:
        for _ in range(min(size + _SPARE, _MOST) // len(_BLOCK)):
            ballast.write(_BLOCK)
