"""Child processes that end with the process that started them, however that ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

#: Becomes the command in its arguments, after asking to be killed when the parent thread ends.
_LAUNCH: Final = """
import ctypes, os, sys
parent, signal = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, signal, 0, 0, 0)
if os.getppid() != parent:
    sys.exit("the process that started this one is gone")
os.execvp(sys.argv[3], sys.argv[3:])
"""


def bound(command: Sequence[str], with_signal: signal.Signals) -> list[str]:
    """A command that becomes `command`, an absolute path first, and gets the signal when the thread that started it
    ends (PR_SET_PDEATHSIG).
    """
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), str(int(with_signal)), *command]
