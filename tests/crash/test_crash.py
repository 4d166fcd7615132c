"""Fifty kills, and some with a block cache; `make crash` runs a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import run

KILLS = 50
CACHED_KILLS = 20


@pytest.mark.timeout(1200)
def test_acknowledged_messages_survive_every_kill(tmp_path: Path) -> None:
    deaths = run(KILLS, 20_000, tmp_path, tell=False)
    assert deaths["messages acknowledged"] > KILLS * 10


@pytest.mark.timeout(600)
def test_acknowledged_messages_survive_with_a_block_cache(tmp_path: Path) -> None:
    deaths = run(CACHED_KILLS, 30_000, tmp_path, tell=False, settings={"log.block.cache.bytes": "1000000"})
    assert deaths["messages acknowledged"] > CACHED_KILLS * 10
