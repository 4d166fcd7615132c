"""Drive a `Network` in the producer's thread.

`turn` carries out the network's effects, and waits for sockets, for `wakeup` or for the next deadline.
"""

from __future__ import annotations

from pylogd.client.blocking.clock import Clock
from pylogd.client.blocking.sockets import Sockets
from pylogd.client.core.effects import Close, Open, Work, Write
from pylogd.client.core.network import Network
from pylogd.client.evented.worker import work


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
