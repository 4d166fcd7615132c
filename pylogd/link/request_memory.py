"""Bound the memory of large requests that have partly arrived or wait for their turn, over all connections.

Strategy: a connection in the middle of a large request has a `MemoryShare`. Before each further read it asks for the
memory that the read may need. While the bound leaves no space, the connection is not read from.

Most requests are small compared with the bound. They share it, the oldest first: none gets memory while an older one
waits. If all requests with memory wait for more, the oldest continues in any case (`_exempt`), until it has arrived.

A *long* request (`LONG_PART` of the bound) may not fit beside others. All long requests together take at most
`LONGS_PART` of the bound. Only the first one that needs more (`_first`) may grow to its full length, once the others
take at most `OTHERS_PART`, or all together fit the bound. The others then share the rest of the bound, at least
`OTHERS_PART`; a long request that does not progress can't keep that from them. So requests take at most the larger of
two sums: the bound, or `OTHERS_PART` of it and one long request; and besides a short request that continues in any
case.

The bytes of one read are in memory before the memory for them can be asked for. So while memory is scarce, connections
read `LEAST_BYTES` at a time: from when the bound is reached until half of it is free and no connection waits.

Rules: a request that keeps memory for too long while others wait is closed. Once the first waiting request has waited
for `patience` seconds, older requests are closed, the oldest first, as many as it needs. So each gets its turn.

Must not know: frames, transports; `Holder` pauses and resumes a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

from twisted.internet.interfaces import IReactorTime

#: The next read of a request may always take this much, if there is space; while memory is scarce, any read may.
LEAST_BYTES: Final = 1 << 14


#: A request with this part of the bound is long.
LONG_PART: Final = 1 / 32
#: The part of the bound that other requests may always take beside the first long one.
OTHERS_PART: Final = 1 / 4
#: The part of this that long requests may take; the rest is for short ones.
LONGS_PART: Final = OTHERS_PART * 3 / 4


class Holder(Protocol):
    """A connection."""

    @property
    def announced_bytes(self) -> int:
        """The length of the request that has partly arrived; 0 without one."""

    @property
    def partial_bytes(self) -> int:
        """The memory used by the request that has partly arrived; 0 without one."""

    def pause_reading(self) -> None:
        """Read nothing more from the peer until `resume_reading`."""

    def resume_reading(self) -> None:
        """Continue to read."""

    def cut(self, reason: str) -> None:
        """Close the connection at once."""


class MemoryShare:
    """The share of one connection."""

    __slots__ = ("_holder", "_memory", "began", "charged", "long", "number", "waits_since")

    def __init__(self, memory: RequestMemory, holder: Holder) -> None:
        self._memory = memory
        self._holder = holder
        self.number = 0  # a lower number means an older request; 0 before the first
        self.began = 0.0
        self.charged = 0  # bytes
        self.long = False
        self.waits_since: float | None = None

    def extend(self, most: int) -> int:
        """Ask for memory for the next read. Return how many bytes to read, at most `most`; 0 if the connection waits.

        A read may bring as many bytes as were received so far: a client that has sent little does not keep memory from
        others.
        """
        held = self._holder.partial_bytes
        more = min(max(held, LEAST_BYTES), most)
        return more if self._memory.extend(self, held, held + more) else 0

    @property
    def most(self) -> int:
        """The most memory that the request may need."""
        return max(self._holder.announced_bytes, self.charged)

    def chunk(self, most: int) -> int:
        """Return how many bytes one read may bring while no large request has partly arrived."""
        return min(most, LEAST_BYTES) if self._memory.scarce else most

    def settle(self) -> None:
        """Give the memory back unless a request has partly arrived. Call this when no request waits."""
        if not self._holder.partial_bytes:
            self._memory.release(self)

    def release(self) -> None:
        """Give the memory back: the request was answered, or the connection has ended."""
        self._memory.release(self)

    def pause(self) -> None:
        """Wait for memory."""
        self._holder.pause_reading()

    def resume(self) -> None:
        """Continue with the requested memory."""
        self._holder.resume_reading()

    def cut(self, reason: str) -> None:
        """Close the connection. `release` follows when it is lost."""
        self._holder.cut(reason)


class _Queue:
    """Shares that wait, the oldest first."""

    __slots__ = ("_order", "_turns")

    def __init__(self) -> None:
        self._turns: dict[int, MemoryShare] = {}  # by number
        self._order: list[int] = []  # a heap of their numbers, and of numbers that no longer wait

    def add(self, share: MemoryShare) -> None:
        self._turns[share.number] = share
        heappush(self._order, share.number)

    def remove(self, share: MemoryShare) -> None:
        """Remove a share, if it is there."""
        self._turns.pop(share.number, None)

    def oldest(self) -> MemoryShare | None:
        """Return the share whose turn it is; None if none waits."""
        order = self._order
        while order and order[0] not in self._turns:
            heappop(order)
        return self._turns[order[0]] if order else None


class RequestMemory:
    """The memory of all large requests.

    limit: the bound in bytes, -1 for no bound. It may be changed at any time; call `check` then.
    patience: how many seconds a request may wait. It may be changed in the same way.
    used: the memory in use, in bytes.
    scarce: whether connections should read little at a time.
    on_scarce: called when `scarce` changes.
    """

    def __init__(self, clock: IReactorTime, limit: int = -1, patience: float = 30.0) -> None:
        self.clock = clock
        self.limit = limit
        self.patience = patience
        self.used = 0
        self.scarce = False
        self.on_scarce: Callable[[], object] = lambda: None
        self._numbers = count(1)
        self._shares: dict[MemoryShare, None] = {}  # shares whose requests partly arrived or wait, the oldest first
        self._going: dict[MemoryShare, None] = {}  # the shares that do not wait
        self._long_used = 0  # bytes of all long requests
        self._first: MemoryShare | None = None  # the long request that may grow to its full length
        self._exempt: MemoryShare | None = None  # the short request that continues in any case
        self._waiting: dict[MemoryShare, int] = {}  # the wanted bytes, by share
        self._short, self._long = _Queue(), _Queue()  # the shares that wait

    def share(self, holder: Holder) -> MemoryShare:
        """Return a share for a connection that has begun to receive a large request."""
        return MemoryShare(self, holder)

    @property
    def waiting(self) -> int:
        """How many connections wait."""
        return len(self._waiting)

    def extend(self, share: MemoryShare, held: int, wanted: int) -> bool:
        """Let a share have `wanted` bytes instead of `held`, or let it wait; see `MemoryShare.extend`."""
        if share in self._waiting:
            return False
        if share not in self._shares:
            self._shares[share] = None
            share.number, share.began = next(self._numbers), self.clock.seconds()
            self._going[share] = None
        self._classify(share)
        self._charge(share, held)
        oldest = self._queue(share).oldest()
        behind = oldest is not None and oldest.number < share.number and share is not self._first
        if not behind and self._fits(share, wanted):
            self._charge(share, wanted)
            return True
        share.waits_since = self.clock.seconds()
        self._waiting[share] = wanted
        del self._going[share]
        self._queue(share).add(share)
        self._look()
        share.pause()
        self._serve()
        return share not in self._waiting

    def release(self, share: MemoryShare) -> None:
        """See `MemoryShare.release`."""
        if self._waiting.pop(share, None) is not None:
            self._queue(share).remove(share)
            share.waits_since = None
        self._shares.pop(share, None)
        self._going.pop(share, None)
        self._charge(share, 0)
        if share is self._first:
            self._first = None
        elif share is self._exempt:
            self._exempt = None
        self._serve()

    def check(self) -> None:
        """Serve waiting requests. If the first has waited for too long, close slow ones. Call this periodically."""
        self._serve()
        self._look()
        for queue in (self._short, self._long):
            if (oldest := queue.oldest()) is not None:
                self._make_room(oldest)

    def _make_room(self, share: MemoryShare) -> None:
        """Close as many connections as needed for a share that has waited for too long."""
        now = self.clock.seconds()
        if share.waits_since is None or now - share.waits_since < self.patience:
            return
        wanted, gone = self._waiting[share], set[MemoryShare]()
        for slow in [one for one in self._shares if one.waits_since is None and now - one.began >= self.patience]:
            if share not in self._waiting or self._fits(share, wanted, gone):
                break
            gone.add(slow)
            slow.cut("others wait for memory (queued.max.request.bytes), and its request has not been received and "
                     f"begun in {self.patience:.0f} s (request.receive.timeout.ms)")  # fmt: skip

    def _classify(self, share: MemoryShare) -> None:
        """Determine whether a request is long."""
        long = 0 <= self.limit * LONG_PART <= share.most
        if long != share.long:
            self._long_used += share.charged if long else -share.charged
            share.long = long

    def _charge(self, share: MemoryShare, size: int) -> None:
        more = size - share.charged
        self.used += more
        if share.long:
            self._long_used += more
        share.charged = size
        self._look()

    def _look(self) -> None:
        """Determine whether memory is scarce."""
        limit = self.limit
        if limit < 0:
            scarce = False
        elif self._waiting or self.used >= limit:
            scarce = True
        elif 2 * self.used <= limit:
            scarce = False
        else:
            return
        if scarce != self.scarce:
            self.scarce = scarce
            self.on_scarce()

    def _queue(self, share: MemoryShare) -> _Queue:
        return self._long if share.long else self._short

    def _fits(self, share: MemoryShare, wanted: int, gone: Set[MemoryShare] = frozenset()) -> bool:
        """Return whether `wanted` bytes of a request fit when the connections in `gone` are closed.

        A long request that does not fit beside other long ones becomes the first if there is none.
        """
        limit = self.limit
        if limit < 0 or share is self._exempt:
            return True
        leave = gone & self._shares.keys()
        others = self.used - share.charged - sum(one.charged for one in leave)
        first = self._first if self._first not in leave else None
        if share.long and share is not first:
            long = self._long_used - share.charged - sum(one.charged for one in leave if one.long)
            if first is not None:
                long -= first.charged
            if long + wanted > limit * LONGS_PART:
                if first is not None:
                    return False
                first = share
                if not gone:
                    self._first = share
        if share is first:
            return others + wanted <= limit or others <= limit * OTHERS_PART
        if first is None:
            return others + wanted <= limit
        room = max(limit - first.most, limit * OTHERS_PART)
        return others + wanted <= limit and others - first.charged + wanted <= room

    def _serve(self) -> None:
        """Continue the connections whose turn it is."""
        while (share := self._next()) is not None:
            wanted = self._waiting.pop(share)
            self._queue(share).remove(share)
            self._going[share] = None
            share.waits_since = None
            self._charge(share, wanted)
            share.resume()

    def _next(self) -> MemoryShare | None:
        """Return the waiting share that may continue now."""
        short, long = self._short.oldest(), self._long.oldest()
        for share in (self._first, short, long):
            if share is not None and share in self._waiting and self._fits(share, self._waiting[share]):
                return share
        if any(one.charged for one in self._going):
            return None  # the requests that take the memory continue, or are closed
        if short is not None:
            self._exempt = short
            return short
        return self._first if self._first in self._waiting else long
