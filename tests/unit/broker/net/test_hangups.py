"""A peer that closes its connection while the broker does not read from it."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.protocol import Protocol
from zope.interface.verify import verifyObject

from pylogd.broker.net.hangups import HangupWatch
from tests.fakes.transport import ManualReactor, PairTransport


class Aborts:
    """A transport that knows whether it was aborted."""

    def __init__(self, reactor: ManualReactor) -> None:
        self.pair: Any = PairTransport(Protocol(), reactor)
        self.aborted = 0

    def fileno(self) -> int:
        return int(self.pair.fileno())

    def abortConnection(self) -> None:
        self.aborted += 1


def test_only_those_that_have_gone_are_aborted_and_only_once() -> None:
    reactor = ManualReactor()
    watch = HangupWatch(reactor)
    verifyObject(IReadDescriptor, watch)
    gone, there = Aborts(reactor), Aborts(reactor)
    for transport in (gone, there):
        watch.watch(transport)
    there.pair.peer.send(b"a request that is not read yet")
    watch.doRead()
    gone.pair.peer.close()
    watch.doRead()
    watch.doRead()
    assert (gone.aborted, there.aborted) == (1, 0)
    watch.close()


def test_a_connection_that_is_read_again_is_not_watched() -> None:
    reactor = ManualReactor()
    watch = HangupWatch(reactor)
    transport = Aborts(reactor)
    watch.watch(transport)
    watch.unwatch(transport)
    transport.pair.peer.close()
    watch.doRead()
    assert not transport.aborted
    watch.close()


def test_a_descriptor_that_was_closed_and_given_out_again() -> None:
    reactor = ManualReactor()
    watch = HangupWatch(reactor)
    first = Aborts(reactor)
    watch.watch(first)
    first.pair.socket.close()
    watch.unwatch(first)
    second = Aborts(reactor)
    watch.watch(second)
    second.pair.peer.close()
    watch.doRead()
    assert (first.aborted, second.aborted) == (0, 1)
    watch.close()


def test_no_descriptor_is_watched_before_it_is_needed() -> None:
    reactor = ManualReactor()
    watch = HangupWatch(reactor)
    assert watch.fileno() == -1
    watch.unwatch(Aborts(reactor))
    watch.close()
    assert watch not in reactor.readers
