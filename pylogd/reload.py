"""SIGHUP: read the settings file again, put in force what may change at run time, open the log file anew.

Strategy: the file is read and checked in a thread. What is wrong with it is logged, and nothing changes. Otherwise the
settings that could also be changed dynamically take effect at once, through the same subscribers; for each of the
others that differs, the log says that it waits for the next start. The log file is opened anew first, so that all of
this is in the file that an operator looks at after moving the old one away.

Rules: a SIGHUP never ends the process, whatever it finds, from before the broker starts until it has stopped.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import IO, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.config import SETTINGS, ConfigError, Replaced, Settings, Value

log = Logger()

Run = Callable[..., "Deferred[Any]"]


class LogFile:
    """A log file that can be opened anew under its name, after somebody has moved it away.

    It looks like a text stream, as far as Twisted's observers use one.
    """

    def __init__(self, path: str) -> None:
        """Open the file for appending. Raises OSError."""
        self._path = path
        self._file: IO[str] = self._open()

    def _open(self) -> IO[str]:
        return open(self._path, "a", encoding="utf-8", errors="backslashreplace")

    def write(self, text: str) -> None:
        """Append text."""
        self._file.write(text)

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def reopen(self) -> None:
        """Go on in the file that has the name now, which is made if need be. Raises OSError; then it stays the old."""
        fresh = self._open()
        old, self._file = self._file, fresh
        old.close()


class Reloader:
    """What a process does on SIGHUP."""

    def __init__(self, settings: Settings, in_thread: Run, reopen: Callable[[], object] | None = None) -> None:
        """`in_thread` runs a function in a thread. `reopen` opens the log file anew, where there is one."""
        self._settings = settings
        self._in_thread = in_thread
        self._reopen = reopen
        self._reading = False
        self._again = False

    def install(self, reactor: Any) -> None:
        """Handle SIGHUP from now on, in the reactor's thread."""
        signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(self.reload))

    def reload(self) -> None:
        """Do all of it. While one is under way, further calls make for one more."""
        if self._reading:
            self._again = True
            return
        if self._reopen is not None:
            try:
                self._reopen()
            except OSError as error:
                log.error("SIGHUP: can't open the log file anew, still writing to the old one: {error}", error=error)
        if self._settings.path is None:
            log.info("SIGHUP: there is no settings file to read again")
            return
        self._reading = True
        done = self._in_thread(self._settings.read_again)
        done.addCallback(self._read).addErrback(self._failed).addBoth(self._done)

    def _read(self, fresh: Settings) -> None:
        replaced = self._settings.replace_static(fresh)
        tell(self._settings, replaced)

    def _failed(self, failure: Failure) -> None:
        if failure.check(ConfigError, OSError):
            log.error("SIGHUP: the settings stay as they are: {error}", error=failure.getErrorMessage())
        else:
            log.failure("SIGHUP: the settings could not be read again", failure)

    def _done(self, _: object) -> None:
        self._reading = False
        if self._again:
            self._again = False
            self.reload()


def tell(settings: Settings, replaced: Replaced) -> None:
    """Log what came of settings that were read again."""
    for name, (before, after) in replaced.changed.items():
        log.info("SIGHUP: {name} = {after}, it was {before}", name=name, after=_shown(name, after),
                 before=_shown(name, before))  # fmt: skip
    for name in sorted(replaced.overruled):
        log.info("SIGHUP: {name} in {path} is overruled by a value that was set at run time", name=name,
                 path=settings.path)  # fmt: skip
    for name, (before, after) in replaced.pending.items():
        log.warn("SIGHUP: {name} = {after} needs a restart; until then it is {before}", name=name,
                 after=_shown(name, after), before=_shown(name, before))  # fmt: skip
    log.info("SIGHUP: {path} is read: {changed} settings changed, {pending} need a restart", path=settings.path,
             changed=len(replaced.changed), pending=len(replaced.pending))  # fmt: skip


def _shown(name: str, value: Value) -> str:
    setting = SETTINGS[name]
    return "(hidden)" if setting.sensitive else setting.format(value) or "(unset)"
