"""The broker as a Twisted service, for `twistd pylogd`. `pylogd.broker.tap` has the command line."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.base.process.shell import process_reactor
from pylogd.broker.process.broker import BrokerShell
from pylogd.config import Settings

log = Logger()

#: How many bytes of an error go to twistd's parent process. It reads 100, of which the status, "1 ", takes two.
_MOST_OF_AN_ERROR: Final = 98


class BrokerService(Service):
    """The broker as a Twisted service. If it can't start or continue, it logs the reason; the exit status is 1."""

    def __init__(self, settings: Settings, reopen_log: Callable[[], object] | None = None, twistd: Any = None) -> None:
        """`reopen_log` reopens the log file, on SIGHUP. twistd: the options of twistd, a mapping."""
        self._settings = settings
        self._reopen_log = reopen_log
        self._twistd = twistd
        self._shell: _TwistdShell | None = None

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]
        reactor = process_reactor()
        self._shell = shell = _TwistdShell(reactor, self._settings, reopen_log=self._reopen_log)
        shell.parent = parent = _WaitingParent.of(self._twistd)
        shell.announce = lambda _line: parent.tell("")
        reactor.callWhenRunning(shell.handle_signals)
        shell.start()

    def stopService(self) -> Deferred[None] | None:
        super().stopService()  # type: ignore[no-untyped-call]
        return None if self._shell is None else self._shell.stop()


class _WaitingParent:
    """The process that ran `twistd` in the foreground, and waits to hear how the daemon's start went.

    twistd itself would tell it before the broker has started, and its exit status would be 0 whatever happens then.
    """

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe

    @classmethod
    def of(cls, twistd: Any) -> _WaitingParent:
        """Take the pipe from twistd's options, so that it does not write to it."""
        pipe = None if twistd is None else twistd.get("statusPipe")
        if pipe is not None:
            twistd["statusPipe"] = None
        return cls(pipe)

    def tell(self, error: str) -> None:
        """Say once that the broker serves, or why not. The parent ends with 0 or, after the error, 1."""
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        message = b"0" if not error else b"1 " + error.encode()[:_MOST_OF_AN_ERROR]
        with suppress(OSError):  # the parent was killed
            os.write(pipe, message)
        os.close(pipe)


class _TwistdShell(BrokerShell):
    parent = _WaitingParent(None)

    def end(self, reason: str) -> None:
        self.parent.tell(reason)
        log.critical("{reason}", reason=reason)
        if self.reason is None:
            atexit.register(os._exit, 1)  # twistd itself would exit with 0, and a service manager would believe it
        super().end(reason)
