"""`pylogd load` as a user runs it, killed with its JVM and its workers: the lake is the log all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylogd.client import Admin, NewTopic
from pylogd.spark.load import LoadPlan, load
from tests.brokers import pylogd_command
from tests.integration.conftest import Address
from tests.integration.spark.lakes import fill, lake_of, log_of

pytestmark = pytest.mark.timeout(900)
SECONDS = 240
RECORDS = 3000


def start(address: str, topic: str, lake: Path, log: Path) -> subprocess.Popen[bytes]:
    """A loader that commits again and again."""
    command = [*pylogd_command(), "load", topic, "--to", str(lake), "-b", address, "--master", "local[2]", "--follow"]
    command += ["--max-offsets", "100", "--interval", "0.1", "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    with log.open("ab") as errors:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True)


def of_session(session: int) -> list[int]:
    """The processes of a session that still run: the command, its JVM and the Python workers."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue  # it ended meanwhile
            if int(of) == session and state != "Z":
                found.append(int(folder.name))
    return found


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Every process of the loader, at once, until there is none."""
    deadline = time.monotonic() + SECONDS
    while pids := of_session(process.pid):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert time.monotonic() < deadline, f"{pids} do not end"
    process.wait(SECONDS)


def documents(lake: Path, suffix: str) -> int:
    return len(list((lake / "_pylogd/commits").glob(f"*.{suffix}")))


def staged(lake: Path) -> bool:
    return any((lake / "_pylogd/staging").rglob("*.parquet"))


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "loader.log"


def test_killed_loaders_lose_nothing_and_load_nothing_twice(
    spark: Any, broker: Address, topic: str, tmp_path: Path, log_file: Path
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, {"retention.ms": "-1"})])
    fill(broker.address, topic, range(RECORDS), step_ms=1000)
    lake = tmp_path / "lake"
    moments: list[Callable[[int], bool]] = [
        lambda _: staged(lake),  # in the midst of a commit, with files that belong to none
        lambda before: documents(lake, "json") > before + 1,  # close to the moves behind a decision
    ]
    for moment in moments:
        before = documents(lake, "json")
        loader = start(broker.address, topic, lake, log_file)
        try:
            deadline = time.monotonic() + SECONDS
            while not moment(before):
                assert loader.poll() is None, log_file.read_text()
                assert time.monotonic() < deadline, log_file.read_text()
        finally:
            kill_all(loader)
    load(spark, str(lake), LoadPlan(broker.address, ("subscribe", topic)))
    assert lake_of(spark, lake, topic) == log_of(broker.address, topic)
    assert documents(lake, "json") == documents(lake, "done")
