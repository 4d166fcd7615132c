"""Make calls that may block in a thread, such as an application's function that fetches a token."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pylogd.client.core.effects import Work
from pylogd.client.core.link import Link

T = TypeVar("T")
#: A function that any thread may use to have a call made in the loop's thread.
FromThread = Callable[[Callable[[], None]], object]


def in_thread(call: Callable[[], T], done: Callable[[T | None, BaseException | None], None], loop: FromThread) -> None:
    """Make a call in a new thread. In the loop's thread, report its result or exception to `done`.

    The thread does not keep the process from ending.
    """

    def run() -> None:
        outcome: T | None = None
        failure: BaseException | None = None
        try:
            outcome = call()
        except Exception as error:
            failure = error
        loop(lambda: done(outcome, failure))

    threading.Thread(target=run, name="pylogd authentication", daemon=True).start()


def work(effect: Work[Link], loop: FromThread, now: Callable[[], float]) -> None:
    """Make the call of a `Work` effect, and report the outcome to its link."""
    in_thread(effect.call, lambda outcome, failure: effect.link.worked(outcome, failure, now()), loop)
