"""Commands that run as child processes, and end when the thread that started them ends for any reason."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

#: A program that asks the kernel for a signal at the end of the parent's thread, then replaces itself by the command in
#: its arguments.
_LAUNCH: Final = """
import ctypes, os, sys
parent, signal = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, signal, 0, 0, 0)
if os.getppid() != parent:
    sys.exit("the process that started this one is gone")
os.execvp(sys.argv[3], sys.argv[3:])
"""


def bound(command: Sequence[str], with_signal: signal.Signals) -> list[str]:
    """Return a command that runs `command` in its own process, and gets a signal when its parent's thread ends.

    The kernel sends the signal (PR_SET_PDEATHSIG), however the parent ends.
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), str(int(with_signal)), *command]
