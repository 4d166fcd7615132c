"""Have Twisted's epoll reactor handle what sockets have ready with fewer steps, and without a log context for each.

Strategy: Twisted enters a context for each ready socket, from which its older log functions take the name of the
protocol. pylogd's own lines name their connection themselves. The context costs 2 us a request on a machine that
answers one in 10 to 30. So the reactor of a pylogd process gets a step that does the rest of what Twisted's does. A
socket that has bytes to read, and nothing else, mostly is what is ready: it is read at once. Everything else goes to
Twisted's function for all events.

Rules: only a reactor of exactly Twisted's class that has the parts used here is changed; any other, such as that of a
later Twisted, keeps its own step.
"""

from __future__ import annotations

import errno
import select
from functools import partial
from typing import Any

from twisted.logger import Logger

log = Logger()

#: What Twisted's reactor keeps to itself, and its step uses.
_PARTS = ("_poller", "_selectables", "_doReadOrWrite", "_disconnectSelectable")
_READABLE: int = getattr(select, "EPOLLIN", 0)  # other systems have no epoll


def poll_without_log_context(reactor: Any) -> None:
    """Replace the step in which a reactor waits for sockets and handles them, if it is Twisted's epoll reactor."""
    try:
        from twisted.internet.epollreactor import EPollReactor  # noqa: PLC0415 - other systems have no epoll
    except ImportError:
        return
    kind: type = type(reactor)
    if kind is EPollReactor and all(hasattr(reactor, part) for part in _PARTS):
        reactor.doIteration = partial(_poll, reactor)


def _poll(reactor: Any, timeout: float | None) -> None:
    """Wait at most `timeout` seconds, None for no limit, for sockets that are ready, and handle them."""
    selectables = reactor._selectables
    try:
        ready = reactor._poller.poll(-1 if timeout is None else timeout, len(selectables))
    except OSError as error:
        if error.errno == errno.EINTR:
            return
        raise
    handle = reactor._doReadOrWrite
    for fd, event in ready:
        selectable = selectables.get(fd)
        if selectable is None:  # one before has closed it
            continue
        try:
            if event != _READABLE:
                handle(selectable, fd, event)
                continue
            try:
                reason = selectable.doRead()
            except BaseException as error:  # as Twisted does: it must not end the process
                log.failure("Unexpected error while reading from a socket")
                reactor._disconnectSelectable(selectable, error, False)
            else:
                if reason:
                    reactor._disconnectSelectable(selectable, reason, True)
        except Exception:
            log.failure("Unexpected error while handling a socket")
