"""Count how long lagging consumers have waited for busy disks, by client.

A fetch does not say which group its client belongs to, and the broker that coordinates the group is often another one.
So a broker counts by client id, principal and host. A program that shows the counts joins them with the members of a
group, which have the same client id and host.

Rules: at most `MOST_CLIENTS` are kept; the one whose last wait is longest ago is dropped. Totals count all clients.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

MOST_CLIENTS: Final = 1000
WINDOW_SECONDS: Final = 60.0
_STEP_SECONDS: Final = 5.0
_LONGEST_ID: Final = 255  # characters of a client id that count


class Client(NamedTuple):
    """A client that reads.

    principal: the name of the user.
    host: the client's address.
    """

    client_id: str
    principal: str
    host: str


class ThrottledClient(NamedTuple):
    """How long and for what a client has waited.

    recent_seconds: the wait in the last minute.
    total_seconds: the wait since the client is known.
    waits: how often it has waited.
    partition: the partition that it waited for last, as `topic-index`.
    directory: the data directory of that partition.
    disk: the disk below that directory.
    """

    client: Client
    recent_seconds: float
    total_seconds: float
    waits: int
    partition: str
    directory: str
    disk: str


class _Waits:
    """The waits of one client."""

    __slots__ = ("directory", "disk", "partition", "recent", "total", "waits")

    def __init__(self) -> None:
        self.recent: deque[tuple[float, float]] = deque()  # (begin of a step, seconds waited in it)
        self.total = 0.0
        self.waits = 0
        self.partition = self.directory = self.disk = ""

    def add(self, seconds: float, now: float) -> None:
        self.total += seconds
        recent = self.recent
        if recent and now - recent[-1][0] < _STEP_SECONDS:
            recent[-1] = recent[-1][0], recent[-1][1] + seconds
        else:
            recent.append((now, seconds))
        self.forget(now)

    def forget(self, now: float) -> None:
        while self.recent and now - self.recent[0][0] >= WINDOW_SECONDS:
            self.recent.popleft()


class ThrottledClients:
    """The clients that have waited.

    seconds, waits: the totals of all clients, for metrics.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits = 0
        self._clients: OrderedDict[Client, _Waits] = OrderedDict()

    def __len__(self) -> int:
        """How many clients are kept."""
        return len(self._clients)

    def add(self, client: Client, seconds: float, now: float, partition: str, directory: str, disk: str) -> None:
        """Count a wait that has ended, or a part of one.

        now: the time in monotonic seconds.
        """
        client = client._replace(client_id=client.client_id[:_LONGEST_ID])
        waits = self._clients.get(client)
        if waits is None:
            waits = self._clients[client] = _Waits()
            if len(self._clients) > MOST_CLIENTS:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(client)
        waits.add(seconds, now)
        waits.waits += 1
        waits.partition, waits.directory, waits.disk = partition, directory, disk
        self.seconds += seconds
        self.waits += 1

    def list(self, now: float) -> list[ThrottledClient]:
        """Return the clients that waited in the last minute, the one that waited longest first."""
        found = []
        for client, waits in self._clients.items():
            waits.forget(now)
            recent = sum(seconds for _, seconds in waits.recent)
            if recent > 0:
                found.append(
                    ThrottledClient(
                        client, recent, waits.total, waits.waits, waits.partition, waits.directory, waits.disk
                    )
                )
        return sorted(found, key=lambda one: -one.recent_seconds)
