"""Requests to other brokers: one connection to each, opened when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from pylogd.base.errors import BrokerUnavailable
from pylogd.broker.transactions.links import BrokerLinks
from tests.fakes.metadata import result_of


class FakeLink:
    """A connection that answers with its number and the message."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = False
        self.timeouts: list[float | None] = []

    def request(self, message: Any, *, timeout: float | None = None) -> Deferred[Any]:
        self.timeouts.append(timeout)
        return succeed((self.number, message))

    def close(self) -> None:
        self.closed = True


class Brokers:
    """Opens connections. wait: keep them until the test completes them."""

    def __init__(self) -> None:
        self.links: list[FakeLink] = []
        self.wait = False
        self.opening: list[Callable[[], object]] = []
        self.asked = BrokerLinks(1, self._connect, lambda message: ("own", message), lambda: 7.0)

    def _connect(self, node_id: int) -> Deferred[FakeLink]:
        if node_id == 9:
            return fail(BrokerUnavailable("broker 9 is not registered"))
        link = FakeLink(len(self.links))
        self.links.append(link)
        opened: Deferred[FakeLink] = Deferred()
        self.opening.append(lambda: opened.callback(link))
        if not self.wait:
            self.open()
        return opened

    def open(self) -> None:
        opening, self.opening = self.opening, []
        for one in opening:
            one()


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_a_request_to_this_broker_needs_no_connection(brokers: Brokers) -> None:
    assert result_of(brokers.asked.ask(1, "a")) == ("own", "a")
    assert brokers.links == []


def test_a_connection_is_used_until_it_ends(brokers: Brokers) -> None:
    assert [result_of(brokers.asked.ask(node, "a")) for node in (2, 2, 3)] == [(0, "a"), (0, "a"), (1, "a")]
    brokers.links[0].closed = True
    assert result_of(brokers.asked.ask(2, "b")) == (2, "b")
    assert brokers.links[2].timeouts == [7.0]


def test_two_requests_that_connect_at_once_share_the_first_connection(brokers: Brokers) -> None:
    brokers.wait = True
    first, second = brokers.asked.ask(2, "a"), brokers.asked.ask(2, "b")
    brokers.open()
    assert [result_of(first), result_of(second)] == [(0, "a"), (0, "b")]
    assert [link.closed for link in brokers.links] == [False, True]


def test_a_broker_that_can_not_be_reached(brokers: Brokers) -> None:
    with pytest.raises(BrokerUnavailable, match="not registered"):
        result_of(brokers.asked.ask(9, "a"))


def test_connections_are_closed_at_a_stop(brokers: Brokers) -> None:
    result_of(brokers.asked.ask(2, "a"))
    brokers.wait = True
    late = brokers.asked.ask(3, "a")
    brokers.asked.stop()
    brokers.open()
    with pytest.raises(BrokerUnavailable, match="is stopping"):
        result_of(late)
    with pytest.raises(BrokerUnavailable, match="is stopping"):
        result_of(brokers.asked.ask(1, "a"))
    assert all(link.closed for link in brokers.links)
