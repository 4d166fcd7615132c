"""One process of a mirror: a worker, a candidate for the controller, and their session in the store.

Strategy: worker and controller run as long as a session of the store lasts. When the session has expired, both are
stopped at once, without a commit, and start again in the next session. Then the worker gets another name, which
distinguishes it from the former worker, whose transactions are fenced. The file is read again when it has changed.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure

from pylogd.base.clock import wall_ms
from pylogd.base.errors import PylogdError
from pylogd.client.zookeeper.waiting import Sleeper
from pylogd.services.mirror.controller import Controller
from pylogd.services.mirror.copy_run import CopierOptions
from pylogd.services.mirror.copying import Copier
from pylogd.services.mirror.errors import InvalidMirrorFile
from pylogd.services.mirror.membership import MirrorPaths
from pylogd.services.mirror.planning import Plan
from pylogd.services.mirror.runtime import Runtime
from pylogd.services.mirror.settings import MirrorSettings, read_file
from pylogd.services.mirror.worker import Worker
from pylogd.store.interfaces import IMetadataStore, SessionState
from pylogd.store.sqlite import SqliteStore

_log = logging.getLogger(__name__)

_STORE_FILE: Final = "mirror.db"
_FILE_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0
_LEAVE_SECONDS: Final = 20.0


def open_store(settings: MirrorSettings, reactor: Any) -> IMetadataStore:
    """Return the store that the file names. It is not started."""
    if settings.zookeeper:
        from pylogd.store.zookeeper import ZooKeeperStore  # noqa: PLC0415 - kazoo, only where it is meant

        return ZooKeeperStore(
            settings.zookeeper, reactor, session_timeout_ms=settings.session_timeout_ms,
            security=settings.zookeeper_security,
        )  # fmt: skip
    return SqliteStore(Path(settings.store_path) / _STORE_FILE, reactor)


class MirrorService:
    """See the module. `worker` and `controller` belong to the current session; None without a session.

    file_error: the reason why the file in its present form can't be used, or "".
    """

    def __init__(self, reactor: Any, path: str | Path, *, works: bool = True, controls: bool = True) -> None:
        """path: the mirror's file.
        works, controls: whether this process is a worker, and a candidate for the controller.

        Raises InvalidMirrorFile.
        """
        self._reactor = reactor
        self._path = Path(path)
        self._settings = read_file(path)
        self._stamp = _stamp_of(self._path)
        self.file_error = ""
        self._works, self._controls = works, controls
        self._runtime = Runtime(self._settings, reactor)
        self._store = open_store(self._settings, reactor)
        self._paths = MirrorPaths(self._settings.name)
        self._sleeper = Sleeper(reactor)
        self._running: list[Deferred[Any]] = []
        self._main: Deferred[Any] | None = None
        self._expired = self._stopping = False
        self._has_left = False  # whether appended batches are committed and copying has ended
        self.worker: Worker | None = None
        self.controller: Controller | None = None
        self._plan: Plan | None = None

    @property
    def name(self) -> str:
        """The mirror's name."""
        return self._settings.name

    @property
    def routes(self) -> int:
        """The number of routes in the file."""
        return len(self._settings.routes)

    def start(self) -> Deferred[None]:
        """Connect to the store. The Deferred fires once this is done."""
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        await self._store.start()
        self._store.on_session(self._session)
        self._main = Deferred.fromCoroutine(self._live())
        self._main.addErrback(_unexpected)

    def stop(self) -> Deferred[None]:
        """Commit the appended batches, release all partitions, and end."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._stopping = True
        worker = self.worker
        if worker is not None and not self._expired:
            leaving = Deferred.fromCoroutine(worker.leave()).addTimeout(_LEAVE_SECONDS, self._reactor)
            await leaving.addErrback(
                lambda failure: _log.warning("the worker could not remove its registration: %s", failure.value)
            )
        self._has_left = True
        self._sleeper.wake()
        if self._main is not None:
            await self._main
        self._runtime.close()
        await self._store.close()

    def _session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            _log.warning("the session in the metadata store has expired: copying stops and restarts")
            self._expired = True
            self._sleeper.wake()

    # Sessions

    async def _live(self) -> None:
        while not self._stopping:
            self._expired = False
            name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
            plan = self._plan = Plan(lambda: self._settings, self._reactor)
            if self._works:
                self.worker = self._make_worker(name)
                self._begin(self.worker.run())
            if self._controls:
                self.controller = self._make_controller(name, plan)
                self._begin(self.controller.run())
            while not (self._has_left or self._expired):
                await self._sleeper.sleep(_FILE_SECONDS)
                if not self._stopping:
                    await self._look_at_file()
            for running in list(self._running):
                running.cancel()
            self.worker = self.controller = self._plan = None
            await plan.close()
            if not self._stopping:
                await self._sleeper.sleep(_RETRY_SECONDS)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        running: Deferred[Any] = Deferred.fromCoroutine(work)
        self._running.append(running)

        def ended(result: Any) -> None:
            self._running.remove(running)
            if isinstance(result, Failure) and not result.check(CancelledError):
                if not result.check(PylogdError):
                    _log.error("unexpected error, copying restarts:\n%s", result.getTraceback())
                else:
                    _log.warning("copying restarts after an error: %s", result.value)
                self._expired = True
                self._sleeper.wake()

        running.addBoth(ended)

    def _make_worker(self, name: str) -> Worker:
        return Worker(
            self._store, self._paths, name, reactor=self._reactor, target_of=self._runtime.target_of,
            make_copier=self._make_copier, figures=self.figures,
        )  # fmt: skip

    def _make_copier(self, target: str, worker: Worker) -> Copier:
        options = CopierOptions(
            self._runtime.route, lambda: self._runtime.make_target(worker.name, target), self._reactor, wall_ms,
            self._runtime.pace_of(target), self._runtime.throttle, worker.still_member, worker.released,
        )  # fmt: skip
        return Copier(options)

    def _make_controller(self, name: str, plan: Plan) -> Controller:
        return Controller(
            self._store, self._paths, name, reactor=self._reactor, refresh=plan.refresh,
            refresh_seconds=self._settings.refresh_seconds, fence=self._runtime.fence,
        )  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """Return the figures of this process's worker for operators, which are its status in the store."""
        routes = [copier.figures() for copier in self.copiers.values()]
        return {
            "time_ms": wall_ms(),
            "routes": {name: found.as_document() for each in routes for name, found in each.items()},
        }

    @property
    def copiers(self) -> Mapping[str, Copier]:
        """The copiers of this process, by target."""
        return {} if self.worker is None else self.worker.copiers

    @property
    def refused(self) -> Mapping[str, Mapping[str, str]]:
        """The topics that are not copied, each with the reason, by route; {} if this process is not the controller."""
        return {} if self._plan is None or not self.is_controller else self._plan.refused

    @property
    def is_controller(self) -> bool:
        """Whether this process is the controller."""
        return self.controller is not None and self.controller.is_elected

    # The file

    async def _look_at_file(self) -> None:
        """Read the file again if it has changed. An invalid file changes nothing."""
        try:
            found = await self._thread(_read_if_changed, self._path, self._stamp)
        except (OSError, InvalidMirrorFile) as error:
            if str(error) != self.file_error:
                _log.error("the settings file can't be used; the settings are unchanged: %s", error)
            self.file_error = str(error)
            return
        if found is None:
            return
        self._stamp, settings = found
        self.file_error = ""
        if (settings.name, settings.zookeeper, settings.store_path) != (
            self._settings.name, self._settings.zookeeper, self._settings.store_path,
        ):  # fmt: skip
            self.file_error = "name, zookeeper.connect and metadata.store can't change: start another mirror"
            _log.error("%s: %s", self._path, self.file_error)
            return
        self._settings = settings
        changed = self._runtime.update(settings)
        _log.info("%s was read again; new and changed routes start now", self._path)
        if self.worker is not None:
            self.worker.routes_changed(changed)

    def _thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function, *arguments)


#: The time of the last change and the size of a file.
_Stamp = tuple[int, int]


def _read_if_changed(path: Path, stamp: _Stamp) -> tuple[_Stamp, MirrorSettings] | None:
    """Return a file's stamp and settings; None if the stamp is the given one. Raises OSError, InvalidMirrorFile."""
    now = _stamp_of(path)
    return None if now == stamp else (now, read_file(path))


def _stamp_of(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _unexpected(failure: Failure) -> None:
    if not failure.check(CancelledError):
        _log.error("unexpected error in the mirror:\n%s", failure.getTraceback())
