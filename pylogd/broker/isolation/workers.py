"""Threads that make calls which may wait for a disk, and that can be given up if the disk hangs.

Strategy: calls wait in one queue, and a few threads make them; the results are handed to the reactor. No signal ends a
call that hangs in the kernel, so its thread can't be ended: `give_up` fails the calls, and leaves the thread behind.
The thread ends by itself if its call ever returns. The threads are daemons, so that they don't keep the process from
ending.

Rules: everything but the calls runs on the reactor's thread. Calls begin in their order; with one thread they also end
in this order.

Must not know: what the calls do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

FromThread = Callable[..., object]
"""Has the reactor call a function, soon: `reactor.callFromThread`."""


class _Call:
    """A call that was not answered yet.

    began: when a thread began to make the call, None before.
    """

    __slots__ = ("arguments", "began", "done", "function", "given_up")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.began: float | None = None
        self.done: Deferred[Any] = Deferred()
        self.given_up = False


class Workers:
    """Up to `most` threads, which are started as they are needed.

    stuck: how many threads were left behind in a call that has not returned yet.
    """

    def __init__(self, name: str, most: int, from_thread: FromThread, seconds: Callable[[], float]) -> None:
        """Arguments:

        name: the name of the threads.
        seconds: a monotonic clock.
        """
        self.stuck = 0
        self._name = name
        self._most = most
        self._from_thread = from_thread
        self._seconds = seconds
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._beginning = threading.Lock()  # a call begins or is given up, but not both at once
        self._unanswered: dict[_Call, None] = {}  # in the order of the calls
        self._threads = 0
        self._failure: Exception | None = None

    def __len__(self) -> int:
        """How many calls were not answered yet."""
        return len(self._unanswered)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        """Make a call in a thread. The Deferred has its result, or its failure; cancelling it changes nothing."""
        if self._failure is not None:
            return fail(self._failure)
        call = _Call(function, arguments)
        self._unanswered[call] = None
        self._queue.put(call)
        self._start_threads(len(self._unanswered))
        return call.done

    def resize(self, most: int, /) -> None:
        """Use up to `most` threads from now on. Threads beyond that end after the calls that were made before."""
        if self._failure is not None:
            return
        self._most = most
        for _ in range(self._threads - most):
            self._queue.put(None)
        self._threads = min(self._threads, most)
        for calls in range(len(self._unanswered)):
            self._start_threads(calls + 1)

    def _start_threads(self, calls: int) -> None:
        """Start a thread if the number of threads is below the limit and below that of unanswered calls."""
        if self._threads < min(self._most, calls):
            self._threads += 1
            self._start_thread(f"{self._name}-{self._threads}")

    def oldest(self) -> float | None:
        """Return the time at which the oldest unfinished call was begun; None if all calls have returned."""
        return min((call.began for call in self._unanswered if call.began is not None), default=None)

    def give_up(self, error: Exception) -> None:
        """Fail all unanswered calls, and all later ones, with `error`."""
        if self._failure is not None:
            return
        self._failure = error
        unanswered, self._unanswered = list(self._unanswered), {}
        with self._beginning:
            for call in unanswered:
                call.given_up = True
        self.stuck = sum(call.began is not None for call in unanswered)
        self.stop()
        for call in unanswered:
            call.done.errback(error)

    def stop(self) -> None:
        """Let the threads end after the calls that were made before."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0

    def _start_thread(self, name: str) -> None:
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        # Runs in a thread.
        while (call := self._queue.get()) is not None:
            self._make(call)
            del call

    def _make(self, call: _Call) -> None:
        """Make a call, in a thread, unless it was given up."""
        with self._beginning:
            if call.given_up:
                return
            call.began = self._seconds()
        try:
            result = call.function(*call.arguments)
        except BaseException:
            result = Failure()
        self._from_thread(self._returned, call, result)

    def _returned(self, call: _Call, result: Any) -> None:
        if call.given_up:
            self.stuck -= 1
            return
        del self._unanswered[call]
        call.done.callback(result)
