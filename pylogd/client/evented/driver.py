"""Drive machines of the core on an event loop: send their calls, keep time, report answers.

Strategy: `turn` of a machine (a producer, a consumer, a group member) returns the requests to send, and `next_time`
returns when to call `turn` again. After each event of a connection all machines get a turn, so that requests that an
answer makes possible are sent at once; then `settle` wakes waiting callers. One timer serves all machines.

Rules: everything runs on the loop's thread. Turns do not nest: an event during a turn causes another turn after it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from pylogd.base.errors import PylogdError
from pylogd.client.core.call import Call
from pylogd.client.core.effects import Close, Open, Work, Write
from pylogd.client.core.errors import Closed, TlsFailed
from pylogd.client.core.link import Link, LinkState
from pylogd.client.core.network import Network
from pylogd.client.evented.loop import Loop, Timer, in_thread, work

_MOST_ROUNDS = 100  # the most rounds of one turn; with more, a request fails again and again


class Machine(Protocol):
    """A part of a client that decides, without I/O."""

    def turn(self, now: float) -> list[Call]:
        """Do the due work, and return the requests to send."""
        ...

    def next_time(self, now: float) -> float | None:
        """Return when to call `turn`, unless an event comes first."""
        ...

    def settle(self) -> None:
        """Wake callers whose event has happened."""
        ...

    def reset(self) -> None:
        """Drop all requests in flight: the connections are closed, and no answer will arrive."""
        ...


class Phase(Enum):
    """What a driver does now."""

    IDLE = "Waits for an event or its timer."
    TURNING = "Takes a turn. An event causes another round."
    INTERRUPTED = "An exception from outside has ended a turn: the next turn begins with `recover`."
    CLOSED = "Has closed all connections, and does nothing more."


# A plain assignment changes the phase: a signal handler may raise in any call, also in one of a `MachineTable`, and the
# driver would stay in its turn for ever.
_IDLE: Phase = Phase.IDLE
_TURNING: Phase = Phase.TURNING
_INTERRUPTED: Phase = Phase.INTERRUPTED
_CLOSED: Phase = Phase.CLOSED


class Driver:
    """The machines of one client on one network."""

    def __init__(self, network: Network, loop: Loop) -> None:
        """Nothing is driven yet."""
        self.network = network
        self.loop = loop
        self._machines: list[Machine] = []
        self._unopened: list[Link] = []  # links that wait for certificates and keys to be read
        self._timer: Timer | None = None
        self._wakes_at = 0.0
        self._turned_at = float("-inf")  # the time of the last turn: later work is not done yet
        self._phase = _IDLE
        self._again = False  # whether the present turn needs another round

    @property
    def closed(self) -> bool:
        """Whether all connections are closed, for good."""
        return self._phase is _CLOSED

    @property
    def turning(self) -> bool:
        """Whether a turn is in progress."""
        return self._phase is _TURNING

    def add(self, machine: Machine) -> None:
        """Drive a machine from now on."""
        self._machines.append(machine)

    def remove(self, machine: Machine) -> None:
        """Stop driving a machine."""
        if machine in self._machines:
            self._machines.remove(machine)

    def close(self, error: PylogdError | None = None) -> None:
        """Close all connections, and do nothing more."""
        if self._phase is _CLOSED:
            return
        self._phase = _CLOSED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.network.close(error or Closed("the client is closed"), self.loop.now())
        self._perform()
        for machine in list(self._machines):
            machine.settle()

    def send(self, call: Call) -> None:
        """Send one request."""
        self.network.send(call, self.loop.now())
        self.soon()

    def recover(self) -> None:
        """Close the connections and start again, after an exception from outside (Ctrl-C) has interrupted a turn."""
        if self._phase is not _CLOSED:
            self._phase = _IDLE
        now = self.loop.now()
        for link in self.network.links:
            self.network.abandon_link(link, now)
        self._perform()
        for machine in list(self._machines):
            machine.reset()
        self.soon()

    def soon(self) -> None:
        """Take a turn once the running code has returned."""
        if self._phase is _TURNING:
            self._again = True
        elif self._phase is not _CLOSED:
            self._wake_at(self.loop.now())

    def turn(self) -> None:
        """Give every machine a turn, and set the timer for the next due work."""
        if self._phase is _CLOSED or self._phase is _TURNING:
            self._again = True
            return
        if self._phase is _INTERRUPTED:
            self.recover()
        self._phase = _TURNING
        try:
            for _ in range(_MOST_ROUNDS):
                self._again = False
                now = self._turned_at = self.loop.now()
                if self._timer is not None and self._wakes_at <= now:
                    self._timer.cancel()
                    self._timer = None
                self.network.tick(now)
                for machine in list(self._machines):
                    for call in machine.turn(now):
                        self.network.send(call, now)
                        self._again |= not call.sent  # the call may have failed
                self._perform()
                for machine in list(self._machines):
                    machine.settle()
                if not self._again or self._phase is _CLOSED:
                    break
        except BaseException:
            if self._phase is _TURNING:
                self._phase = _INTERRUPTED
            raise
        if self._phase is _TURNING:
            self._phase = _IDLE
            self._set_timer()

    def _set_timer(self) -> None:
        now = self.loop.now()
        times = [self.network.next_time(), *(machine.next_time(self._turned_at) for machine in self._machines)]
        due = min((time for time in times if time is not None), default=None)
        if self._again:
            due = now
        if due is not None:
            self._wake_at(due)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            if self._wakes_at <= when:
                return
            self._timer.cancel()
        self._wakes_at = when
        self._timer = self.loop.later(max(0.0, when - self.loop.now()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.turn()

    def _perform(self) -> None:
        """Carry out the effects that the network has asked for."""
        effects = self.network.effects
        while effects:
            effect = effects.popleft()
            link = effect.link
            if isinstance(effect, Write):
                if link.transport is not None:
                    link.transport.write(effect.parts)
            elif isinstance(effect, Open):
                self._open(link)
            elif isinstance(effect, Work):
                work(effect, self._from_thread, self.loop.now)
            elif isinstance(effect, Close) and link.transport is not None:
                link.transport.close()
        if self.network.written:
            self.network.count_written(self.loop.now())
            self._again = True

    def _open(self, link: Link) -> None:
        """Open a connection. For the first one with TLS, a thread reads certificates and keys before."""
        read = self.loop.tls_reader(link)
        if read is None:
            link.transport = self.loop.open(link, link.connect_timeout, self.turn)
            return
        self._unopened.append(link)
        if len(self._unopened) == 1:
            in_thread(read, self._tls_was_read, self._from_thread)

    def _tls_was_read(self, found: Any, error: BaseException | None) -> None:
        self.network.tls = found
        links, self._unopened = self._unopened, []
        for link in links:
            if link.state is not LinkState.CONNECTING:
                continue  # the link was closed meanwhile
            if error is None:
                self._open(link)
            else:
                link.lost(error if isinstance(error, PylogdError) else TlsFailed(str(error)), self.loop.now())

    def _from_thread(self, report: Callable[[], None]) -> None:
        def call() -> None:
            report()
            self.turn()

        self.loop.from_thread(call)
