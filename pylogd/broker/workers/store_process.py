"""The process that owns the embedded metadata store and serves it to the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import UNIXServerEndpoint
from twisted.internet.task import deferLater

from pylogd.broker.log.files import RealFileSystem
from pylogd.store.errors import StoreFailure
from pylogd.store.server import StoreServer
from pylogd.store.sqlite import SqliteStore

#: Only this user's processes may connect, since a process that can connect controls the cluster.
_MODE: Final = 0o600
#: The file that is locked while the socket is in use. The kernel unlocks it, however the process ends.
_LOCK_FILE: Final = ".lock"
#: The longest time for which a stopping store waits until the workers have ended their sessions. They stop at the same
#: time as the store if their parent process was killed.
_MOST_WAIT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05


def make_directory(path: Path) -> None:
    """Create a directory for data, which other users can't read. Raises OSError."""
    if not path.is_dir():
        RealFileSystem().mkdir(str(path))


class StoreProcess:
    """A store and the socket at which it is served. See `pylogd.base.process.shell.Service`."""

    def __init__(self, file: Path, socket: Path, reactor: Any) -> None:
        self._reactor = reactor
        self._store = SqliteStore(file, reactor)
        self._socket = socket
        self._factory = StoreServer(self._store, reactor)
        self._port: Any = None
        self._lock: int | None = None

    def start(self) -> Deferred[None]:
        """Open the store, then the socket. Fails with StoreFailure, OSError or CannotListenError."""
        return Deferred.fromCoroutine(self._start())

    def stop(self) -> Deferred[None]:
        """Close the socket, and the store once its sessions have ended, or after 30 s."""
        return Deferred.fromCoroutine(self._stop())

    async def _start(self) -> None:
        await self._store.start()
        try:
            self._take_socket()
            self._port = await UNIXServerEndpoint(self._reactor, str(self._socket), mode=_MODE).listen(self._factory)
        except BaseException:
            await self._store.close()
            raise

    def _take_socket(self) -> None:
        """Lock the socket's directory, and delete a socket file that a killed process has left.

        Raises StoreFailure if a running process has the lock, OSError if the directory can't be used.
        """
        fs = RealFileSystem()
        self._lock = fs.lock(str(self._socket.parent / _LOCK_FILE))
        if self._lock is None:
            raise StoreFailure(f"{self._socket.parent} is in use by another process")
        if self._socket.is_socket():
            self._socket.unlink()

    async def _stop(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            await maybeDeferred(port.stopListening)
        deadline = self._reactor.seconds() + _MOST_WAIT_SECONDS
        while self._factory.sessions and self._reactor.seconds() < deadline:
            await deferLater(self._reactor, _LOOK_SECONDS)
        self._factory.disconnect()
        await self._store.close()
