"""Watch when the main thread of a process waits for the disk: by looking at its state and its kernel stack, often.

On Linux a thread that waits for a disk, or for something that waits for it (a page's lock, the journal, free memory),
is in state D. Other load of the machine does not count: a thread that waits for a processor is in state R.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from typing import Final

from bench.kuaishou.lab import ControlGroup

INTERVAL: Final = 0.002
#: What a kernel stack has in it, and what that means; the first that matches counts.
_CAUSES: Final = (
    ("jbd2", "the journal"), ("try_to_free", "memory"), ("balance_dirty_pages", "too many dirty pages"),
    ("__filemap_get_folio", "a page's lock"), ("filemap_fault", "page faults"),
    ("splice_read", "sendfile"), ("vfs_read", "reads"), ("do_pread", "reads"), ("generic_perform_write", "writes"),
)  # fmt: skip


class Waits:
    """Samples the oldest process of a group, inside a `with` block. `found`: begin, seconds and cause of each wait."""

    def __init__(self, group: ControlGroup) -> None:
        pid = min(map(int, (group.folders[0] / "cgroup.procs").read_text().split()))
        self.found: list[tuple[float, float, str]] = []
        self._state = os.open(f"/proc/{pid}/task/{pid}/stat", os.O_RDONLY)
        self._stack = os.open(f"/proc/{pid}/task/{pid}/stack", os.O_RDONLY)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Waits:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        os.close(self._state)
        os.close(self._stack)

    def between(self, begin: float, end: float) -> list[tuple[float, float, str]]:
        """Return the waits that began between two times of CLOCK_MONOTONIC."""
        return [one for one in self.found if begin <= one[0] < end]

    def _watch(self) -> None:
        begun = last = 0.0
        seen: Counter[str] = Counter()
        while not self._done.wait(INTERVAL):
            waits = os.pread(self._state, 400, 0).rpartition(b")")[2].split()[0] == b"D"
            now = time.monotonic()
            if waits:
                begun = begun or now
                last = now
                seen[cause(os.pread(self._stack, 4096, 0).decode())] += 1
            elif begun:
                self.found.append((begun, last - begun + INTERVAL, seen.most_common(1)[0][0]))
                begun, seen = 0.0, Counter()


def cause(stack: str) -> str:
    """Return what a thread with this kernel stack waits for."""
    if "buffered_write_iter" in stack.partition("\n")[0]:  # the wait for a lock is not shown itself
        return "the file's lock"
    return next((text for word, text in _CAUSES if word in stack), "the disk")
