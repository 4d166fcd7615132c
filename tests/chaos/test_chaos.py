"""A minute of chaos; `make chaos` runs an hour. The checker runs in a child process, which can have namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: The number of brokers, and the seconds of faults. Starting, healing and comparing take additional time.
ROOT = Path(__file__).parents[2]
RUNS = [(3, 40), (5, 20)]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("brokers", "seconds"), RUNS)
def test_what_was_acknowledged_is_there_once_in_order_and_everywhere(
    tmp_path: Path, brokers: int, seconds: int
) -> None:
    results = tmp_path / "results.json"
    command = [
        sys.executable, "-m", "tests.chaos", "--seconds", str(seconds), "--seed", "1", "--brokers", str(brokers),
        "--folder", str(tmp_path), "--json", str(results),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=1400, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    (outcome,) = json.loads(results.read_text())
    assert outcome["faults"] == []
    assert outcome["acknowledged"] > 0
    assert outcome["recreated"] > 0
    assert outcome["troubles"]
