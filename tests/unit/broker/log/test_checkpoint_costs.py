"""A checkpoint of many partitions, most of which are idle, does not start the garbage collector."""

from __future__ import annotations

import gc

from pylogd.broker.log import checkpoints
from tests.fakes.filesystem import MemoryFileSystem


def test_a_checkpoint_of_many_partitions_starts_no_garbage_collection() -> None:
    fs = MemoryFileSystem()
    fs.mkdir("/data")
    offsets = {(f"topic-{number}", 0): number for number in range(30_000)}
    collections: list[str] = []

    def note(phase: str, _info: dict[str, int]) -> None:
        collections.append(phase)

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(10_000, *before[1:])
    gc.callbacks.append(note)
    try:
        checkpoints.write_offsets(fs, "/data", checkpoints.HIGH_WATERMARKS, offsets)
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
    assert not collections
    assert checkpoints.read_offsets(fs, "/data", checkpoints.HIGH_WATERMARKS) == offsets
