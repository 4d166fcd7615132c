"""The speed of compacting a log on one thread, and the memory that it takes.

A log of keyed records is written to a directory, then compacted once; the result is compared with a dict. "MB/s" are
bytes of log before the compaction, divided by the time of both passes. Run from the checkout:

    python -m bench.compaction [--records 400000] [--keys 100000] [--value-bytes 1024] [--batch 16] [--codec none]
    python -m bench.compaction --records 10000000 --keys 4000000 --value-bytes 100 --batch 50
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path

from pylogd.log.compaction.cleaner import Cleaner, CleanerConfig
from pylogd.log.compaction.rewrite import read_columns
from pylogd.log.config import LogConfig
from pylogd.log.log import Log
from pylogd.log.manager import LogManager
from pylogd.wire.compression import CompressionType
from pylogd.wire.records import encode_batch, iter_batches

MB = 1_000_000


def main() -> None:
    """Fill, compact, check, report."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        config = LogConfig(segment_bytes=options.segment_bytes, cleanup_policy=frozenset({"compact"}))
        manager = LogManager([directory], config=config, now_ms=_now_ms, node_id=1)
        manager.load()
        log = manager.create("bench", 0, bytes(16))
        latest = _fill(log, options)
        log.seal()
        before, rss = log.size, _rss_mb()
        cleaner = Cleaner(manager, CleanerConfig(dedupe_buffer_bytes=options.dedupe_buffer_bytes), now_ms=_now_ms)
        runner = cleaner.new_runner()
        offset_map = runner.offset_map
        started, cpu = time.perf_counter(), time.process_time()
        rounds = 0
        cleaned = 0
        while (done := cleaner.clean_one(runner)) is not None:
            rounds += 1
            cleaned += done.bytes_read
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        runner.close()
        child = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        print(f"log          {before / MB:,.0f} MB, {options.records:,} records, {options.keys:,} keys")
        print(f"compacted    {log.size / MB:,.0f} MB left")
        print(f"time         {seconds:.2f} s, {cpu:.2f} s of processor here, {child:.2f} s in the child process")
        print(f"throughput   {cleaned / seconds / MB:,.0f} MB/s of log in {rounds} rounds")
        print(f"offset map   {offset_map.nbytes / MB:,.0f} MB for {offset_map.capacity:,} keys, 24 bytes each")
        print(
            f"peak memory  {_peak_mb():,.0f} MB, before the compaction {rss:,.0f} MB, of which a dict to compare with"
        )
        wrong = _compare(log, latest)
        print("check        " + ("equal to a dict" if not wrong else f"{wrong} KEYS DIFFER"))
        manager.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16, help="records per batch")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--segment-bytes", type=int, default=256 << 20)
    parser.add_argument("--dedupe-buffer-bytes", type=int, default=128 << 20)
    parser.add_argument("--directory", type=Path, default=None)
    return parser.parse_args()


def _fill(log: Log, options: argparse.Namespace) -> dict[bytes, int]:
    """Append the records. Return the last offset of each key."""
    codec = CompressionType.named(options.codec)
    chance = random.Random(1)
    noise = chance.randbytes(options.value_bytes)
    latest: dict[bytes, int] = {}
    offset = 0
    while offset < options.records:
        stamp = _now_ms()
        rows = []
        for _ in range(min(options.batch, options.records - offset)):
            key = b"key-%010d" % chance.randrange(options.keys)
            latest[key] = offset
            rows.append((key, noise, stamp, ()))
            offset += 1
        log.append(encode_batch(rows, compression=codec), leader_epoch=0)
    with log.lock:
        log.roll(log.log_end_offset, _now_ms())
    return latest


def _compare(log: Log, latest: dict[bytes, int]) -> int:
    """Return how many keys are not in the log exactly once, at their last offset."""
    left = dict(latest)
    wrong = 0
    offset = log.log_start_offset
    while (piece := log.read(offset, 8 << 20, allow_cold=True)) is not None:
        for header, batch in iter_batches(piece.read(), allow_partial=True):
            columns = read_columns(batch, header)
            for key, delta in zip(columns.keys, columns.offset_deltas, strict=True):
                wrong += key is None or left.pop(key, -1) != header.base_offset + delta
            offset = header.next_offset
    return wrong + len(left)


def _now_ms() -> int:
    return time.time_ns() // MB


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MB


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


if __name__ == "__main__":
    main()
