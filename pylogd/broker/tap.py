"""The options and the log file of `twistd pylogd`. `process.twistd` has the broker as a Twisted service.

Rule: no import here imports a reactor; `makeService` imports it when it knows the settings.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twisted.logger import ILogObserver
from twisted.python import usage
from twisted.python.logfile import LogFile

from pylogd.base.process.logs import FORMATS, JSON, TEXT, file_observer, log_what_python_prints
from pylogd.base.process.shell import process_reactor
from pylogd.base.process.tuning import pause_garbage_collector
from pylogd.broker.process import options
from pylogd.broker.process.without_tls import import_twisted
from pylogd.config import ConfigError, Settings

if TYPE_CHECKING:
    from pylogd.broker.process.twistd import BrokerService

#: The name that means standard output as twistd's log file.
STDOUT: Final = "-"


class RotatedFile(LogFile):
    """twistd's log file, which rotates itself, and can be reopened after another program has moved it away."""

    def reopen(self) -> None:
        """Open the file that has the path now, and continue with it. Create it if it does not exist.

        Raises OSError if it can't be opened. The old file then stays in use.
        """
        with open(self.path, "ab"):  # `LogFile` closes the old file before it tries to open the new one
            super().reopen()  # type: ignore[no-untyped-call]


class TwistdLog:
    """The log of the process if pylogd writes it for twistd. `path` and `style` are set before the file is open.

    path: the path of the log file; "-" for standard output.
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
    """The command line of `twistd pylogd`, with the same names as `pylogd broker`."""

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
            twistd["logger"] = f"{__name__}.LOG.observer"  # twistd takes the observer only by name

    def settings(self) -> Settings:
        """Return the settings of file and command line. Raises ConfigError."""
        return options.load_settings(
            Path(self["config"]) if self["config"] else None, listen=self.listeners, data=self.directories,
            node_id=self["node-id"], advertised=self["advertised"], profile=self["profile"],
            assignments=self.assignments,
        )  # fmt: skip


def makeService(options: Options) -> BrokerService:
    """Return the service that `twistd pylogd` runs. Bad settings end the process with one line and exit status 1."""
    try:
        settings = options.settings()
        pause_garbage_collector()
        import_twisted(settings)
        from pylogd.broker.process.twistd import BrokerService  # noqa: PLC0415 - imports Twisted's transports

        return BrokerService(settings, LOG.reopen, options.parent)
    except ConfigError as error:
        sys.exit(f"twistd pylogd: {error}")
