"""One Spark session for all tests of this folder, as starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
