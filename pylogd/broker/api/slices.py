"""Build large answers without holding up the reactor: in slices, and encoded in a thread.

Strategy: a handler whose work depends on the size of the request is written as a generator of steps. Each step yields
about how many bytes it added to the answer. Nearly all answers are complete within the first slice and are returned at
once. The steps of a longer answer continue in later turns of the reactor, between which other connections are served.
Its encoding, which takes as long as building it, is done in a thread. Later requests on the same connection wait, as
after any Deferred.

Between slices the garbage collector is called if many objects are new (`search_young`).

Rules: other requests run between two slices, so steps must not rely on state that they may change.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred

from pylogd.base.clock import timed
from pylogd.base.limits.answers import AnswerBudget
from pylogd.broker.api.context import RequestContext
from pylogd.wire import schema

R = TypeVar("R")
T = TypeVar("T")

#: A slice ends after this many bytes of the answer, or this many steps; either takes some 10 ms.
SLICE_BYTES: Final = 1 << 17
SLICE_STEPS: Final = 4000
_PACE_STEPS = 50  # the steps of a slice in loops whose steps are slower, since they change something
_SEARCH_STEPS = 1000  # how many steps of such loops are between two calls of `search_young`
#: Collect garbage once this many objects were made since the last collection. The collector's own threshold counts
#: objects made minus objects freed (`process.tuning`): a loop that replaces objects makes 100,000 before it is reached,
#: and the collection then takes 60 ms.
_YOUNG_OBJECTS: Final = 15_000


def answer_budget(context: RequestContext) -> AnswerBudget:
    """Return the budget of one answer."""
    return AnswerBudget(context.broker.settings.integer("response.max.bytes"))


def in_slices(
    context: RequestContext,
    api_key: int,
    steps: Iterator[int],
    response: R,
    finish: Callable[[], Deferred[Any] | None] = lambda: None,
) -> R | Deferred[Any]:
    """Run the steps that fill `response`. Return it, or a Deferred of its encoding if they take more than a slice.

    finish: called after the last step; returns a Deferred if there is more to wait for.
    """
    if not _run_slice(steps):
        return Deferred.fromCoroutine(_continue(context, api_key, steps, response, finish))
    waits = finish()
    return response if waits is None else waits.addCallback(lambda _: response)


def fill(results: list[R], items: Iterable[T], make: Callable[[T], R | None], work: int) -> Iterator[int]:
    """Yield steps that add the result of `make` for each item to `results`, unless it is None.

    work: the work for one item, as bytes of an answer whose encoding takes as long.
    """
    for item in items:
        made = make(item)
        if made is not None:
            results.append(made)
        yield work


async def _continue(
    context: RequestContext,
    api_key: int,
    steps: Iterator[int],
    response: Any,
    finish: Callable[[], Deferred[Any] | None],
) -> bytes:
    await _run_rest(context, steps)
    waits = finish()
    if waits is not None:
        await waits
    return await encode_in_thread(context, api_key, response)


def in_steps(context: RequestContext, steps: Iterator[int], finish: Callable[[], R]) -> R | Deferred[R]:
    """Run steps that encode an answer piece by piece, then return the result of `finish`.

    Returns a Deferred of it if the steps take more than a slice.
    """
    return finish() if _run_slice(steps) else Deferred.fromCoroutine(_finish_later(context, steps, finish))


async def _finish_later(context: RequestContext, steps: Iterator[int], finish: Callable[[], R]) -> R:
    await _run_rest(context, steps)
    return finish()


async def _run_rest(context: RequestContext, steps: Iterator[int]) -> None:
    """Run the steps after the first slice, in later turns of the reactor."""
    await next_turn(context)
    run_slice = timed(_run_slice)
    while not run_slice(steps):
        await next_turn(context)
        search_young()


async def encode_in_thread(context: RequestContext, api_key: int, response: Any) -> bytes:
    """Return the encoded response. This is for a large response that nothing else uses."""
    encoded: bytes = await context.broker.in_thread(_encode, api_key, context.version, response)
    return encoded


def _run_slice(steps: Iterator[int]) -> bool:
    """Run the steps of one slice. Return whether none is left."""
    size = 0
    for count, added in enumerate(steps, 1):
        size += added
        if size >= SLICE_BYTES or count >= SLICE_STEPS:
            return False
    return True


class Pace:
    """Gives other connections their turn in a loop over the elements of a request: await `step` for each element."""

    __slots__ = ("_context", "steps")

    def __init__(self, context: RequestContext) -> None:
        """steps: how many steps were made."""
        self._context = context
        self.steps = 0

    async def step(self) -> None:
        """Wait for the reactor's next turn, after every so many calls."""
        self.steps += 1
        if self.steps % _PACE_STEPS == 0:
            await next_turn(self._context)
            if self.steps % _SEARCH_STEPS == 0:
                search_young()


def search_young() -> None:
    """Run a garbage collection of the youngest generation if many objects were made since the last one."""
    if len(gc.get_objects(generation=0)) >= _YOUNG_OBJECTS:
        gc.collect(1)


def next_turn(context: RequestContext) -> Deferred[None]:
    """Return a Deferred that fires in the reactor's next turn. It may be cancelled."""
    turn: Deferred[None] = Deferred(lambda _: call.cancel())
    call = context.broker.clock.callLater(0, turn.callback, None)
    return turn


def _encode(api_key: int, version: int, response: Any) -> bytes:
    (encoded,) = schema.response_codec(api_key, version).encode(response)
    assert isinstance(encoded, bytes)
    return encoded
