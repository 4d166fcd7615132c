"""A loader that starts, is idle, or is stopped: it loads before Spark is there, and prints no traceback of Spark's.

Each test starts a Spark of its own, whose output is read.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pylogd.cli.main import INTERRUPTED, TERMINATED
from pylogd.lake.tables.opening import open_table
from pylogd.local.broker import pylogd_command
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import fill
from tests.kills.processes import Loader, SparkProcess, has_file
from tests.sparks import python_environment

pytestmark = pytest.mark.timeout(900)
SECONDS = 800.0

#: Loads a topic, then has Spark close the connections of idle workers, as it does after a minute (a fixed time).
IDLE = """
import os, sys, time
from pathlib import Path
from pylogd.cli.spark import session
from pylogd.lake.spark.load import LoadPlan, load
from pylogd.lake.spark.opening import open_table

os.environ.pop("SPARK_SUBMIT_OPTS", None)  # the options of the tests
address, topic, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.05)

settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.local.dir": str(folder)}
spark = session("local[2]", settings, "idle")
assert load(spark, open_table(spark, str(folder / "lake")), LoadPlan(address, ("subscribe", topic)))
(folder / "loaded").touch()
wait_for("close")

def value(owner, name, of):
    field = spark._jvm.java.lang.Class.forName("org.apache.spark." + owner).getDeclaredField(name)
    field.setAccessible(True)
    return field.get(of)

environment = value("SparkContext", "_env", spark._jsc.sc())
factories = value("SparkEnv", "pythonWorkers", environment).values().toSeq()
for at in range(factories.size()):
    getattr(factories.apply(at), "org$apache$spark$api$python$PythonWorkerFactory$$cleanupIdleWorkers")()
wait_for("end")
spark.stop()
"""


@contextmanager
def running(process: SparkProcess) -> Iterator[SparkProcess]:
    try:
        yield process
    finally:
        process.kill_all()


def test_workers_that_were_idle_for_a_minute_end_without_a_traceback(
    broker: Address, create: Callable[..., None], topic: str, tmp_path: Path
) -> None:
    create(topic)
    fill(broker.address, topic, range(10))
    command = [sys.executable, "-c", IDLE, broker.address, topic, str(tmp_path)]
    with running(SparkProcess(command, tmp_path / "log", tmp_path, python_environment())) as process:
        process.wait_for((tmp_path / "loaded").exists, SECONDS, pause=0.05)
        assert len(process.workers()) >= 2  # of a task, and of Spark's planner
        assert process.jvms(" -XX:Tier4InvocationThreshold=50000 ")
        (tmp_path / "close").touch()
        process.wait_for(lambda: not process.workers(), SECONDS, pause=0.05)
        (tmp_path / "end").touch()
        process.process.wait(SECONDS)
        said = process.output()
    assert "Traceback" not in said, said
    assert process.process.returncode == 0, said


@pytest.mark.parametrize(
    ("number", "status", "is_busy"), [(signal.SIGINT, INTERRUPTED, True), (signal.SIGTERM, TERMINATED, False)]
)
def test_a_loader_that_is_stopped_prints_no_traceback(
    broker: Address, create: Callable[..., None], topic: str, tmp_path: Path, number: int, status: int, is_busy: bool
) -> None:
    create(topic)
    fill(broker.address, topic, range(3000), step_ms=1000)
    lake = tmp_path / "lake"
    busy = ["--max-offsets", "20", "--interval", "0.1"] if is_busy else ["--interval", "3600"]
    arguments = [topic, "--to", str(lake), "-b", broker.address, "--follow", *busy]
    with running(Loader(arguments, tmp_path / "log", "local[2]", tmp_path)) as loader:
        loader.wait_for(lambda: has_file(lake / "_pylogd/commits", ".done"), SECONDS, pause=0.05)
        if is_busy:
            loader.wait_for(lambda: has_file(lake / "_pylogd/staging", ".parquet"), SECONDS, pause=0.002)
        loader.process.send_signal(number)
        loader.process.wait(SECONDS)
        deadline = time.monotonic() + SECONDS
        while not loader.ended() and time.monotonic() < deadline:
            time.sleep(0.1)
        said = loader.output()
    assert "Traceback" not in said, said
    assert "Exception" not in said, said
    assert loader.process.returncode == status, said


@pytest.mark.parametrize("table", ["parquet:{}/lake", "iceberg:{}/warehouse/demo.flights", "delta:{}/flights"])
def test_records_are_loaded_while_spark_starts(
    broker: Address, create: Callable[..., None], topic: str, tmp_path: Path, table: str
) -> None:
    """The JVM of this test never starts. A loader that is stopped meanwhile ends at once, and prints no traceback."""
    create(topic)
    fill(broker.address, topic, range(100))
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec sleep 1000\n")
    java.chmod(0o755)
    name = table.format(tmp_path)

    def loaded() -> int:
        return sum(open_table(name, read_only=True).position.offsets.values())

    command = [*pylogd_command(), "load", topic, "--table", name, "-b", broker.address, "--follow", "--interval", "0.1"]
    with running(SparkProcess(command, tmp_path / "log", tmp_path, {"JAVA_HOME": str(java.parent.parent)})) as process:
        process.wait_for(lambda: loaded() == 100, SECONDS, pause=0.1)
        fill(broker.address, topic, range(100, 150))
        process.wait_for(lambda: loaded() == 150, SECONDS, pause=0.1)
        process.process.send_signal(signal.SIGTERM)
        process.process.wait(SECONDS)
        said = process.output()
    assert "Traceback" not in said, said
    assert process.process.returncode == TERMINATED, said
