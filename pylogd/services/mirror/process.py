"""A process of a mirror: the service, and the HTTP server for its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred

from pylogd.services.mirror.service import MirrorService

#: For `tune_interpreter`: a worker has some 20 objects for each batch in flight, of which there are a few thousand.
NEW_OBJECTS: Final = 60_000

if TYPE_CHECKING:
    from pylogd.web.pages import HttpServer


class MirrorProcess:
    """A mirror and the HTTP server of its metrics. The server starts first and stops last."""

    def __init__(
        self, reactor: Any, path: str | Path, *, works: bool = True, controls: bool = True, listen: str | None = None
    ) -> None:
        """path: the mirror's file.
        works, controls: whether this process is a worker, and a candidate for the controller.
        listen: a Twisted server endpoint for metrics; None for no HTTP server.

        Raises InvalidMirrorFile, and ImportError without prometheus-client.
        """
        self.service = MirrorService(reactor, path, works=works, controls=controls)
        self._web: HttpServer | None = None
        if listen is not None:
            from pylogd.services.mirror.metrics import MirrorMetrics  # noqa: PLC0415
            from pylogd.web.pages import PROMETHEUS_TEXT, Answer, HttpServer, Reply  # noqa: PLC0415 - only if used

            metrics = MirrorMetrics(self.service)
            pages: dict[str, Answer] = {
                "metrics": lambda _: Reply(metrics.text(), PROMETHEUS_TEXT), "health": lambda _: Reply(b"ok\n"),
            }  # fmt: skip
            self._web = HttpServer(reactor, listen, pages)

    def describe(self) -> str:
        """Return the line that announces the start: the mirror, its routes, and the URL of its metrics."""
        where = "" if self._web is None else ", its metrics are at http://{}:{}/metrics".format(*self._web.address)
        count = self.service.routes
        return f"pylogd mirror {self.service.name} runs {count} {'route' if count == 1 else 'routes'}{where}"

    def start(self) -> Deferred[None]:
        """Start. The Deferred fires once the metadata store answers and the metrics can be read."""
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        if self._web is not None:
            await self._web.start()  # first, so that a taken port ends the process before it copies anything
        await self.service.start()

    def stop(self) -> Deferred[None]:
        """Commit the appended batches, release all partitions, and end."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self.service.stop()
        if self._web is not None:
            await self._web.stop()
