"""The three faces of `pylogd.client` behind one, so that one suite proves all: calls wait, whatever the face.

The Deferred face runs on a reactor of its own and the asyncio face on an event loop of its own, which run in the test's
thread while a call waits. No thread is started, and the process's reactor is neither installed nor run.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.python.failure import Failure

from pylogd import client
from pylogd.client import aio, deferred
from pylogd.wire.records import Record

WAIT_SECONDS = 180.0


class Interrupted(Exception):
    """Raised in the middle of a wait, as KeyboardInterrupt is."""


class BlockingFace:
    """`pylogd.client` itself."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._made: list[Any] = []

    def producer(self, **options: Any) -> Any:
        return self._keep(client.Producer(self.address, **options))

    def consumer(self, **options: Any) -> Any:
        return self._keep(client.Consumer(self.address, **options))

    def admin(self, **options: Any) -> Any:
        return self._keep(client.Admin(self.address, **options))

    def _keep(self, made: Any) -> Any:
        self._made.append(made)
        return made

    def transaction(self, producer: Any) -> AbstractContextManager[Any]:
        """A transaction of a producer, for `with`."""
        made: AbstractContextManager[Any] = producer.transaction()
        return made

    def take(self, records: Any, count: int) -> list[Record]:
        """Return the next `count` records of an endless iterator."""
        return list(itertools.islice(records, count))

    def iterate(self, consumer: Any) -> Any:
        """Begin an iteration over a consumer; its body is what the test does between two calls of `step`."""
        return iter(consumer)

    def step(self, records: Any) -> Record:
        """Return the next record of an iteration."""
        found: Record = next(records)
        return found

    def leave(self, records: Any) -> None:
        """End an iteration, as the garbage collector does after a `break` or an exception."""
        records.close()

    def give_up_step(self, consumer: Any, records: Any, seconds: float) -> Record | None:
        """Return the next record of an iteration, or None if waiting for it is interrupted, as by Ctrl-C."""

        def interrupt() -> None:
            raise Interrupted

        with consumer._loop.lock:
            timer = consumer._loop.later(seconds, interrupt)
            try:
                return self.step(records)
            except Interrupted:
                return None
            finally:
                timer.cancel()

    def close(self) -> None:
        for made in self._made:
            getattr(made, "abandon", made.close)()


class DeferredFace:
    """`pylogd.client.deferred` as a blocking interface: calls wait for their Deferreds."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.reactor = own_reactor()
        self._made: list[Any] = []

    def producer(self, **options: Any) -> Any:
        return self._keep(deferred.Producer(self.address, reactor=self.reactor, **options))

    def consumer(self, **options: Any) -> Any:
        return self._keep(deferred.Consumer(self.address, reactor=self.reactor, **options))

    def admin(self, **options: Any) -> Any:
        return self._keep(deferred.Admin(self.address, reactor=self.reactor, **options))

    def transaction(self, producer: Any) -> AbstractContextManager[Any]:
        """A transaction of a producer, for `with`."""
        return _waiting(self, producer)

    def _keep(self, made: Any) -> Patient:
        self._made.append(made)
        return Patient(made, self)

    def take(self, records: Any, count: int) -> list[Record]:
        found: list[Record] = self.wait(_take(records, count))
        return found

    def iterate(self, consumer: Patient) -> Any:
        """Begin an iteration over a consumer; its body is what the test does between two calls of `step`."""
        return aiter(consumer.target)

    def step(self, records: Any) -> Record:
        """Return the next record of an iteration."""
        found: Record = self.wait(_next(records))
        return found

    def leave(self, records: Any) -> None:
        """End an iteration, as the garbage collector does after a `break` or an exception."""
        self.wait(_leave(records))

    def give_up_step(self, _: Patient, records: Any, seconds: float) -> Record | None:
        """Return the next record of an iteration, or None if it was cancelled while it waited."""
        pending = Deferred.fromCoroutine(_next(records))
        results: list[Any] = []
        pending.addBoth(results.append)
        deadline = time.monotonic() + seconds
        while not results and time.monotonic() < deadline:
            self.turn(seconds)
        pending.cancel()
        return None if isinstance(results[0], Failure) else results[0]

    def wait(self, awaited: Deferred[Any] | Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a Deferred or coroutine, or raise its error."""
        pending = awaited if isinstance(awaited, Deferred) else Deferred.fromCoroutine(awaited)
        results: list[Any] = []
        pending.addBoth(results.append)
        deadline = time.monotonic() + WAIT_SECONDS
        while not results:
            assert time.monotonic() < deadline, f"no result within {WAIT_SECONDS:g} s"
            self.turn()
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]

    def turn(self, longest: float = 0.2) -> None:
        """Run one iteration of the reactor."""
        self.reactor.runUntilCurrent()
        timeout = self.reactor.timeout()
        self.reactor.doIteration(longest if timeout is None else min(timeout, longest))

    def close(self) -> None:
        for made in self._made:
            closing = getattr(made, "abandon", made.close)()
            if isinstance(closing, Deferred):
                self.wait(closing)
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.reactor.getReaders()) > 1 and time.monotonic() < deadline:  # all except its own waker
            self.turn()


@cache
def own_reactor() -> Any:
    """A reactor that is not the process's, for all tests: there is no way to start one twice."""
    reactor: Any = EPollReactor()
    reactor.startRunning(installSignalHandlers=False)
    return reactor


class Patient:
    """Stands for an object whose methods may return Deferreds; waits for each of them."""

    def __init__(self, target: Any, face: DeferredFace | AioFace) -> None:
        self.target = target
        self._face = face

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: self._settled(
            found(*[arg.target if isinstance(arg, Patient) else arg for arg in args], **kwargs)
        )

    def _settled(self, value: Any) -> Any:
        if isinstance(value, Deferred | Coroutine):
            value = self._face.wait(value)
        return Patient(value, self._face) if isinstance(value, deferred.Delivery | aio.Delivery) else value


class AioFace:
    """`pylogd.client.aio` as a blocking interface: calls wait for their awaitables."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loop = asyncio.new_event_loop()
        self._made: list[Any] = []

    def producer(self, **options: Any) -> Any:
        return self._make(aio.Producer, **options)

    def consumer(self, **options: Any) -> Any:
        return self._make(aio.Consumer, **options)

    def admin(self, **options: Any) -> Any:
        return self._make(aio.Admin, **options)

    def transaction(self, producer: Any) -> AbstractContextManager[Any]:
        """A transaction of a producer, for `with`."""
        return _waiting(self, producer)

    def _make(self, kind: Callable[..., Any], **options: Any) -> Patient:
        async def make() -> Any:
            return kind(self.address, **options)

        made = self.loop.run_until_complete(make())
        self._made.append(made)
        return Patient(made, self)

    def take(self, records: Any, count: int) -> list[Record]:
        found: list[Record] = self.wait(_take(records, count))
        return found

    def iterate(self, consumer: Patient) -> Any:
        """Begin an iteration over a consumer; its body is what the test does between two calls of `step`."""
        return aiter(consumer.target)

    def step(self, records: Any) -> Record:
        """Return the next record of an iteration."""
        found: Record = self.wait(_next(records))
        return found

    def leave(self, records: Any) -> None:
        """End an iteration, as the garbage collector does after a `break` or an exception."""
        self.wait(_leave(records))

    def give_up_step(self, _: Patient, records: Any, seconds: float) -> Record | None:
        """Return the next record of an iteration, or None if it was cancelled while it waited."""

        async def give_up() -> Record | None:
            try:
                return await asyncio.wait_for(_next(records), seconds)
            except TimeoutError:
                return None

        found: Record | None = self.wait(give_up())
        return found

    def wait(self, awaited: Any) -> Any:
        """Return the result of an awaitable, or raise its error."""
        return self.loop.run_until_complete(asyncio.wait_for(awaited, WAIT_SECONDS))

    def close(self) -> None:
        for made in self._made:
            closing = getattr(made, "abandon", made.close)()
            if inspect.isawaitable(closing):
                self.wait(closing)
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


@contextmanager
def _waiting(face: DeferredFace | AioFace, producer: Patient) -> Iterator[Patient]:
    """The asynchronous context manager of a transaction, for `with`."""
    manager = producer.target.transaction()
    entered = Patient(face.wait(manager.__aenter__()), face)
    try:
        yield entered
    except BaseException as error:
        face.wait(manager.__aexit__(type(error), error, error.__traceback__))
        raise
    face.wait(manager.__aexit__(None, None, None))


async def _take(records: Any, count: int) -> list[Record]:
    """Return the next `count` records of an endless asynchronous iterator."""
    found: list[Record] = []
    async for record in records.target if isinstance(records, Patient) else records:
        found.append(record)
        if len(found) == count:
            break
    return found


async def _next(records: Any) -> Record:
    found: Record = await anext(records)
    return found


async def _leave(records: Any) -> None:
    await records.aclose()


Face = BlockingFace | DeferredFace | AioFace
FACES: dict[str, Callable[[str], Face]] = {"blocking": BlockingFace, "deferred": DeferredFace, "aio": AioFace}


def poll_until(consumers: Iterable[Any], done: Callable[[list[Record]], bool], seconds: float = 120.0) -> list[Record]:
    """Poll consumers in turn until `done` says so of all that came; what came."""
    records: list[Record] = []
    waiting, deadline = list(consumers), time.monotonic() + seconds
    while not done(records):
        assert time.monotonic() < deadline, f"{len(records)} records came in {seconds:g} s, and it is not done"
        for consumer in waiting:
            records += consumer.poll(0.1)
    return records
