"""A broker's Twisted knows coroutines without asyncio, which can be imported later."""

from __future__ import annotations

import subprocess
import sys

#: `{}` runs before the import. Prints what Twisted makes of a coroutine and of another value, and whether asyncio is
#: imported yet, and which modules keep what stood in for it: none.
_PROGRAM = """
import sys
from pylogd.base.process.lean_imports import import_deferred
{}
import_deferred()
from twisted.internet.defer import Deferred, NotACoroutineError
async def answer():
    return 42
Deferred.fromCoroutine(answer()).addCallback(print)
try:
    Deferred.fromCoroutine(42)
except NotACoroutineError:
    print("refused")
print("asyncio" in sys.modules)
print([name for name, module in sys.modules.items() if type(getattr(module, "asyncio", None)).__name__ == "_Names"])
import asyncio
print(asyncio.run(answer()))
"""


def _printed(before: str = "") -> list[str]:
    command = [sys.executable, "-c", _PROGRAM.format(before)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr
    return done.stdout.split()


def test_twisted_does_without_asyncio() -> None:
    assert _printed() == ["42", "refused", "False", "[]", "42"]


def test_a_twisted_that_wants_other_names_has_asyncio() -> None:
    without = "from pylogd.base.process import lean_imports; del lean_imports._Names.iscoroutine"
    assert _printed(without) == ["42", "refused", "True", "[]", "42"]
