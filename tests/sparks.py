"""A real Spark for the tests: one session on two threads of this machine, and nothing of it left behind.

Its Python workers find pylogd in the interpreter's site-packages, as a user's do. Only if the checkout itself is under
test are they pointed there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyspark
from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

import pylogd
from pylogd.client import Producer
from pylogd.local.launch import bound

T = TypeVar("T")
STOP_SECONDS = 180
START_SECONDS = 180
_PACKAGES = Path(pylogd.__file__).resolve().parent.parent


def retried(action: Callable[[], T], seconds: float = 240.0) -> T:
    """Return the result of `action`, and repeat it if a Python process of Spark started too slowly.

    Spark gives the Python process of a streaming query a fixed ten seconds to start, too few on a busy machine.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except Exception as error:
            if not is_slow_start(error) or time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def traffic(address: str, topic: str, pause: float) -> Iterator[None]:
    """Write the numbers from 0 on to partition 0, one every `pause` seconds, while the context lasts."""
    ended = threading.Event()

    def send() -> None:
        with Producer(address, linger_ms=0) as producer:
            for number in itertools.count():
                producer.send(topic, b"%d" % number, partition=0)
                if ended.wait(pause):
                    return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_slow_start(error: BaseException | None) -> bool:
    """Whether a query failed only because its Python process did not start in time."""
    text = str(error)  # the message depends on how Spark and the process communicate
    return "Python worker failed to connect back" in text or "Python worker to connect back" in text


def python_environment() -> dict[str, str]:
    """Return the variables with which Spark's processes find the package under test."""
    # Safe path: the checkout in which the tests run must not hide the installed package.
    environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONSAFEPATH": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    if "site-packages" not in _PACKAGES.parts:
        environment["PYTHONPATH"] = str(_PACKAGES)
    return environment


def _small(folder: Path) -> dict[str, str]:
    """Return Spark's settings for a small machine, with all files in a folder."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }


@contextlib.contextmanager
def running_spark(folder: Path, settings: Mapping[str, str] | None = None, master: str = "local[2]") -> Iterator[Any]:
    """A session; its JVM has ended when this returns. `folder` takes its files."""
    plain = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        **_small(folder),
        **(settings or {}),
    }
    builder = SparkSession.builder.master(master)
    for name, value in plain.items():
        builder = builder.config(name, value)
    with _environment(python_environment()):  # its JVM keeps it; other tests start processes that must not have it
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        gateway = session.sparkContext._gateway
        assert gateway is not None
        assert gateway.proc.poll() is None, f"Spark's JVM ended by itself, with exit status {gateway.proc.poll()}"
        for query in session.streams.active:
            query.stop()
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(STOP_SECONDS)
        SparkContext._gateway = SparkContext._jvm = None


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables while the context lasts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = former


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A server of Spark Connect on two threads of this machine, which ends with this thread; yields its URL."""
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]",
    ]  # fmt: skip
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        **_small(folder),
    }
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    log = folder / "connect.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            bound(command, signal.SIGTERM), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            cwd=folder, env={**os.environ, **python_environment()}, start_new_session=True,
        )  # fmt: skip
    try:
        yield f"sc://127.0.0.1:{_port_in(log, process)}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _port_in(log: Path, process: subprocess.Popen[bytes]) -> int:
    """Return the port on which a server of Spark Connect says that it listens."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if found := re.search(r"Spark Connect server started at: \S+:(\d+)", text):
            return int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"the server of Spark Connect did not start:\n{log.read_text(errors='replace')[-3000:]}")
