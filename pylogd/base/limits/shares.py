"""Divide what all clients of a listener share. Each address has a share, and known clients go before unknown ones.

`Places` is for what a client holds, such as a connection: if all places are taken, the address that holds most gives
way. `FairWork` is for what a client waits for, such as a thread that checks a password: addresses or principals take
turns.

Rules:
- A share belongs to one IPv4 address, to one IPv6 network of 64 bits, which is what one machine can have, or, if
  clients have authenticated, to one principal.
- An address is known if a client has authenticated from it. Unknown addresses (strangers) give way first, whatever
  their number. But a known address has at most half of the places before strangers. Known addresses have every other
  turn.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")

#: How many addresses are remembered as known.
MOST_KNOWN: Final = 10_000
#: How many calls of each kind may wait.
MOST_WAITING: Final = 1000
_IPV6_SHARE: Final = 64  # bits


class Share(NamedTuple):
    """The share in which something counts.

    known: whether the client has authenticated.
    """

    name: str
    known: bool


#: The share of the broker itself, and of things whose maker is no longer known.
NOBODY: Final = Share("", True)


class Crowded(Exception):
    """Too many calls wait already, and the caller has the largest share of them. Try again later."""


def share_of(host: str) -> str:
    """Return the share of an address: the address itself, or the network of 64 bits of an IPv6 address."""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _IPV6_SHARE), strict=False))
    except ValueError:
        return host


class KnownShares:
    """The shares of addresses from which clients have authenticated. Those not seen for longest are forgotten."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._known: OrderedDict[str, None] = OrderedDict()

    def add(self, share: str) -> None:
        """Note that a client with this share has authenticated."""
        self._known[share] = None
        self._known.move_to_end(share)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def __contains__(self, share: object) -> bool:
        return share in self._known


class _Ranks:
    """Tells which share has most. A change by 1 takes constant time.

    most: how many the largest share has.
    """

    def __init__(self) -> None:
        self._with: dict[int, OrderedDict[str, None]] = {}  # shares, by how many they have
        self.most = 0

    def move(self, share: str, before: int, now: int) -> None:
        """Note that a share now has `now`, and had `before`."""
        if before == now:
            return
        if before:
            del self._with[before][share]
            if not self._with[before]:
                del self._with[before]
        if now:
            self._with.setdefault(now, OrderedDict())[share] = None
        if now > self.most:
            self.most = now
        elif self.most not in self._with:
            self.most = now if now == self.most - 1 else max(self._with, default=0)

    def largest(self) -> str:
        """Return the share that has most. If there are several, return the one that has had this many for longest."""
        return next(iter(self._with[self.most]))


class _Held(Generic[T]):
    """The holders of one share, with their weights, the oldest first.

    silent: the holders that have sent nothing.
    spoken: the other holders.
    weight: the weight of all of them.
    """

    __slots__ = ("known", "silent", "spoken", "weight")

    def __init__(self, known: bool) -> None:
        self.known = known
        self.weight = 0
        self.silent: OrderedDict[T, int] = OrderedDict()
        self.spoken: OrderedDict[T, int] = OrderedDict()


class Places(Generic[T]):
    """The holders of places, by share. The owner bounds their number, and asks who gives way when it is reached.

    The order of giving way: strangers before known clients, the share with most before others, silent holders before
    those that have sent something, and the oldest of these. If places differ in size, each has a weight, and the share
    with the largest sum of weights has most.

    weight: the weight of all places.
    """

    def __init__(self) -> None:
        self.weight = 0
        self._shares: dict[str, _Held[T]] = {}
        self._of: dict[T, str] = {}
        self._strangers, self._known = _Ranks(), _Ranks()

    def __len__(self) -> int:
        return len(self._of)

    def enter(self, one: T, share: str, *, known: bool = False, weight: int = 1) -> None:
        """Give a place.

        known: whether the share belongs to a known client.
        """
        held = self._shares.get(share)
        if held is None:
            held = self._shares[share] = _Held(known)
        self._of[one] = share
        held.silent[one] = weight
        self._grow(share, held, weight)

    def weigh(self, one: T, weight: int) -> None:
        """Change the weight of a holder."""
        share = self._of[one]
        held = self._shares[share]
        places = held.silent if one in held.silent else held.spoken
        self._grow(share, held, weight - places[one])
        places[one] = weight

    def share(self, one: T) -> str | None:
        """Return the share in which a holder has its place; None if it has none."""
        return self._of.get(one)

    def spoke(self, one: T) -> None:
        """Note that a holder has sent something valid. Nothing happens if it has no place."""
        share = self._of.get(one)
        held = None if share is None else self._shares[share]
        if held is not None and one in held.silent:
            held.spoken[one] = held.silent.pop(one)

    def fell_silent(self, one: T) -> None:
        """Note that a holder has had an answer, and has sent nothing since."""
        share = self._of.get(one)
        held = None if share is None else self._shares[share]
        if held is not None and one in held.spoken:
            held.silent[one] = held.spoken.pop(one)

    def leave(self, one: T) -> bool:
        """Take a place back. Return False if there was none."""
        share = self._of.pop(one, None)
        if share is None:
            return False
        held = self._shares[share]
        self._grow(share, held, -(held.silent if one in held.silent else held.spoken).pop(one))
        if not held.silent and not held.spoken:
            del self._shares[share]
        return True

    def gives_way(self) -> T:
        """Return the holder that gives way to a newcomer, which already has a place. There must be a holder."""
        ranks = self._known if not self._strangers.most or self._most_is_half() else self._strangers
        held = self._shares[ranks.largest()]
        return next(iter(held.silent or held.spoken))

    def share_that_gives_way(self, share: Share, weight: int = 1) -> str | None:
        """Return the share that gives way to a newcomer, which has no place yet; None if there is none.

        A share gives way to a larger one only if strangers give way to a known client. So two shares don't take places
        from each other over and over.

        weight: the newcomer's weight.
        """
        held = self._shares.get(share.name)
        own = 0 if held is None else held.weight
        if share.known:
            before_strangers = self._strangers.most > 0 and 2 * own <= self.weight
            ranks = self._strangers if before_strangers else self._known
        else:
            before_strangers = False
            ranks = self._known if self._most_is_half() else self._strangers
        return ranks.largest() if ranks.most and (before_strangers or ranks.most > own + weight) else None

    def of(self, share: str) -> Iterator[T]:
        """Iterate over the holders of a share: first the silent ones, then the others.

        Both begin with the holder that came first.
        """
        held = self._shares.get(share)
        return iter(()) if held is None else chain(held.silent, held.spoken)

    def _most_is_half(self) -> bool:
        """Return whether a known share has more than half of all places. Then strangers need not give way before it."""
        return 2 * self._known.most > self.weight

    def _grow(self, share: str, held: _Held[T], by: int) -> None:
        before, held.weight = held.weight, held.weight + by
        self.weight += by
        (self._known if held.known else self._strangers).move(share, before, held.weight)


class _Job(NamedTuple):
    deferred: Deferred[Any]
    wanted: Callable[[], bool]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Turns(Generic[T]):
    """Waiting jobs, by share. The shares take turns.

    count: how many jobs wait.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()  # the share whose turn it is comes first
        self._ranks = _Ranks()
        self.count = 0

    def add(self, share: str, job: T) -> None:
        """Add a job."""
        jobs = self._waiting.setdefault(share, deque())
        jobs.append(job)
        self.count += 1
        self._ranks.move(share, len(jobs) - 1, len(jobs))

    def has_most(self, share: str) -> bool:
        """Return whether no share has more jobs."""
        return len(self._waiting.get(share, ())) >= self._ranks.most

    def next(self) -> T:
        """Remove and return the job whose turn it is."""
        share, jobs = self._waiting.popitem(last=False)
        job = jobs.popleft()
        self._removed(share, jobs)
        if jobs:
            self._waiting[share] = jobs
        return job

    def drop(self) -> T:
        """Remove the newest job of the share that has most."""
        share = self._ranks.largest()
        jobs = self._waiting[share]
        job = jobs.pop()
        self._removed(share, jobs)
        if not jobs:
            del self._waiting[share]
        return job

    def _removed(self, share: str, jobs: deque[T]) -> None:
        self.count -= 1
        self._ranks.move(share, len(jobs) + 1, len(jobs))


class FairWork:
    """Calls in a few threads, for which clients wait. Shares take turns.

    Calls for credentials that were right before go first, and have a thread for themselves if there are several. Every
    second of the other turns is for known addresses. If the queue is full, the newest call of the largest share is
    dropped, so nobody is turned away because of others.

    known: the addresses from which clients have authenticated.
    """

    def __init__(
        self, call: Callable[..., Deferred[Any]], threads: int, most_waiting: int = MOST_WAITING, *,
        for_remembered: int = 1,
    ) -> None:  # fmt: skip
        """Make the calls.

        call: calls a function in a thread.
        threads: how many calls run at a time.
        most_waiting: how many calls may wait, for each of: remembered credentials, known addresses, strangers.
        for_remembered: how many of several threads are for remembered credentials only.
        """
        self.known = KnownShares()
        self._call = call
        self._threads = threads
        self._for_others = max(threads - for_remembered, 1)
        self._most = most_waiting
        self._remembered, self._of_known, self._of_strangers = self._queues = (
            Turns[_Job](),
            Turns[_Job](),
            Turns[_Job](),
        )
        self._strangers_turn = False
        self._running = self._running_for_others = 0

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return sum(queue.count for queue in self._queues)

    def run(
        self, share: str, function: Callable[..., Any], *arguments: Any, remembered: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Deferred[Any]:  # fmt: skip
        """Call a function in a thread when it is the share's turn. The Deferred fails with Crowded if too many wait.

        remembered: whether the call is for credentials that were right before.
        wanted: called when it is the call's turn. If it returns False, since the client has left, the function is not
            called, and the Deferred never fires.
        """
        deferred: Deferred[Any] = Deferred()
        queue = self._remembered if remembered else self._of_known if share in self.known else self._of_strangers
        job = _Job(deferred, wanted, function, arguments)
        if queue.count >= self._most:
            if queue.has_most(share):
                deferred.errback(Failure(Crowded("too many wait")))
                return deferred
            queue.drop().deferred.errback(Failure(Crowded("too many wait")))
        queue.add(share, job)
        self._start()
        return deferred

    def _start(self) -> None:
        while self._running < self._threads:
            queue = self._next_queue()
            if queue is None:
                return
            other = queue is not self._remembered
            job = queue.next()
            if job.wanted():
                self._running += 1
                self._running_for_others += other
                self._call(job.function, *job.arguments).addBoth(self._ended, job.deferred, other)

    def _next_queue(self) -> Turns[_Job] | None:
        if self._remembered.count:
            return self._remembered
        known, strangers = self._of_known, self._of_strangers
        if self._running_for_others >= self._for_others or not (known.count or strangers.count):
            return None
        self._strangers_turn = bool(strangers.count) and (self._strangers_turn or not known.count)
        queue = strangers if self._strangers_turn else known
        self._strangers_turn = not self._strangers_turn
        return queue

    def _ended(self, result: Any, deferred: Deferred[Any], other: bool) -> None:
        self._running -= 1
        self._running_for_others -= other
        # Before the next call is chosen, since this client may continue with another one.
        if isinstance(result, Failure):
            deferred.errback(result)
        else:
            deferred.callback(result)
        self._start()
