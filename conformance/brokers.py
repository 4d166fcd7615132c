"""Run a fresh broker of either kind, pylogd or Apache Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from conformance import checks, kafka_peer
from pylogd.base.ports import free_ports
from pylogd.local.broker import BrokerProcess

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0


def say(text: str) -> None:
    """Print progress on standard error."""
    print(f"conformance: {text}", file=sys.stderr, flush=True)


@contextmanager
def running(kind: str, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a broker on an empty directory, and yield its address. kind: pylogd or kafka."""
    if kind == "kafka":
        with kafka_peer.running(folder, settings) as address:
            yield address
        return
    # Node 0 with an advertised address, as in Apache Kafka's example settings: kafka-python's suite expects it.
    [port] = free_ports(1)
    options = ["--node-id", "0", "--advertised", f"127.0.0.1:{port}"]
    with watched(BrokerProcess(folder / "data", folder / "log", settings, options, port=port)) as broker:
        yield broker.address


@contextmanager
def watched(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """Stop pylogd's process at the end. Print the end of its log if it has a traceback."""
    try:
        yield broker
        broker.stop()
    finally:
        broker.kill()
        if "Traceback" in broker.log():
            say(f"the broker logged a traceback:\n{broker.log()[-6000:]}")


@contextmanager
def registry(address: str, folder: Path, port: int = 0) -> Iterator[str]:
    """Run pylogd's schema registry on a broker of either kind, and yield its URL. Raises Missing if it does not start.

    port: where it listens, or 0 for a free port.
    """
    [port] = [port] if port else free_ports(1)
    command = [sys.executable, "-m", "pylogd", "schema-registry", "-b", address, "-l", f"127.0.0.1:{port}"]
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, process)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{url}/subjects", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise checks.Missing("the schema registry did not start") from None
            time.sleep(0.1)
