"""Fifty kills; `make crash` runs a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import run

KILLS = 50


@pytest.mark.timeout(1200)
def test_acknowledged_messages_survive_every_kill(tmp_path: Path) -> None:
    deaths = run(KILLS, 20_000, tmp_path, tell=False)
    assert deaths["messages acknowledged"] > KILLS * 10
