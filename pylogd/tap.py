"""`twistd pylogd`: options and makeService. Wiring only; the broker is in `pylogd.broker`."""

# ruff: noqa: PLC0415 - whoever imports the reactor installs it: only what runs a broker may
from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import ILogObserver, Logger, textFileLogObserver
from twisted.python import usage
from twisted.python.failure import Failure
from twisted.python.logfile import LogFile

from pylogd.broker import Broker
from pylogd.clock import use_monotonic_time
from pylogd.config import ConfigError, Settings
from pylogd.daemon import bridge_logging, describe, explain_failure, hurry_when_asked_again, notify_ready
from pylogd.reload import Reloader

log = Logger()


class RotatedFile(LogFile):
    """twistd's log file, which rotates itself, and can be opened anew after another program has moved it away."""

    def reopen(self) -> None:
        """Go on in the file that has the name now, which is made if need be. Raises OSError; then it stays the old."""
        with open(self.path, "ab"):  # `LogFile` would be left with none if it can't open that
            super().reopen()  # type: ignore[no-untyped-call]


class TwistdLog:
    """The log file of the process, if twistd logs to one. `path`: where, before it is open."""

    def __init__(self) -> None:
        self.path = ""
        self.file: RotatedFile | None = None

    def observer(self) -> ILogObserver:
        """Open the file; return the observer that writes to it. SIGUSR1 rotates it, as twistd itself has it."""
        self.file = file = RotatedFile.fromFullPath(self.path)  # type: ignore[no-untyped-call]
        if signal.getsignal(signal.SIGUSR1) in (None, signal.SIG_DFL):
            from twisted.internet import reactor

            main: Any = reactor
            signal.signal(signal.SIGUSR1, lambda *_: main.callFromThread(file.rotate))
        return textFileLogObserver(file)

    def reopen(self) -> None:
        """Open the file anew, if there is one. Raises OSError."""
        if self.file is not None:
            self.file.reopen()


LOG = TwistdLog()


class Options(usage.Options):
    """The command line of `twistd pylogd`; the same names as `pylogd broker`."""

    synopsis = "[--config FILE] [--listen HOST:PORT] [--data DIR] [--set NAME=VALUE ...]"
    longdesc = "A log broker that speaks the Kafka wire protocol. `pylogd settings` lists what --set and FILE may hold."
    optParameters = [  # noqa: RUF012 - twisted.python.usage reads it from the class
        ["config", "c", None, "Settings file (TOML)."],
        ["node-id", "n", None, "Number of this broker (node.id)."],
        ["advertised", "a", None, "HOST:PORT that clients are told to connect to (advertised.listeners)."],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.overrides: dict[str, str] = {}
        self.listeners: list[str] = []
        self.directories: list[str] = []

    def opt_listen(self, address: str) -> None:
        """HOST:PORT or a Twisted endpoint string to listen on; may be given more than once (listeners)."""
        self.listeners.append(address)

    def opt_data(self, directory: str) -> None:
        """Data directory; may be given more than once (log.dirs)."""
        self.directories.append(directory)

    def opt_set(self, assignment: str) -> None:
        """NAME=VALUE, any setting; may be given more than once."""
        name, equals, value = assignment.partition("=")
        if not equals:
            raise usage.UsageError(f"--set takes NAME=VALUE, not {assignment!r}")
        self.overrides[name.strip()] = value.strip()

    def postOptions(self) -> None:
        """Have twistd log to the file that it would log to anyway, so that SIGHUP can open that file anew."""
        twistd = self.parent
        if twistd is None or twistd.get("logger") or twistd.get("syslog"):
            return
        path = twistd.get("logfile")
        foreground = twistd.get("nodaemon") or twistd.get("debug")
        if path != "-" and (path or not foreground):
            LOG.path = os.path.abspath(path or "twistd.log")
            twistd["logger"] = f"{__name__}.LOG.observer"  # twistd takes it by its name only

    opt_l = opt_listen
    opt_d = opt_data
    opt_s = opt_set

    def settings(self) -> Settings:
        """The settings that file and command line give. Raises ConfigError."""
        overrides = dict(self.overrides)
        named = {
            "listeners": ",".join(self.listeners),
            "log.dirs": ",".join(self.directories),
            "node.id": self["node-id"],
            "advertised.listeners": self["advertised"],
        }
        overrides.update({name: value for name, value in named.items() if value})
        return Settings.load(Path(self["config"]) if self["config"] else None, overrides)


class BrokerService(Service):
    """The broker as a Twisted service. One that can't start or go on logs why; the exit code is 1."""

    def __init__(self, settings: Settings, reopen_log: Callable[[], object] | None = None) -> None:
        """`reopen_log` opens the log file anew, on SIGHUP."""
        self._settings = settings
        self._reopen_log = reopen_log
        self._broker: Broker | None = None

    def startService(self) -> None:
        from twisted.internet import reactor

        super().startService()  # type: ignore[no-untyped-call]
        bridge_logging()
        use_monotonic_time(reactor)
        self._broker = Broker(self._settings, reactor)
        self._broker.on_end = self._end
        Reloader(self._settings, self._broker.in_thread, self._reopen_log).install(reactor)
        self._broker.start().addCallbacks(self._started, self._failed)

    def stopService(self) -> Deferred[None] | None:
        from twisted.internet import reactor

        super().stopService()  # type: ignore[no-untyped-call]
        if self._broker is None:
            return None
        hurry_when_asked_again(self._broker, reactor)
        return self._broker.stop()

    def _started(self, _: None) -> None:
        assert self._broker is not None
        log.info("{line}", line=describe(self._broker))
        notify_ready()

    def _failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):  # which is being asked to stop before it was up
            self._end(explain_failure(failure))

    def _end(self, reason: str) -> None:
        from twisted.internet import reactor

        log.critical("{reason}", reason=reason)
        atexit.register(os._exit, 1)  # twistd itself would end with 0, and a service manager would believe it
        if reactor.running:
            reactor.stop()


def makeService(options: Options) -> BrokerService:
    """The service that `twistd pylogd` runs. Bad settings end the process: one line, exit code 1."""
    try:
        return BrokerService(options.settings(), LOG.reopen)
    except ConfigError as error:
        sys.exit(f"twistd pylogd: {error}")
