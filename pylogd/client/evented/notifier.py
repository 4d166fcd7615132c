"""Wait on an event loop until something happens."""

from __future__ import annotations

from pylogd.client.evented.loop import Loop, Promise


class Notifier:
    """Wakes coroutines that wait for an event or for a time."""

    def __init__(self, loop: Loop) -> None:
        """No coroutine waits yet."""
        self._loop = loop
        self._waiting: list[Promise[None]] = []

    def notify(self) -> None:
        """Wake all coroutines that wait."""
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.succeed(None)

    async def wait(self, until: float) -> None:
        """Wait for `notify`, at most until a time of the loop's clock."""
        promise: Promise[None] = self._loop.promise()
        self._waiting.append(promise)
        timer = self._loop.later(max(0.0, until - self._loop.now()), lambda: promise.succeed(None))
        try:
            await promise
        finally:
            timer.cancel()
            if promise in self._waiting:
                self._waiting.remove(promise)
