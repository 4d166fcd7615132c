"""Many threads at the data directories at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pylogd.log.checkpoints import RECOVERY_POINTS, read_offsets
from pylogd.log.files import RealFileSystem
from pylogd.log.manager import LogManager
from tests.fakes.parts import NOW_MS, batch


def test_logs_are_truncated_side_by_side(tmp_path: Path) -> None:
    """A failover has many threads at it, and one checkpoint."""
    manager = LogManager([str(tmp_path)], now_ms=lambda: NOW_MS)
    manager.load()
    keys = [("t", index) for index in range(24)]
    for key in keys:
        log = manager.create(*key, b"i" * 16)
        for _ in range(3):
            log.append(batch(b"v"), leader_epoch=0)
        log.flush()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda key: manager.truncate_to(*key, 1), keys)) == [1] * len(keys)
    assert manager.healthy
    points = read_offsets(RealFileSystem(), str(tmp_path), RECOVERY_POINTS)
    assert points == dict.fromkeys(keys, 1)
    manager.close()
