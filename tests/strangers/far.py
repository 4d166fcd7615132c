"""A client far away: a proxy that delays all bytes, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Final

#: The round trip that the proxy adds, in seconds.
ROUND_TRIP: Final = 0.1


class FarAway:
    """Forwards connections to a broker with a delay. address: where it listens; while this is entered."""

    def __init__(self, target: str, round_trip: float = ROUND_TRIP) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._delay = round_trip / 2
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.address = ""

    def __enter__(self) -> FarAway:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def end() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        with contextlib.suppress(asyncio.CancelledError):  # asyncio would log it at the end
            await asyncio.gather(self._forward(reader, there[1]), self._forward(there[0], writer))

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Pass on what comes, each piece after the delay, as a longer cable does."""
        loop, late = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

        async def deliver() -> None:
            while True:
                due, data = await late.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    break
                target.write(data)
            target.close()

        delivering = asyncio.ensure_future(deliver())
        data = b"x"
        while data:
            data = b""
            with contextlib.suppress(OSError):
                data = await source.read(1 << 16)
            late.put_nowait((loop.time() + self._delay, data))
        await delivering
