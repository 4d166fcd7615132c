"""Bound the memory of large requests that have arrived in part or wait for their turn, over all connections.

Strategy: a connection in the middle of a large request has a `MemoryShare`. Before each further read it asks for the
memory that the read may need. While the bound leaves no room, it is not read from. Requests that began earlier go
first: none gets memory while an older one waits. Should nobody else be receiving, the oldest one that waits continues
in any case, so that a request larger than the room that is left, or than the bound, is served in the end.

The first request that has become large may become as long as it says. So the others leave it room for that, but share
at least a part of the bound (`LEAST_PART`), which a request that does not progress cannot keep from them. Otherwise
many large requests would fill the bound together, and then one of them would go on to its whole length beyond it.

What one read brings of a request is there before anybody can ask. So while memory is scarce, connections read
`LEAST_BYTES` at a time: from when the bound is reached until half of it is free and nobody waits.

Rules: whoever receives too slowly while others wait is closed: once one has waited for `patience` seconds, as many of
the requests that are older than that as it needs, the oldest first. So each that waits gets its turn.

Must not know: frames, transports; `Holder` pauses and resumes a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

from twisted.internet.interfaces import IReactorTime

#: What the next read of a request may always take, if there is room; and any read while memory is scarce.
LEAST_BYTES: Final = 1 << 14


#: A request with this part of the bound is given room for its whole length.
LARGE_PART: Final = 1 / 32
#: The part of the bound that the other requests may take in any case.
LEAST_PART: Final = 1 / 4


class Holder(Protocol):
    """A connection."""

    @property
    def announced_bytes(self) -> int:
        """The length of a request that has arrived in part; 0 if there is none."""

    @property
    def partial_bytes(self) -> int:
        """The memory that a request takes that has arrived in part; 0 if there is none."""

    def pause_reading(self) -> None:
        """Read nothing more from the peer until `resume_reading`."""

    def resume_reading(self) -> None:
        """Continue to read."""

    def cut(self, reason: str) -> None:
        """Close the connection at once."""


class MemoryShare:
    """The part of one connection."""

    __slots__ = ("_holder", "_memory", "began", "charged", "number", "waits_since")

    def __init__(self, memory: RequestMemory, holder: Holder) -> None:
        self._memory = memory
        self._holder = holder
        self.number = 0  # the lower, the older its request; 0 before the first
        self.began = 0.0
        self.charged = 0  # bytes
        self.waits_since: float | None = None

    def extend(self, most: int) -> int:
        """Ask for memory for the next read. Return how many bytes to read, at most `most`; 0 if the connection waits.

        It may read as much as it has received: who has sent little does not keep memory from others.
        """
        held = self._holder.partial_bytes
        more = min(max(held, LEAST_BYTES), most)
        return more if self._memory.extend(self, held, held + more) else 0

    @property
    def most(self) -> int:
        """The memory that the request may come to take."""
        return max(self._holder.announced_bytes, self.charged)

    def chunk(self, most: int) -> int:
        """Return how much one read may bring while no large request is there in part."""
        return min(most, LEAST_BYTES) if self._memory.scarce else most

    def settle(self) -> None:
        """Give the memory back if no request is there in part; call this when none waits."""
        if not self._holder.partial_bytes:
            self._memory.release(self)

    @property
    def receiving(self) -> bool:
        """Whether a request arrives: what of it is there is read further."""
        return self.waits_since is None and bool(self._holder.partial_bytes)

    def release(self) -> None:
        """The request has been answered, or the connection has ended."""
        self._memory.release(self)

    def pause(self) -> None:
        """Wait for memory."""
        self._holder.pause_reading()

    def resume(self) -> None:
        """Go on with the memory that was asked for."""
        self._holder.resume_reading()

    def cut(self, reason: str) -> None:
        """Close the connection; `release` follows when it is lost."""
        self._holder.cut(reason)


class RequestMemory:
    """The memory of all large requests.

    limit: bytes, -1 for no limit. patience: seconds. used: bytes. Both limits may be changed at any time; call
    `check` then. scarce: whether connections should read little at a time. on_scarce: told when that changes.
    """

    def __init__(self, clock: IReactorTime, limit: int = -1, patience: float = 30.0) -> None:
        self.clock = clock
        self.limit = limit
        self.patience = patience
        self.used = 0
        self.scarce = False
        self.on_scarce: Callable[[], object] = lambda: None
        self._numbers = count(1)
        self._shares: dict[MemoryShare, None] = {}  # of requests that are there in part or wait, the oldest first
        self._going: dict[MemoryShare, None] = {}  # of these, those that do not wait
        self._large: dict[MemoryShare, None] = {}  # those that have become large, the first ones first
        self._waiting: dict[MemoryShare, int] = {}  # the bytes wanted
        self._turns: dict[int, MemoryShare] = {}  # those that wait, by number
        self._order: list[int] = []  # a heap of their numbers, and of some that no longer wait

    def share(self, holder: Holder) -> MemoryShare:
        """Return a share for a connection that has begun to receive a large request."""
        return MemoryShare(self, holder)

    @property
    def waiting(self) -> int:
        """How many connections wait."""
        return len(self._waiting)

    def extend(self, share: MemoryShare, held: int, wanted: int) -> bool:
        """Let a share have `wanted` bytes instead of `held`, or have it wait; see `MemoryShare.extend`."""
        if share in self._waiting:
            return False
        if share not in self._shares:
            self._shares[share] = None
            share.number, share.began = next(self._numbers), self.clock.seconds()
            self._going[share] = None
        self._charge(share, held)
        oldest = self._oldest_waiting()
        behind = oldest is not None and oldest.number < share.number
        if (self._fits(share, wanted) and not behind) or not (oldest or self._others_receive(share)):
            self._charge(share, wanted)
            return True
        share.waits_since = self.clock.seconds()
        self._waiting[share] = wanted
        del self._going[share]
        self._turns[share.number] = share
        heappush(self._order, share.number)
        self._look()
        share.pause()
        self._serve()
        return share not in self._waiting

    def release(self, share: MemoryShare) -> None:
        """See `MemoryShare.release`."""
        if self._waiting.pop(share, None) is not None:
            del self._turns[share.number]
            share.waits_since = None
        self._shares.pop(share, None)
        self._going.pop(share, None)
        self._charge(share, 0)
        self._serve()

    def check(self) -> None:
        """Serve those that wait, and cut a slow one if the first has waited for too long. Call this now and then."""
        self._serve()
        self._look()
        if not self._waiting:
            return
        now = self.clock.seconds()
        since = [one.waits_since for one in self._waiting if one.waits_since is not None]
        if now - min(since, default=now) < self.patience:
            return
        first = self._oldest_waiting()
        assert first is not None
        wanted, gone = self._waiting[first], set[MemoryShare]()
        for slow in [one for one in self._shares if one.receiving and now - one.began >= self.patience]:
            if self._fits(first, wanted, gone):
                break
            gone.add(slow)
            slow.cut("others wait for memory (queued.max.request.bytes), and its request has not arrived in "
                     f"{self.patience:.0f} s (request.receive.timeout.ms)")  # fmt: skip

    def _charge(self, share: MemoryShare, size: int) -> None:
        self.used += size - share.charged
        share.charged = size
        if size and 0 <= self.limit * LARGE_PART <= size:
            self._large[share] = None
        else:
            self._large.pop(share, None)
        self._look()

    def _look(self) -> None:
        """Find out whether memory is scarce."""
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

    def _others_receive(self, share: MemoryShare) -> bool:
        return any(one.receiving for one in self._going if one is not share)

    def _fits(self, share: MemoryShare, wanted: int, gone: Set[MemoryShare] = frozenset()) -> bool:
        """Return whether there is room for `wanted` bytes of a request, once those in `gone` are closed."""
        if self.limit < 0:
            return True
        size = self.used - share.charged + wanted - sum(one.charged for one in gone & self._shares.keys())
        if size > self.limit:
            return False
        first = next((one for one in self._large if one not in gone), share)
        room = max(self.limit - first.most, int(self.limit * LEAST_PART))
        return first is share or size - first.charged <= room

    def _oldest_waiting(self) -> MemoryShare | None:
        order = self._order
        while order and order[0] not in self._turns:
            heappop(order)
        return self._turns[order[0]] if order else None

    def _serve(self) -> None:
        """Let those continue whose turn it is."""
        while (share := self._oldest_waiting()) is not None:
            wanted = self._waiting[share]
            if not self._fits(share, wanted) and self._others_receive(share):
                return
            del self._waiting[share], self._turns[share.number]
            self._going[share] = None
            share.waits_since = None
            self._charge(share, wanted)
            share.resume()
