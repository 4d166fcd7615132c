"""The producer's thread: it drives a `ProducerCore` on its own connections.

Strategy: the thread lets the core do what is due, sends the requests that it returns, calls the application back with
results, and sleeps until something is due, a reply comes, or a caller wakes it. Callers add records under `lock` and
wait on `changed`. They never touch a socket, so that an interrupt in a caller's thread, at whatever instruction, leaves
no half-written request behind.

Rules: `lock` is held for bookkeeping only, never for I/O, compression, or while a callback runs. Only this thread uses
the network. Callbacks run in this thread; their exceptions are logged. The thread is a daemon: a process that ends
does not wait for it. It starts with the first record, so that a process may fork before.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from enum import Enum

from pylogd.base.errors import PylogdError
from pylogd.base.machine import MachineTable
from pylogd.client.blocking.clock import Clock
from pylogd.client.blocking.sockets import Sockets
from pylogd.client.core.effects import Close, Open, Work, Write
from pylogd.client.core.errors import ClientError, Closed
from pylogd.client.core.network import Network
from pylogd.client.core.producer.accumulator import Batch
from pylogd.client.core.producer.options import BatchResult, ProducerOptions
from pylogd.client.core.producer.producer import PURPOSE, ProducerCore
from pylogd.client.evented.loop import work

_LONG = 60.0

_log = logging.getLogger(__name__)


class Driver:
    """The sockets of one network."""

    def __init__(self, network: Network, clock: Clock) -> None:
        """Nothing is open yet."""
        self.network = network
        self._clock = clock
        self._sockets = Sockets(clock)
        self.wakeup = self._sockets.wakeup

    def close(self) -> None:
        """Close all sockets."""
        self.perform()
        self._sockets.close()

    def turn(self, until: float) -> None:
        """Carry out effects, and wait for an event, at most until the clock says `until`."""
        self.perform()
        self.network.tick(self._clock.monotonic())
        due = self.network.next_time()
        self._sockets.wait(until if due is None else min(until, due))
        self.network.tick(self._clock.monotonic())
        self.perform()

    def perform(self) -> None:
        """Carry out the effects that the network has asked for."""
        effects = self.network.effects
        while effects:
            effect = effects.popleft()
            link = effect.link
            if isinstance(effect, Write):
                link.transport.write(effect.parts)
            elif isinstance(effect, Open):
                link.transport = self._sockets.open(link, link.connect_timeout)
            elif isinstance(effect, Work):
                work(effect, self._sockets.from_thread, self._clock.monotonic)
            elif isinstance(effect, Close) and link.transport is not None:
                link.transport.close()
        if self.network.written:
            self.network.count_written(self._clock.monotonic())


class SenderState(Enum):
    """What becomes of the batches that have no result."""

    OPEN = "The thread delivers batches, and waits for more."
    ENDING = "The thread delivers the batches that it has, then it ends."
    ABANDONED = "No batch is delivered any more: all of them have failed."


class SenderEvent(Enum):
    """An event of the producer's thread."""

    LET_END = "The producer was garbage-collected."
    ABANDON = "The producer was closed, its thread failed, or the process is a fork."


SENDER = MachineTable(
    "Producer's thread",
    "The thread of a blocking producer, which delivers its batches.",
    SenderState.OPEN,
    {
        SenderState.OPEN: {SenderEvent.LET_END: SenderState.ENDING},
        SenderState.ENDING: {SenderEvent.LET_END: SenderState.ENDING},
        SenderState.ABANDONED: {SenderEvent.LET_END: SenderState.ABANDONED},
    },
    {SenderEvent.ABANDON: SenderState.ABANDONED},
)


class Sender:
    """The thread, and what callers share with it under `lock`."""

    def __init__(self, network: Network, options: ProducerOptions, clock: Clock) -> None:
        """Nothing is started yet."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.core = ProducerCore(
            options, network.metadata, monotonic=clock.monotonic, guard=self.lock, meters=network.meters,
            is_ready=lambda node: network.is_ready(node, PURPOSE), features=lambda: network.features,
        )  # fmt: skip
        self.flushing = 0  # the number of callers that wait for all batches
        self.needing_room = 0  # the number of callers that wait for space in the buffer
        self._network = network
        self._clock = clock
        self._driver: Driver | None = None
        self._thread: threading.Thread | None = None
        self._turned_at = float("-inf")  # the time of the last turn: later work is not done yet
        self._asleep_until: float | None = None
        self._called = False  # `start` was called since the last turn began
        self._machine = SENDER.machine()
        self._telling = False
        self._untold: list[tuple[Batch, BatchResult]] = []
        _senders.add(self)

    # What callers use

    def start(self) -> None:
        """With the lock: start the thread, or wake it."""
        self._called = True
        if self._thread is None:
            self._driver = Driver(self._network, self._clock)
            self._thread = threading.Thread(target=self._run, name="pylogd-producer", daemon=True)
            self._thread.start()
        elif self._asleep_until is not None:
            self._asleep_until = None
            self._rouse()

    def nudge(self, batch: Batch) -> None:
        """With the lock: wake the thread if it would sleep too long for a batch that was opened or sealed."""
        if self._thread is None or (
            self._asleep_until is not None and (self.core.accumulator.sealed or batch.due < self._asleep_until)
        ):
            self.start()

    def wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """With the lock: wait until `done`. Return False if `timeout` seconds pass before. Raises Closed."""
        if threading.current_thread() is self._thread:
            raise ClientError("a callback of the producer may not wait for the producer")
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        awake = False
        while not done():
            left = _LONG if deadline is None else deadline - self._clock.monotonic()
            if left <= 0:
                return False
            if self._machine.state is SenderState.ABANDONED:
                assert self.core.failure is not None
                raise self.core.failure
            if not awake:  # once is enough: the thread wakes all waiting callers in each turn
                self.start()
                awake = True
            self.changed.wait(left)
        return True

    def all_told(self, before: float) -> bool:
        """With the lock: return whether every batch with a lower number has its result, and the callbacks have run."""
        return self.core.first_unfinished() >= before and not self._untold and not self._telling

    def let_end(self) -> None:
        """End when every batch has its result. Takes no lock, since a thread that collects garbage may hold it."""
        self._machine.handle(SenderEvent.LET_END)
        self._rouse()

    def abandon(self, reason: PylogdError, timeout: float) -> None:
        """Give up every batch that has no result."""
        with self.lock:
            self._machine.handle(SenderEvent.ABANDON)
            self.core.stop(reason)
            self._untold += self.core.take_results()
            self.changed.notify_all()
            if self._thread is not None:
                self.start()
        self._tell()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _rouse(self) -> None:
        if self._driver is not None:
            self._driver.wakeup.set()

    # The thread

    def _run(self) -> None:
        assert self._driver is not None
        try:
            while self._turn(self._driver):
                pass
        except Exception as error:
            _log.exception("the producer's thread failed")
            failure = Closed(f"the producer has failed: {error!r}")
            failure.__cause__ = error
            self.abandon(failure, 0)
        finally:
            self._network.close(Closed("the producer is closed"), self._clock.monotonic())
            self._driver.close()

    def _turn(self, driver: Driver) -> bool:
        """Do the work that can be done now, then sleep. Return False when the thread has to end."""
        with self.lock:
            state = self._machine.state
            if state is SenderState.ABANDONED or (state is SenderState.ENDING and not self.core.unfinished):
                return False
            self._called = False
            now = self._turned_at = self._clock.monotonic()
            calls = self.core.turn(now, seal_all=self._must_seal())
            self._untold += self.core.take_results()
            self.changed.notify_all()
        for call in calls:
            self._network.send(call, now)
        driver.perform()
        self.core.statistics.report(now)
        if not self._tell():
            driver.turn(self._sleep_until(bool(calls)))
            self._asleep_until = None
        return True

    def _must_seal(self) -> bool:
        """Whether a caller waits for batches that have not lingered long enough."""
        return bool(self.flushing or self._machine.state is not SenderState.OPEN or self._starved())

    def _starved(self) -> bool:
        """Whether callers wait for space in the buffer, and only open batches can free it."""
        return bool(self.needing_room and not self.core.queue.waiting and not self.core.in_flight)

    def _sleep_until(self, busy: bool) -> float:
        """Return the time until which to wait for sockets; do not wait while there is work to do."""
        with self.lock:
            now = self._clock.monotonic()
            self._untold += self.core.take_results()
            if self.core.accumulator.sealed or self._untold or self._machine.state is SenderState.ABANDONED or busy:
                return now
            if self._called or (self.core.accumulator.open and self._must_seal()):
                return now  # a caller began to wait after this turn had checked
            due = self.core.next_time(self._turned_at)
            until = now + _LONG if due is None else due
            if until > now:
                self._asleep_until = until
            return until

    def _tell(self) -> bool:
        """Report the available results to the application. Return whether there were any."""
        with self.lock:
            results, self._untold = self._untold, []
            if not results:
                return False
            self._telling = True
            self.changed.notify_all()
        for batch, result in results:
            self.core.hooks.completed(batch, result)
        with self.lock:
            self._telling = False
            self.changed.notify_all()
        return True

    def forked(self) -> None:
        """Refuse records in a child process: the thread and the connections are its parent's."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        if self._thread is not None:
            self.core.refuse(Closed("the producer was in use when the process forked: the child needs one of its own"))
            self._machine.handle(SenderEvent.ABANDON)
            self._thread = self._driver = None


_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _after_fork() -> None:
    for sender in list(_senders):
        sender.forked()


os.register_at_fork(after_in_child=_after_fork)
