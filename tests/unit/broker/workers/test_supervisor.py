"""Processes that can't be started, and signals that come while they start."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from unittest.mock import patch

from pylogd.base.process.logs import LogOutput
from pylogd.broker.workers.supervisor import Child, Supervisor


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


def test_a_signal_that_comes_before_a_child_has_its_own_handlers_ends_it(tmp_path: Path) -> None:
    """A worker that was told to stop just after the fork went on, and the command did not end."""
    child = Child("worker 2", lambda _: 0)
    supervisor = Supervisor([child], str, print, LogOutput(str(tmp_path / "log")))
    parent, set_wakeup_fd = os.getpid(), signal.set_wakeup_fd

    def asked_to_stop(fd: int) -> int:
        before = set_wakeup_fd(fd)
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
        return before

    handler = signal.signal(signal.SIGTERM, lambda *_: None)  # as the supervisor has it
    try:
        with patch.object(signal, "set_wakeup_fd", asked_to_stop):
            supervisor._start(child)
    finally:
        signal.signal(signal.SIGTERM, handler)
    os.close(child.pipe)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == -signal.SIGTERM
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGCHLD}
