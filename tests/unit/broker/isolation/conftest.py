from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.parts import Parts
from tests.fakes.workers import HeldWorkers


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path, log_dirs="/a,/b", log_write_queues="always", log_write_queue_max_requests=3)
    yield made
    assert made.disks is not None
    for disk in made.disks:
        for writer in disk._workers():
            assert isinstance(writer, HeldWorkers)
            writer.release()  # or a test that failed would wait for them when the logs are closed
    made.close()
