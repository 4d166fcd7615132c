"""The process that owns the embedded metadata store and serves it to the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import UNIXServerEndpoint

from pylogd.metadata.sqlite import SqliteStore
from pylogd.metadata.store_server import StoreServer

#: Only this user's processes may connect: whoever can, controls the cluster.
_MODE = 0o600


class StoreProcess:
    """A store and the socket at which it is served. See `pylogd.process.shell.Service`."""

    def __init__(self, file: Path, socket: Path, reactor: Any) -> None:
        self._store = SqliteStore(file, reactor)
        self._endpoint = UNIXServerEndpoint(reactor, str(socket), mode=_MODE, wantPID=True)
        self._factory = StoreServer(self._store, reactor)
        self._port: Any = None

    def start(self) -> Deferred[None]:
        """Open the store, then the socket. Fails with StoreFailure or CannotListenError."""
        return Deferred.fromCoroutine(self._start())

    def stop(self) -> Deferred[None]:
        """Close both; all sessions end."""
        return Deferred.fromCoroutine(self._stop())

    async def _start(self) -> None:
        await self._store.start()
        try:
            self._port = await self._endpoint.listen(self._factory)
        except BaseException:
            await self._store.close()
            raise

    async def _stop(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            await maybeDeferred(port.stopListening)
        self._factory.disconnect()
        await self._store.close()
