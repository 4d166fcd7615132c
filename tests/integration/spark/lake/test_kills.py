"""`pylogd load` as a process, killed with its JVM and its workers: the lake still equals the log.

This test kills three times. `make kills` kills fifty times, and the broker and ZooKeeper too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pylogd.client import Admin, NewTopic
from pylogd.lake.spark.load import LoadPlan, load
from pylogd.lake.spark.opening import open_table
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import fill
from tests.kills.comparing import check_history, compare
from tests.kills.lakes import on_disk
from tests.kills.processes import ONLY_BY_SPARK, Loader, has_file, kill

pytestmark = pytest.mark.timeout(900)
SECONDS = 400
RECORDS = 3000


def documents(lake: Path, suffix: str) -> int:
    return len(list((lake / "_pylogd/commits").glob(f"*.{suffix}")))


def kill_jvm(loader: Loader) -> None:
    """Kill Spark's JVM. The command ends by itself, and says why in one line."""
    kill(loader.drivers_jvm())
    loader.process.wait(SECONDS)
    said = loader.output()
    assert said.strip().splitlines()[-1].startswith("Error: Spark's JVM ended"), said
    assert "Traceback" not in said, said


def test_killed_loaders_lose_nothing_and_load_nothing_twice(
    spark: Any, broker: Address, topic: str, tmp_path: Path
) -> None:
    with Admin(broker.address) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, {"retention.ms": "-1"})])
    fill(broker.address, topic, range(RECORDS), step_ms=1000)
    lake = tmp_path / "lake"
    moments: list[tuple[Callable[[int], bool], Callable[[Loader], None], Mapping[str, str]]] = [
        # in the middle of a commit, with files that no commit names
        (lambda _: has_file(lake / "_pylogd/staging", ".parquet"), kill_jvm, ONLY_BY_SPARK),
        # soon after a commit, while files are moved
        (lambda before: documents(lake, "json") > before + 1, Loader.kill_all, ONLY_BY_SPARK),
        (lambda before: documents(lake, "json") > before + 1, Loader.kill_all, {}),  # while Spark starts
    ]

    def goes_on(before: int) -> bool:
        return documents(lake, "json") > before

    again_and_again = ["--follow", "--max-offsets", "100", "--interval", "0.1"]
    for moment, strike, settings in moments:
        before = documents(lake, "json")
        arguments = [topic, "--to", str(lake), "-b", broker.address, *again_and_again]
        loader = Loader(arguments, tmp_path / "loader.log", "local[2]", tmp_path, settings=settings)
        try:
            loader.wait_for(partial(goes_on, before), SECONDS, pause=0.05)
            loader.wait_for(partial(moment, before), SECONDS, pause=0.002)
            strike(loader)
        finally:
            loader.kill_all()
    load(spark, open_table(spark, str(lake)), LoadPlan(broker.address, ("subscribe", topic)))
    assert compare(broker.address, topic, on_disk(lake)) == RECORDS
    assert check_history(on_disk(lake)) == documents(lake, "done")
