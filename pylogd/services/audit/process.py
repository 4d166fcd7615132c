"""The audit as a process: the service and its HTTP server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from pylogd.client.deferred import Admin
from pylogd.services.audit.opening import SERVING, StageDescription, make_stage
from pylogd.services.audit.service import AuditOptions, AuditService, MakeStage
from pylogd.services.audit.topics import TopicStage
from pylogd.services.audit.windows import LedgerOptions, StageSpec

if TYPE_CHECKING:
    from pylogd.services.audit.web import AuditWeb


class AuditProcess:
    """Starts and stops the service and its HTTP server in order. `service` is for tests."""

    def __init__(
        self, reactor: Any, options: AuditOptions, windows: LedgerOptions, descriptions: Sequence[StageDescription],
        *, now_ms: Callable[[], int], listen: str | None = None, look_seconds: float = 5.0,
    ) -> None:  # fmt: skip
        """`listen` is a Twisted server endpoint for metrics and the report; None for no HTTP server."""
        self._reactor = reactor
        self._options = options
        self._now_ms = now_ms
        self._admins: dict[str, Admin] = {}
        self._addresses = {SERVING: options.bootstrap, **{each.name: each.where for each in descriptions}}
        stages: list[tuple[StageSpec, MakeStage]] = [(StageSpec(SERVING), self._make_serving)]
        for each in descriptions:
            make = make_stage(
                reactor, each, lambda source=each.spec.source: self._admin(source), options.security, now_ms,  # type: ignore[misc]
                look_seconds,
            )  # fmt: skip
            stages.append((each.spec, make))
        self._web: AuditWeb | None = None
        if listen is None:
            self.service = AuditService(reactor, options, windows, stages, now_ms)
            return
        from pylogd.services.audit.metrics import AuditMetrics  # noqa: PLC0415 - prometheus-client, only where it is used
        from pylogd.services.audit.web import AuditWeb  # noqa: PLC0415

        metrics = AuditMetrics(lambda: self.service.ledger, now_ms)
        self.service = AuditService(reactor, options, windows, stages, now_ms, metrics)
        self._web = AuditWeb(reactor, listen, lambda: self.service.ledger, metrics.text)

    def describe(self) -> str:
        """Return the line that announces the start: the audited stages, and the URL of the pages."""
        topics = ", ".join(self._options.topics)
        where = "" if self._web is None else " and answers on http://{}:{}".format(*self._web.address)
        begin = datetime.fromtimestamp(self.service.ledger.options.from_ms / 1000, UTC).strftime(
            "%Y-%m-%d %H:%M:%S UTC"
        )
        stages = ", ".join(self.service.ledger.stages)
        return f"pylogd audit judges {topics} at {stages} from {begin} on{where}"

    def start(self) -> Deferred[None]:
        """Start the service. The Deferred fires once it reads from every stage."""
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        await self.service.start()
        if self._web is not None:
            await self._web.start()

    def stop(self) -> Deferred[None]:
        """Stop. The Deferred fires once everything is stored and closed."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self._web is not None:
            await self._web.stop()
        await self.service.stop()
        for admin in self._admins.values():
            admin.close()

    def _make_serving(self, ledger: Any, since: Any) -> TopicStage:
        return TopicStage(
            self._reactor, StageSpec(SERVING), self._options.bootstrap, ledger, since, self._now_ms,
            security=self._options.security,
        )  # fmt: skip

    def _admin(self, stage: str) -> Admin:
        if stage not in self._admins:
            self._admins[stage] = Admin(
                self._addresses[stage], reactor=self._reactor, security=self._options.security,
                client_id="pylogd-audit",
            )  # fmt: skip
        return self._admins[stage]
