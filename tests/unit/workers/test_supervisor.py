"""A process that can't be started for now is started later."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import patch

from pylogd.process.logs import LogOutput
from pylogd.workers.supervisor import Child, Supervisor


def test_a_fork_that_fails_is_repeated_after_a_pause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = Child("worker 2", lambda _: 0)
    supervisor = Supervisor([child], str, print, LogOutput(str(log)))
    supervisor._announced = True
    descriptors = set(os.listdir("/proc/self/fd"))
    full = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    with patch.object(os, "fork", side_effect=full):
        supervisor._start(child)
        assert (child.pid, child.pipe, child.failures) == (0, -1, 1)
        assert child.started <= child.due < child.started + 1
        supervisor._start(child)
    assert (child.failures, child.due >= child.started + 1) == (2, True)
    assert set(os.listdir("/proc/self/fd")) == descriptors
    first, second = log.read_text().splitlines()
    assert first.endswith("worker 2 could not be started (Resource temporarily unavailable): restarting it now")
    assert second.endswith("restarting it in 1 s")
