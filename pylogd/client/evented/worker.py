"""Make calls that may wait in a thread, such as a function of the application that fetches a token."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pylogd.client.core.effects import Work
from pylogd.client.core.link import Link


def work(effect: Work[Link], from_thread: Callable[[Callable[[], None]], object], now: Callable[[], float]) -> None:
    """Carry out an effect, and report the outcome to its link.

    from_thread: makes a call in the loop's thread, from any thread. The thread does not keep the process from ending.
    """
    link = effect.link

    def run() -> None:
        outcome: bytes | None = None
        failure: BaseException | None = None
        try:
            outcome = effect.call()
        except Exception as error:
            failure = error
        from_thread(lambda: link.worked(outcome, failure, now()))

    threading.Thread(target=run, name="pylogd authentication", daemon=True).start()
