"""The cost of the broker's check of a producer's records: `batch_is_valid`, which walks over uncompressed records.

    python -m bench.record_walk [--rounds 15] [--sizes 10,100,1000] [--against FILE]

Measured is the processor time for a million records, in batches of at most 1 MB and of 16 KB (clients' defaults). As in
the broker, the CRC is computed first, which brings the batch into the processor's caches; its time does not count.
Before that no batch is in a cache, since there are enough others between. "mixed" are records of 0 to twice as many
bytes. `--against` names another build's `_speedups` extension module: both then take turns, and the ratio of each pair
is printed.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pylogd.log.config import NO_LIMIT
from pylogd.wire import _speedups
from pylogd.wire.records import CRC_START, crc32c, encode_batch

_BATCH_BYTES = {"1 MB": 1_048_000, "16 KB": 16_384}
_WORKING_SET = 96 << 20  # bytes, more than the processor's caches
_OVERHEAD = 12  # about so many bytes of a record beyond its value
_MILLION = 1_000_000
_NOW_MS = 1_700_000_000_000

Check = Callable[[bytes, int], bool]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", default="10,100,1000", help="bytes of the values, with commas")
    parser.add_argument("--against", type=Path, help="another build's _speedups extension module")
    said = parser.parse_args(arguments)
    other = None if said.against is None else _load(said.against)
    print("milliseconds of processor time for a million records: median (least to most)")
    for size in map(int, said.sizes.split(",")):
        for name, batch_bytes in _BATCH_BYTES.items():
            for mixed in (False, True):
                batches, count = _batches(size, batch_bytes, mixed)
                found: list[tuple[float, ...]] = []
                for number in range(said.rounds):
                    checks = [_speedups.batch_is_valid, *([other] if other else [])]
                    order = checks if number % 2 else checks[::-1]
                    times = {check: _seconds(check, batches) / count * _MILLION * 1000 for check in order}
                    found.append(tuple(times[check] for check in checks))
                kind = f"{size} bytes{', mixed' if mixed else ''}, batches of {name}"
                print(f"{kind:40}" + "".join(f"{_median(column):>24}" for column in zip(*found, strict=True))
                      + (f"   ratio {_median([ours / its for ours, its in found])}" if other else ""))  # fmt: skip


def _load(path: Path) -> Check:
    """Return `batch_is_valid` of another build."""
    loader = importlib.machinery.ExtensionFileLoader("_speedups", str(path.absolute()))
    spec = importlib.util.spec_from_file_location("_speedups", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    check: Check = module.batch_is_valid
    return check


def _batches(size: int, batch_bytes: int, mixed: bool) -> tuple[list[bytes], int]:
    """Return batches that take about the working set, and how many records they have."""
    each = max(1, batch_bytes // (size + _OVERHEAD))
    draw = random.Random(size)
    kinds = []
    for _ in range(16):
        sizes = [draw.randint(0, 2 * size) if mixed else size for _ in range(each)]
        kinds.append(encode_batch([(None, bytes(one), _NOW_MS + at // 10, ()) for at, one in enumerate(sizes)]))
    total = max(_WORKING_SET // len(kinds[0]), 1)
    return [bytes(bytearray(kinds[at % len(kinds)])) for at in range(total)], total * each


def _seconds(check: Check, batches: Sequence[bytes]) -> float:
    """Return the processor time that the checks take. Each is timed by itself, as the CRC comes in between."""
    spent = 0
    clock = time.thread_time_ns
    for batch in batches:
        crc32c(memoryview(batch)[CRC_START:])
        before = clock()
        begun = clock()  # subtracts the time of reading the clock
        is_valid = check(batch, -NO_LIMIT)
        spent += clock() - begun - (begun - before)
        assert is_valid
    return spent / 1e9


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
