from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.parts import Parts


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, log_dirs="/a,/b", log_write_queues="always", log_write_queue_max_requests=3)
    yield made
    made.close()
