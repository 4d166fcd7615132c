"""One Spark session for all tests of this folder, as starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.sparks import running_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session."""
    with running_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session
