"""A TCP proxy whose connections can be cut or held up, between a mirror and a broker, or a broker and ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future

HOST = "127.0.0.1"
_CHUNK = 1 << 16


class Proxy:
    """Passes everything on from `port` to another one of this machine, in a thread of its own, unless it is cut."""

    def __init__(self, port: int, to: int) -> None:
        """Listen at once."""
        self._port, self._to = port, to
        self._cut = False
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._wait(asyncio.run_coroutine_threadsafe(self._listen(), self._loop))

    @staticmethod
    def _wait(future: Future[asyncio.Server]) -> asyncio.Server:
        return future.result(30)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, HOST, self._port)

    def cut(self) -> None:
        """End all connections, and take no others."""
        self._loop.call_soon_threadsafe(self._abort)

    def mend(self) -> None:
        """Take connections again."""
        self._cut = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Pass nothing on meanwhile. What arrives is passed on afterwards."""
        self._loop.call_soon_threadsafe(self._passes.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._passes.set)

    def close(self) -> None:
        """End."""
        self.cut()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _end(self) -> None:
        self._server.close()
        own = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not own]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _abort(self) -> None:
        self._cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._to)
            self._writers.add(far_writer)
            try:
                await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # cancelled by `close`
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
