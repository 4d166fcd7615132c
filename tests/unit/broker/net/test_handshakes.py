"""Which connections are closed when too many have not said who they are."""

from __future__ import annotations

import itertools

from twisted.internet.task import Clock

from pylogd.broker.net.handshakes import Handshakes

_ROUND_TRIP = 0.1  # seconds
_MOST = 1000


class Connection:
    """A connection that is told to end. closed: whether it was."""

    closed = False

    def give_up(self, reason: str) -> None:
        self.closed = True


def _beside_a_flood(host: str, flood: list[str], *, known: bool) -> bool:
    """Return whether a client that takes three round trips to authenticate does so while 3,500 connect in a second."""
    clock = Clock()
    handshakes = Handshakes(clock, lambda: (_MOST, 15.0))
    if known:
        first = Connection()
        handshakes.begin(first, host)
        handshakes.end(first, known=True)

    hosts = itertools.cycle(flood)

    def rush(connects: int) -> None:
        for host in itertools.islice(hosts, connects):
            handshakes.begin(Connection(), host)

    rush(2 * _MOST)
    client = Connection()
    handshakes.begin(client, host)
    for _ in range(3):
        rush(int(3500 * _ROUND_TRIP))
        clock.advance(_ROUND_TRIP)
        if not client.closed:
            handshakes.spoke(client)
    return not client.closed


def test_a_client_100_ms_away_authenticates_beside_3500_connects_a_second() -> None:
    assert _beside_a_flood("10.0.0.1", ["10.9.9.9"], known=False)


def test_a_client_at_the_address_of_the_flood_authenticates_if_it_says_something() -> None:
    assert _beside_a_flood("10.9.9.9", ["10.9.9.9"], known=False)


def test_a_known_client_is_not_closed_for_strangers_with_any_number_of_addresses() -> None:
    assert _beside_a_flood("10.0.0.1", [f"10.9.{number >> 8}.{number & 255}" for number in range(5000)], known=True)


def test_connections_that_were_closed_or_lost_leave_nothing_behind() -> None:
    handshakes = Handshakes(Clock(), lambda: (3, 15.0))
    connections = [Connection() for _ in range(5)]
    for one in connections:
        handshakes.begin(one, "::1")
    for one in connections:
        handshakes.end(one)
    assert not len(handshakes) and not handshakes._places._shares
