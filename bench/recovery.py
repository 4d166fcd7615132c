"""How fast a log is scanned after a crash: bytes of segments per second of one core, CRC checks included.

    python -m bench.recovery --megabytes 512 --batch 16384

Writes a log, removes the checkpoints as if a crash came before the first one, and times its opening in one thread.
The files are in the page cache, so the code is measured and not the disk. Writes bench/recovery.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path

from pylogd.log.config import LogConfig
from pylogd.log.manager import LogManager
from pylogd.wire.records import encode_batch

_SEGMENT_BYTES = 128 << 20
_RECORD_BYTES = 1000
_BATCHES = (1 << 10, 1 << 14, 1 << 17)
_RESULT = Path(__file__).with_name("recovery.json")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _manager(folder: str) -> LogManager:
    return LogManager(
        [folder], config=LogConfig(segment_bytes=_SEGMENT_BYTES), now_ms=_now_ms, node_id=1, recovery_threads=1
    )


def write(folder: str, size: int, batch_bytes: int) -> int:
    """Write a log of about `size` bytes, as a crash leaves it. Return its end offset."""
    count = max(batch_bytes // _RECORD_BYTES, 1)
    data = encode_batch([(None, os.urandom(_RECORD_BYTES - 20), _now_ms(), ()) for _ in range(count)])
    manager = _manager(folder)
    manager.load()
    log = manager.create("bench", 0, bytes(16))
    while log.size < size:
        log.append(data, leader_epoch=0)
    end = log.log_end_offset
    manager.close(clean=False)
    for path in Path(folder).rglob("*"):
        if path.name.endswith(("checkpoint", "index")):
            path.unlink()
    return end


def recover(folder: str, end: int) -> tuple[float, float]:
    """Open the log. Return the seconds it takes, by the clock and of the processor."""
    manager = _manager(folder)
    begun, worked = time.perf_counter(), time.process_time()
    manager.load()
    spent = time.perf_counter() - begun, time.process_time() - worked
    assert manager.logs["bench", 0].log_end_offset == end
    manager.close()
    return spent


def measure(size: int, batch_bytes: int) -> dict[str, float]:
    """Run once in a directory of its own."""
    folder = tempfile.mkdtemp(prefix="pylogd-recovery-", dir=os.environ.get("TMPDIR"))
    try:
        end = write(folder, size, batch_bytes)
        total = sum(path.stat().st_size for path in Path(folder).rglob("*.log"))
        seconds, worked = recover(folder, end)
    finally:
        shutil.rmtree(folder)
    return {
        "batch_bytes": batch_bytes,
        "bytes": total,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(worked, 3),
        "megabytes_per_second": round(total / seconds / 1e6),
        "megabytes_per_cpu_second": round(total / worked / 1e6),
    }


def main() -> None:
    """Run as the command line says, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--batch", type=int, action="append", help="bytes per batch; repeatable")
    arguments = parser.parse_args()
    runs = [measure(arguments.megabytes << 20, size) for size in arguments.batch or _BATCHES]
    for run in runs:
        print(
            f"batches of {run['batch_bytes']:>6} bytes: {run['megabytes_per_second']:>5} MB/s, "
            f"{run['megabytes_per_cpu_second']:>5} MB for a second of one core"
        )
    about = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
    _RESULT.write_text(json.dumps({"about": about, "runs": runs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
