"""What a long garbage collection leaves is not searched again for a while; freed memory is given back."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from pylogd.base.process.tuning import LongCollections


class Collector:
    """Stands for the module `gc`, with its clocks. calls: what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.used = self.now = 0.0
        self.callback = LongCollections(self, lambda: self.used, lambda: self.now)

    def freeze(self) -> None:
        self.calls.append("freeze")

    def unfreeze(self) -> None:
        self.calls.append("unfreeze")

    def collect(self, generation: int, seconds: float) -> list[str]:
        """Run a collection. Return what was called meanwhile."""
        self.calls = []
        self.callback("start", {"generation": generation})
        self.used += seconds
        self.callback("stop", {"generation": generation})
        return self.calls


def test_what_a_long_collection_leaves_is_frozen() -> None:
    collector = Collector()
    assert collector.collect(2, 0.001) == []
    assert collector.collect(2, 0.4) == ["freeze"]
    assert collector.collect(2, 0.001) == []
    assert collector.collect(1, 0.05) == [], "what is young may soon be garbage"
    assert collector.collect(2, 0.05) == ["freeze"]


def test_everything_is_searched_now_and_then() -> None:
    collector = Collector()
    collector.collect(2, 0.4)
    collector.now = 119.0
    assert collector.collect(2, 0.4) == ["freeze"]
    collector.now = 120.0
    assert collector.collect(1, 0.001) == [], "it would search the young only"
    assert collector.collect(2, 0.4) == ["unfreeze", "freeze"]
    collector.now = 239.0
    assert collector.collect(2, 0.001) == []
    collector.now = 240.0
    assert collector.collect(2, 0.001) == ["unfreeze"]
    collector.now = 5000.0
    assert collector.collect(2, 0.001) == [], "nothing is frozen"


#: Twelve blocks grow side by side to 8 MB, twice, and end in another order. Prints what is still resident of them, MB.
GROWING = """
import random, sys
from pathlib import Path
from pylogd.base.process.tuning import tune_allocator
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024
if sys.argv[1] == "tuned":
    assert tune_allocator()
bytearray(16 << 20)  # which glibc takes as a reason to keep such blocks
before = resident()
kept = []
for _ in range(2):
    blocks = [bytearray(1 << 19) for _ in range(12)]
    for _ in range(15):
        for block in blocks:
            block += bytes(1 << 19)
    kept.append(bytes(1000_000))
    while blocks:
        del blocks[len(blocks) // 2]
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_large_blocks_are_given_back_when_they_are_freed() -> None:
    left = {
        how: int(
            subprocess.run([sys.executable, "-c", GROWING, how], capture_output=True, text=True, check=True).stdout
        )
        for how in ("tuned", "default")
    }
    assert 4 * left["tuned"] < left["default"], "9 and 96 where it was written"
