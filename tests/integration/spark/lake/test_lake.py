"""`pylogd load` on a Parquet lake: its layout, its history, and compaction beside a loader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylogd.lake.spark.hadoop import HadoopFiles
from pylogd.lake.spark.load import LoadPlan, compact, load
from pylogd.lake.spark.opening import open_table
from pylogd.lake.tables.parquet.lake import Lake
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import Command, documents, fill, lake_of, log_of

pytestmark = pytest.mark.timeout(600)


def test_a_lake_is_read_as_of_earlier_commits_until_they_expire(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic)
    for begin in (0, 40):
        fill(broker.address, topic, range(begin, begin + 40))
        run("load", topic, "--to", tmp_path)
    run("load", "--to", tmp_path, "--compact")

    def rows(*more: object) -> int:
        paths = [each["path"] for each in documents(run("load", "--to", tmp_path, "--files", "--json", *more))]
        return int(spark.read.parquet(*paths).count())

    assert (rows("--as-of", 1), rows()) == (40, 80)
    last = len(documents(run("load", "--to", tmp_path, "--history", "--json")))  # one or more compactions
    (done,) = documents(run("load", "--to", tmp_path, "--expire", "--keep-days", "0", "--json"))
    assert (done["floor"], done["commits"]) == (last, last - 1) and done["files"]
    assert lake_of(spark, tmp_path, topic) == log_of(broker.address, topic)
    refused = run("load", "--to", tmp_path, "--files", "--as-of", 1)
    assert refused.exit_code == 1
    assert f"there is no commit 1 in the lake: kept are {last} to {last}" in refused.stderr


def test_a_lake_keeps_its_layout(
    spark: Any, broker: Address, run: Command, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic)
    fill(broker.address, topic, range(10))
    run("load", topic, "--to", tmp_path, "--by", "day", "--value", "string")
    fill(broker.address, topic, range(10, 12))
    for other, recorded in ((("--by", "topic", "--value", "string"), "by=day"), (("--by", "day"), "value=string")):
        refused = run("load", topic, "--to", tmp_path, *other)
        assert refused.exit_code == 1 and f"was made with {recorded}, which can't be changed" in refused.stderr
    path = next((tmp_path / "_pylogd/commits").glob("*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2, "layout": None}))
    refused = run("load", topic, "--to", tmp_path, "--by", "day")
    assert "was made with value=string" in refused.stderr, "it is read from the schema of a file"
    assert run("load", topic, "--to", tmp_path, "--by", "day", "--value", "string").exit_code == 0


def test_a_load_is_committed_after_a_compaction_that_overtook_it(
    spark: Any, broker: Address, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic)
    plan = LoadPlan(broker.address, ("subscribe", topic))
    loading = open_table(spark, str(tmp_path))
    for begin in (0, 20):
        fill(broker.address, topic, range(begin, begin + 20))
        load(spark, loading, plan)
    assert compact(spark, open_table(spark, str(tmp_path))) is not None
    fill(broker.address, topic, range(40, 50))
    done = load(spark, loading, plan)
    assert done is not None and done.kind == "load" and done.number > 3
    assert Lake(HadoopFiles(spark, str(tmp_path))).position == loading.position
    assert lake_of(spark, tmp_path, topic) == log_of(broker.address, topic)
