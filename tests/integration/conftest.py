"""Fixtures of the integration tests: real broker processes of the installed package, and unused topic names.

PYLOGD_TEST_BOOTSTRAP=HOST:PORT runs the client tests against another broker, such as Apache Kafka, which has to
behave in the same way.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import pytest

from conformance.checks import Missing
from pylogd.local.broker import BrokerProcess
from tests.rawclient import check_serves


@pytest.fixture(autouse=True, scope="module")
def tab_separated() -> Iterator[None]:
    """Commands print tables by default, also in a pipe; the tests split lines at tabs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYLOGD_OUTPUT", "tsv")
        yield


class Address(Protocol):
    """What a client test needs of a broker: its address."""

    @property
    def address(self) -> str: ...


class StartBroker(Protocol):
    """Start a broker. `name` identifies a broker of the test, and with it its data directory.

    To restart a broker on the same port, pass a `port` of `free_ports`.
    """

    def __call__(
        self,
        name: str = "broker",
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        port: int = 0,
    ) -> BrokerProcess: ...


def _finish(brokers: Sequence[BrokerProcess]) -> None:
    """Stop the brokers. Fail the test if one died, exited with an error or logged a traceback."""
    faults = []
    for broker in brokers:
        if broker.process.returncode is not None:
            continue
        died = broker.process.poll() is not None
        code = broker.stop()
        if died or code != 0:
            faults.append(f"broker {broker.address} {'died' if died else 'stopped'} with exit code {code}")
    for broker in brokers:
        log = broker.log()
        if "Traceback (most recent call last)" in log:
            faults.append(f"broker {broker.address} logged a traceback:\n{log[-4000:]}")
    assert not faults, "\n".join(faults)


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start brokers for one test. They are stopped, and their exit codes and logs checked, at its end."""
    started: list[BrokerProcess] = []

    def start(
        name: str = "broker",
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        port: int = 0,
    ) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / name, tmp_path / f"{name}.log", settings, arguments, port)
        started.append(broker)
        return broker

    yield start
    _finish(started)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """One broker with default settings for all tests of a module."""
    if elsewhere := os.environ.get("PYLOGD_TEST_BOOTSTRAP"):
        yield SimpleNamespace(address=elsewhere)
        return
    folder = tmp_path_factory.mktemp("broker")
    process = BrokerProcess(folder / "data", folder / "log")
    yield process
    _finish([process])


@pytest.fixture(scope="module")
def own(broker: object) -> BrokerProcess:
    """The module's broker as a process, for tests that inspect its memory, sockets or log."""
    if not isinstance(broker, BrokerProcess):
        pytest.skip("needs a broker of its own, not PYLOGD_TEST_BOOTSTRAP")
    check_serves(broker.address)
    return broker


_NUMBERS = itertools.count(1)


@pytest.fixture
def new_topic() -> Callable[[], str]:
    """Return a function that returns an unused topic name."""
    return lambda: f"topic-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def topic(new_topic: Callable[[], str]) -> str:
    """An unused topic name."""
    return new_topic()


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The properties of a REST catalog of Iceberg, in a process of its own."""
    from tests.catalogs.servers import rest_catalog  # noqa: PLC0415 - few tests need it

    try:
        with rest_catalog(tmp_path_factory.mktemp("rest")) as properties:
            yield properties
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of an S3 server in a process of its own, with an empty bucket."""
    from tests.fakes.s3 import s3_process  # noqa: PLC0415 - few tests need it

    with s3_process() as address:
        yield address
