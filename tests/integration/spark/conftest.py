"""One Spark session for all tests of this folder, as starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pylogd.cli.main import pylogd
from pylogd.client import Admin, NewTopic
from tests.integration.conftest import Address
from tests.integration.spark.lake.lakes import Command
from tests.sparks import running_spark


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the session keeps what its web pages would show."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, event_log: Path) -> Iterator[Any]:
    """A session."""
    settings = {
        "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": event_log.as_uri(),
    }  # fmt: skip
    with running_spark(tmp_path_factory.mktemp("spark"), settings) as session:
        yield session


@pytest.fixture
def run(spark: Any, broker: Address, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs `pylogd COMMAND ...` against the broker, with the shared session."""
    monkeypatch.setattr(spark, "stop", lambda: None)
    monkeypatch.setattr("pylogd.cli.spark.session", lambda *_: spark)
    monkeypatch.setenv("PYLOGD_BOOTSTRAP_SERVER", broker.address)
    return lambda *arguments: CliRunner().invoke(pylogd, [str(each) for each in arguments])


@pytest.fixture
def create(broker: Address) -> Callable[..., None]:
    """Return a function that makes a topic that keeps its records, which are of 2023."""

    def made(topic: str, partitions: int = 2) -> None:
        with Admin(broker.address) as admin:
            admin.create_topics([NewTopic(topic, partitions, 1, {"retention.ms": "-1"})])

    return made
