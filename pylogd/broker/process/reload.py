"""SIGHUP: reload the settings file, apply what may change at run time, read certificates, and reopen the log file.

Strategy: the file is read and checked in a thread. If it is wrong the error is logged and nothing changes. Otherwise
the settings that can also be changed dynamically take effect at once, through the same subscribers; for each other
setting that differs, the log says that it needs a restart. The log file is reopened first, so that all of this is in
the file that an operator looks at after moving the old one away.

Rules: a SIGHUP never ends the process, from before the broker starts until it has stopped.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.config import ConfigError, Replaced, Settings, Value, broker_setting

log = Logger()

Run = Callable[..., "Deferred[Any]"]


class Reloader:
    """Handle SIGHUP for a process."""

    def __init__(
        self,
        settings: Settings,
        in_thread: Run,
        reopen: Callable[[], object] | None = None,
        read_certificates: Callable[[], object] = lambda: None,
    ) -> None:
        """`in_thread` runs a function in a thread. `reopen` reopens the log file, where there is one.

        `read_certificates` begins to read the certificates of listeners again.
        """
        self._settings = settings
        self._in_thread = in_thread
        self._reopen = reopen
        self._read_certificates = read_certificates
        self._reading = False
        self._again = False

    def install(self, reactor: Any) -> None:
        """Install the signal handler; it reloads in the reactor's thread."""
        signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(self.reload))

    def reload(self) -> None:
        """Reopen the log file, and start to reload the settings. Calls during a reload cause one more after it."""
        if self._reading:
            self._again = True
            return
        if self._reopen is not None:
            try:
                self._reopen()
            except OSError as error:
                log.error("SIGHUP: can't reopen the log file, still writing to the old one: {error}", error=error)
        self._read_certificates()
        if self._settings.path is None:
            log.info("SIGHUP: no settings file to reload, the broker runs without one")
            return
        self._reading = True
        done = self._in_thread(self._settings.read_again)
        done.addCallback(self._read).addErrback(self._failed).addBoth(self._done)

    def _read(self, fresh: Settings) -> None:
        replaced = self._settings.replace_static(fresh)
        log_changes(self._settings, replaced)

    def _failed(self, failure: Failure) -> None:
        if failure.check(ConfigError, OSError):
            log.error("SIGHUP: no setting was changed: {error}", error=failure.getErrorMessage())
        else:
            log.failure("SIGHUP: unexpected error while reloading the settings; none was changed", failure)

    def _done(self, _: object) -> None:
        self._reading = False
        if self._again:
            self._again = False
            self.reload()


def log_changes(settings: Settings, replaced: Replaced) -> None:
    """Log which settings changed, which are overridden at run time, and which need a restart."""
    for name, (before, after) in replaced.changed.items():
        log.info("SIGHUP: changed {name} from {before} to {after}", name=name, after=_shown(name, after),
                 before=_shown(name, before))  # fmt: skip
    for name in sorted(replaced.overruled):
        log.info("SIGHUP: {name} in {path} has no effect: a value set at run time overrides it", name=name,
                 path=settings.path)  # fmt: skip
    for name, (before, after) in replaced.pending.items():
        log.warn("SIGHUP: {name} = {after} needs a restart; until then {before} applies", name=name,
                 after=_shown(name, after), before=_shown(name, before))  # fmt: skip
    log.info("SIGHUP: reloaded {path}: {changed} settings changed, {pending} need a restart", path=settings.path,
             changed=len(replaced.changed), pending=len(replaced.pending))  # fmt: skip


def _shown(name: str, value: Value) -> str:
    setting = broker_setting(name)
    assert setting is not None, name
    return "(hidden)" if setting.sensitive else setting.format(value) or "(unset)"
