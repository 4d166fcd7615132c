"""Run the audit: read the stages and the reports, judge windows as they become due, store and publish the verdicts.

Strategy: readers add their counts to the ledger. Once a second a turn does the rest, in this order: look up bounds,
judge, store changed windows, publish markers, close old windows. If a turn fails, this is logged, and a later turn
stores what it could not store.

The state is read at the start. If the service dies at any point, the next one resumes from the stored offsets. Two
services with the same state topics repeat each other's work and write the same verdicts; run only one.

Rules: everything except tables and marker files runs on the reactor, which never waits for a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.client.core.audit import AUDIT_TOPIC
from pylogd.client.core.security import SecurityOptions
from pylogd.client.deferred import Admin, Consumer, Producer
from pylogd.services.audit.judging import Verdict
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.markers import InvalidMarker, Marker, MarkerFiles, Periods, window_name
from pylogd.services.audit.stages import Stage
from pylogd.services.audit.state import (
    MARKER_TOPIC,
    RESUME,
    STATE_TOPIC,
    InvalidState,
    Resume,
    decode_record,
    records_of,
)
from pylogd.services.audit.topics import ReportsReader, Since
from pylogd.services.audit.windows import Change, LedgerOptions, Saved, StageSpec
from pylogd.wire.records import Record

log = Logger()

_TURN_SECONDS: Final = 1.0
_RESUME_SECONDS: Final = 30.0  # the seconds after which the offsets to resume from are stored without other changes
_LAST_STORE_SECONDS: Final = 5.0  # the longest time for which a stop waits for brokers, which may be gone
_REPLICAS: Final = 3
_DAY_MS: Final = 86_400_000

#: Makes a stage. It is called with the ledger, and with where to begin.
MakeStage = Callable[[Ledger, Since], Stage]


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The options of the service.

    topics: the audited topics.
    since_ms: the time with which the first run begins; None for now, 0 for the beginning of the logs.
    keep_ms: the time for which the state topic keeps verdicts.
    marker_files: the directory for the files that mark complete periods; None writes no files.
    """

    topics: Sequence[str]
    bootstrap: str
    reports: str = AUDIT_TOPIC
    state: str = STATE_TOPIC
    markers: str = MARKER_TOPIC
    since_ms: int | None = None
    keep_ms: int = 7 * _DAY_MS
    marker_files: str | None = None
    security: SecurityOptions | None = None


class Observer:
    """The interface of listeners for the service's events, such as the metrics."""

    def turned(self, changes: Sequence[Change], markers: Sequence[Marker]) -> None:
        """Called when a turn has ended without an error."""

    def failed(self) -> None:
        """Called when a turn has failed; the next turn tries again."""


class AuditService:
    """Judges windows in turns, and publishes the results. `ledger` has the windows once it is started."""

    def __init__(
        self, reactor: Any, options: AuditOptions, windows: LedgerOptions,
        stages: Sequence[tuple[StageSpec, MakeStage]], now_ms: Callable[[], int], observer: Observer | None = None,
    ) -> None:  # fmt: skip
        """`stages` come each after its source. `now_ms` is the wall clock."""
        self._reactor = reactor
        self._options = options
        self._windows = windows
        self._make = stages
        self._now_ms = now_ms
        self._observer = observer or Observer()
        self._admin = Admin(options.bootstrap, reactor=reactor, security=options.security, client_id="pylogd-audit")
        self._producer = Producer(
            options.bootstrap, reactor=reactor, security=options.security, client_id="pylogd-audit"
        )  # fmt: skip
        self._files = None if options.marker_files is None else MarkerFiles(options.marker_files)
        self._stages: list[Stage] = []
        self._reports: ReportsReader | None = None
        self._resumed: Resume | None = None
        self._stopping = False
        self._resume_due = 0.0
        self._running: Deferred[None] | None = None
        self.ledger = Ledger([spec for spec, _ in stages], options.topics, windows)
        self.periods = Periods(self.ledger)

    def start(self) -> Deferred[None]:
        """Read the state, then start the stages. The Deferred fires once all stages are reading."""
        return Deferred.fromCoroutine(self._start())

    def stop(self) -> Deferred[None]:
        """Store the changes and stop. The Deferred fires once all connections are closed."""
        return Deferred.fromCoroutine(self._stop())

    async def _start(self) -> None:
        await self._create_topics()
        markers = await self._restore()
        since = Since(self._options.since_ms)
        resumed = self._resumed
        self._stages = [make(self.ledger, since) for _, make in self._make]
        self._reports = ReportsReader(
            self._reactor, self._options.bootstrap, self._options.reports, self.ledger, since, self._options.security
        )
        self.periods.restore(markers)
        await self._reports.start(None if resumed is None else resumed.reports)
        for stage in self._stages:
            await stage.start(None if resumed is None else resumed.stages.get(stage.spec.name, {}))
        if resumed is None:
            await self._store()
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._ended)

    async def _stop(self) -> None:
        self._stopping = True
        if self._running is not None:
            self._running.cancel()
            await self._running
            last = Deferred.fromCoroutine(self._store()).addTimeout(_LAST_STORE_SECONDS, self._reactor)
            try:
                await last
            except (PylogdError, OSError, defer.TimeoutError) as error:
                log.warn(
                    "Can't store the last verdicts; the audit computes them again after its next start: {error}",
                    error=str(error),
                )
                self._producer.abandon()
        for stage in self._stages:
            await stage.stop()
        if self._reports is not None:
            await self._reports.stop()
        await self._producer.close()
        self._admin.close()

    # At the start --------------------------------------------------------------------------------------------------

    async def _create_topics(self) -> None:
        """Create the topics that the service writes to, and the audit topic, unless they exist."""
        found = await self._admin.describe_cluster()
        keep = {"cleanup.policy": "compact,delete", "retention.ms": str(self._options.keep_ms)}
        wanted: Mapping[str, Mapping[str, str]] = {
            self._options.state: keep,
            self._options.markers: {"cleanup.policy": "compact"},
            self._options.reports: {},
        }
        for topic, configs in wanted.items():
            try:
                await self._admin.create_topic(topic, 1, min(_REPLICAS, max(len(found.placement.open()), 1)), configs)
            except KafkaError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise

    async def _restore(self) -> list[Marker]:
        """Make the ledger from the state topic. Return the markers that were published."""
        latest = await self._latest(self._options.state)
        options = self._first_window()
        if RESUME in latest:
            self._resumed = Resume.decode(latest.pop(RESUME), options)
            options = self._resumed.options
            self._check(options)
        self.ledger = Ledger(list(self.ledger.stages.values()), self._options.topics, options)
        self.periods = Periods(self.ledger)
        if self._resumed is not None:
            self.ledger.trimmed.update(self._resumed.trimmed)
            self.ledger.closed.update(self._resumed.closed)
            self.ledger.restamped.update(self._resumed.restamped)
            for stage, ids in self._resumed.topic_ids.items():
                self.ledger.topic_ids.setdefault(stage, {}).update(ids)
        for key, value in latest.items():
            try:
                found = decode_record(key, value)
            except InvalidState as error:
                log.warn("Ignoring a record of {topic}: {error}", topic=self._options.state, error=str(error))
                continue
            if isinstance(found, Saved):
                self.ledger.restore(found)
            elif found is not None:
                self.ledger.restore_reports(found)
        markers = []
        for value in (await self._latest(self._options.markers)).values():
            try:
                markers.append(Marker.decode(value))
            except InvalidMarker as error:
                log.warn("Ignoring a record of {topic}: {error}", topic=self._options.markers, error=str(error))
        return markers

    def _first_window(self) -> LedgerOptions:
        """Return the options with the first window that can be judged, which is the first that is read completely."""
        width, since = self._windows.width_ms, self._options.since_ms
        begin = self._now_ms() if since is None else since
        return replace(self._windows, from_ms=-(-begin // width) * width)

    def _check(self, stored: LedgerOptions) -> None:
        for name in ("width_ms", "period_ms"):
            before, now = getattr(stored, name), getattr(self._windows, name)
            if before != now:
                raise PylogdError(
                    f"the topic {self._options.state} has windows with {name} {before}, not {now}: use the same "
                    "length, or another topic with --state"
                )

    async def _latest(self, topic: str) -> dict[bytes, bytes]:
        """Return the last value of each key of a topic, read to its end."""
        consumer = Consumer(
            self._options.bootstrap, reactor=self._reactor, security=self._options.security, client_id="pylogd-audit",
            auto_offset_reset="earliest", retry_timeout=30.0,
        )  # fmt: skip
        found: dict[bytes, bytes] = {}
        try:
            partitions = await consumer.partitions(topic)
            ends = await consumer.end_offsets(partitions)
            await consumer.assign(await consumer.beginning_offsets(partitions))
            while any([await consumer.position(each) < ends[each] for each in partitions]):
                for record in await consumer.poll(1.0):
                    _keep(found, record)
        finally:
            await consumer.close()
        return found

    # Turns ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self.turn()
            except (PylogdError, OSError) as error:
                self._observer.failed()
                log.error("Can't judge or store windows, trying again: {error}", error=str(error))
            await deferLater(self._reactor, _TURN_SECONDS, lambda: None)

    async def turn(self) -> None:
        """Judge the windows that can be judged, and store and publish the verdicts."""
        now = self._now_ms()
        self.periods.begin(now)
        for stage in self._stages:
            await stage.refresh()
        for (name, topic), starts in self.ledger.needs(now).items():
            assert self._reports is not None
            reports = await self._reports.ends()  # first, so that all earlier reports are below these ends
            stage = next(stage for stage in self._stages if stage.spec.name == name)
            self.ledger.bind(name, topic, starts, await stage.ends(topic), reports)
        changes = self.ledger.judge(now)
        self._log(changes)
        markers = list(self.periods.due(changes, now))
        await self._store()
        await self._publish(markers)
        self.periods.note(markers)
        changes += self.ledger.close(now, self.periods.done())
        self.periods.forget()
        self._observer.turned(changes, markers)

    async def _store(self) -> None:
        taken = self.ledger.take()
        resume = Resume(
            self.ledger.options,
            taken.resume,
            taken.resume_reports,
            taken.trimmed,
            dict(self.ledger.closed),
            self.ledger.topic_ids,
            self.ledger.restamped,
        ).encode()
        records = list(records_of(taken))
        now = self._reactor.seconds()
        if not records and now < self._resume_due and not self._stopping:
            return
        try:
            await self._write(self._options.state, records)
            await self._write(self._options.state, [(RESUME, resume)])
        except BaseException:
            self.ledger.put_back(taken)
            raise
        self._resume_due = now + _RESUME_SECONDS

    async def _publish(self, markers: Sequence[Marker]) -> None:
        await self._write(self._options.markers, [(marker.key, marker.encode()) for marker in markers])
        for marker in markers:
            if self._files is not None:
                await deferToThreadPool(
                    self._reactor, self._reactor.getThreadPool(), self._files.write, marker
                )  # fmt: skip
            for stage in self._stages:
                if stage.spec.name == marker.stage:
                    await stage.publish(marker)

    async def _write(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        deliveries = [await self._producer.send(topic, value, key) for key, value in records]
        for delivery in deliveries:
            await delivery.result()

    def _log(self, changes: Sequence[Change]) -> None:
        for change in changes:
            found = change.judgement
            before = None if change.before is None else change.before.verdict
            if found.verdict is Verdict.INCOMPLETE or (before is not None and before.is_final):
                log.warn(
                    "{topic} at {stage}, window {start}Z: {verdict}{before}. Reported {reported}, recovered "
                    "{recovered}, received {received}, missing {missing}, lost {lost}, duplicates {duplicates}, "
                    "unreported {unreported}",
                    topic=change.topic, stage=change.stage, start=window_name(change.start_ms), verdict=found.verdict,
                    before=f" (was {before})" if before is not None and before.is_final else "",
                    reported=found.reported, recovered=found.recovered, received=found.received,
                    missing=found.missing, lost=found.lost, duplicates=found.duplicates, unreported=found.unreported,
                )  # fmt: skip

    def _ended(self, failure: Failure) -> None:
        if not (self._stopping and failure.check(CancelledError)):
            log.failure("Unexpected error in the audit: it judges no more windows. Restart it", failure)


def _keep(found: dict[bytes, bytes], record: Record) -> None:
    if record.key is None:
        return
    if record.value is None:
        found.pop(record.key, None)
    else:
        found[record.key] = record.value
