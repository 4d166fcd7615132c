"""Prepare the machine's memory before a round that writes.

Where a virtual machine gives free memory back to its host, the first write to a page costs what fifteen later ones
do: 2.85 ms for a MB of `write`, else 0.19 (measured where this was written). A broker that writes 300 MB a second would
need nearly a core for that alone, and a round would tell which pages it found and not which broker it was. So each
round finds warm ones, as on a machine that keeps its memory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

_BLOCK = bytes(999_807)  # as a log is written, so that the pages come free in pieces that fit what it writes next
_MOST = 900 << 20  # more is given back to the host at once
_SPARE = 200 << 20  # for what else is written: sockets, clients, indexes


def warm_pages(folder: Path, size: int) -> None:
    """Leave the kernel warm pages for `size` bytes: write a file of that size next to the logs and remove it.

    They are the next that a writer is given, for about two seconds. Memory that was mapped, or read from a file without
    content, does not come back as such: it is freed in large blocks, which the host gets first.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as ballast:
        for _ in range(min(size + _SPARE, _MOST) // len(_BLOCK)):
            ballast.write(_BLOCK)
