"""Half a minute under all faults of `tests.chaos`, and runs on brokers with planted faults, which have to be found.

Each runs in a child process, which can have namespaces of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_COMMAND = [sys.executable, "-m", "tests.transactions_check"]


@pytest.mark.timeout(900)
def test_exactly_once_under_faults(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    command = [*_COMMAND, "--seconds", "30", "--seed", "1", "--folder", str(tmp_path), "--json", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    (result,) = json.loads(results.read_text())
    assert result["anomalies"] == []
    assert result["transactions"]["committed"] > 0
    assert result["transactions"]["aborted"] > 0
    assert result["faults"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "found"),
    [("stable_offset", r"aborted read.*cycle \(write-read\)"), ("aborted_offsets", "lost copy")],
)
def test_planted_faults_are_found(fault: str, found: str) -> None:
    """`test_checker` has all kinds of anomalies, RESULTS.md the runs with all planted faults."""
    printed = ""
    for seconds in (4, 15, 60):  # a busy machine makes few transactions
        command = [*_COMMAND, "--brokers", "1", "--seconds", f"{seconds}", "--settle", "15", "--plant", fault]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
        printed = done.stdout[-4000:] + done.stderr[-4000:]
        if done.returncode == 1 and re.search(found, done.stdout):
            return
    pytest.fail(printed)
