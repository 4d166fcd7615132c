"""`twistd pylogd`: its options, its log file, and the broker as a Twisted service."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, Logger
from twisted.python import usage
from twisted.python.logfile import LogFile

from pylogd.config import ConfigError, Settings
from pylogd.process import options
from pylogd.process.broker import BrokerShell
from pylogd.process.logs import FORMATS, JSON, TEXT, file_observer, log_what_python_prints
from pylogd.process.shell import process_reactor

log = Logger()

#: How many bytes of an error go to twistd's parent process. It reads 100, of which the status, "1 ", takes two.
_MOST_OF_AN_ERROR: Final = 98

#: twistd's name for standard output as its log file.
STDOUT: Final = "-"


class RotatedFile(LogFile):
    """twistd's log file, which rotates itself, and can be reopened after another program has moved it away."""

    def reopen(self) -> None:
        """Open the file that has the path now, and continue in it; create it if it does not exist.

        Raises OSError if it can't be opened. The old file then stays in use.
        """
        with open(self.path, "ab"):  # `LogFile` closes the old file before it finds that it can't open the new one
            super().reopen()  # type: ignore[no-untyped-call]


class TwistdLog:
    """The log of the process where twistd leaves it to pylogd. `path` and `style` are set before the file is open.

    path: of the log file; "-" for standard output.
    """

    def __init__(self) -> None:
        self.path = ""
        self.style = TEXT
        self.file: RotatedFile | None = None

    def observer(self) -> ILogObserver:
        """Open the file and return the observer that writes to it. SIGUSR1 rotates the file, as in twistd itself."""
        if self.style == JSON:
            log_what_python_prints()
        if self.path == STDOUT:
            return file_observer(sys.stdout, self.style)
        self.file = file = RotatedFile.fromFullPath(self.path)  # type: ignore[no-untyped-call]
        if signal.getsignal(signal.SIGUSR1) in (None, signal.SIG_DFL):
            reactor = process_reactor()
            signal.signal(signal.SIGUSR1, lambda *_: reactor.callFromThread(file.rotate))
        return file_observer(file, self.style)

    def reopen(self) -> None:
        """Reopen the file, if there is one. Raises OSError."""
        if self.file is not None:
            self.file.reopen()


LOG = TwistdLog()


class Options(usage.Options):
    """The command line of `twistd pylogd`; the same names as `pylogd broker`."""

    synopsis = "[--config FILE] [--profile NAME] [--listen HOST:PORT] [--data DIR] [--set NAME=VALUE ...]"
    longdesc = "A log broker that speaks the Kafka wire protocol. `pylogd settings` lists what --set and FILE may hold."
    optParameters = [  # noqa: RUF012 - twisted.python.usage reads it from the class
        ["config", "c", None, options.CONFIG],
        ["node-id", "n", None, options.NODE_ID],
        ["advertised", "a", None, options.ADVERTISED],
        ["profile", None, None, options.PROFILE],
        ["log-format", None, TEXT, f"Lines for people ({TEXT}), or a JSON object on each line ({JSON})."],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.assignments: list[str] = []
        self.listeners: list[str] = []
        self.directories: list[str] = []

    def opt_listen(self, address: str) -> None:
        self.listeners.append(address)

    def opt_data(self, directory: str) -> None:
        self.directories.append(directory)

    def opt_set(self, assignment: str) -> None:
        self.assignments.append(assignment)

    # twisted.python.usage prints these as help.
    opt_listen.__doc__ = options.LISTEN
    opt_data.__doc__ = options.DATA
    opt_set.__doc__ = options.SET

    opt_l = opt_listen
    opt_d = opt_data
    opt_s = opt_set

    def postOptions(self) -> None:
        """Let twistd write its log through `LOG`, to the same file, so that SIGHUP can reopen that.

        Raises UsageError for an unknown format.
        """
        if self["log-format"] not in FORMATS:
            raise usage.UsageError(f"--log-format is one of {', '.join(FORMATS)}, not {self['log-format']!r}")
        LOG.style = self["log-format"]
        twistd = self.parent
        if twistd is None or twistd.get("logger") or twistd.get("syslog"):
            return
        path = twistd.get("logfile")
        foreground = twistd.get("nodaemon") or twistd.get("debug")
        to_file = path != STDOUT and (path or not foreground)
        if to_file or LOG.style == JSON:
            LOG.path = os.path.abspath(path or "twistd.log") if to_file else STDOUT
            twistd["logger"] = f"{__name__}.LOG.observer"  # twistd takes the observer by name only

    def settings(self) -> Settings:
        """Return the settings of file and command line. Raises ConfigError."""
        return options.load_settings(
            Path(self["config"]) if self["config"] else None, listen=self.listeners, data=self.directories,
            node_id=self["node-id"], advertised=self["advertised"], profile=self["profile"],
            assignments=self.assignments,
        )  # fmt: skip


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
        self._shell = shell = _TwistdShell(process_reactor(), self._settings, reopen_log=self._reopen_log)
        shell.parent = parent = _WaitingParent.of(self._twistd)
        shell.announce = lambda _line: parent.tell("")
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


def makeService(options: Options) -> BrokerService:
    """Return the service that `twistd pylogd` runs. Bad settings end the process: one line, exit status 1."""
    try:
        return BrokerService(options.settings(), LOG.reopen, options.parent)
    except ConfigError as error:
        sys.exit(f"twistd pylogd: {error}")
