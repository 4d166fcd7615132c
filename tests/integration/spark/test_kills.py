"""`pylogd load` as a user runs it, killed with its JVM and its workers: the lake is the log all the same.

Two kills; `make kills` is fifty, of all that a loader needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylogd.client import Admin, NewTopic
from pylogd.spark.load import LoadPlan, load
from tests.integration.conftest import Address
from tests.integration.spark.lakes import fill
from tests.kills.comparing import check_history, compare
from tests.kills.processes import Loader, has_file

pytestmark = pytest.mark.timeout(900)
SECONDS = 400
RECORDS = 3000


def documents(lake: Path, suffix: str) -> int:
    return len(list((lake / "_pylogd/commits").glob(f"*.{suffix}")))


def test_killed_loaders_lose_nothing_and_load_nothing_twice(
    spark: Any, broker: Address, topic: str, tmp_path: Path
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, {"retention.ms": "-1"})])
    fill(broker.address, topic, range(RECORDS), step_ms=1000)
    lake = tmp_path / "lake"
    moments: list[Callable[[int], bool]] = [
        lambda _: has_file(
            lake / "_pylogd/staging", ".parquet"
        ),  # in the midst of a commit, with files that belong to none
        lambda before: documents(lake, "json") > before + 1,  # close to the moves behind a decision
    ]
    again_and_again = ["--follow", "--max-offsets", "100", "--interval", "0.1"]
    for moment in moments:
        before = documents(lake, "json")
        arguments = [topic, "--to", str(lake), "-b", broker.address, *again_and_again]
        loader = Loader(arguments, tmp_path / "loader.log", "local[2]", tmp_path)
        try:
            deadline = time.monotonic() + SECONDS
            while not moment(before):
                assert loader.process.poll() is None, loader.output()
                assert time.monotonic() < deadline, loader.output()
                time.sleep(0.002)  # the loader needs the processor too
        finally:
            loader.kill_all()
    load(spark, str(lake), LoadPlan(broker.address, ("subscribe", topic)))
    assert compare(broker.address, topic, lake) == RECORDS
    assert check_history(lake) == documents(lake, "done")
