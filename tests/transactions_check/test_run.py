"""A short run while brokers are killed, and runs on brokers with planted faults, which have to be found."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters import BrokerCluster
from tests.transactions_check.run import SETTINGS, run

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_exactly_once_while_brokers_are_killed(start_cluster: Callable[..., BrokerCluster]) -> None:
    result = run(start_cluster(3, SETTINGS), seed=1, seconds=20)
    assert result.anomalies == []
    assert result.transactions["committed"] > 0
    assert result.transactions["aborted"] > 0
    assert result.faults


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("epoch_check", "aborted read"),
        ("lost_marker", "never settles|aborted read|lost write"),  # by what comes behind the marker that is missing
        ("stable_offset", "aborted read"),
        ("aborted_offsets", "lost copy"),
    ],
)
def test_planted_faults_are_found(fault: str, found: str) -> None:
    command = [
        sys.executable, "-m", "tests.transactions_check", "--brokers", "1", "--seconds", "4", "--settle", "15",
        "--plant", fault,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
    assert done.returncode == 1, done.stdout[-4000:] + done.stderr[-4000:]
    assert re.search(found, done.stdout), done.stdout[-4000:]
