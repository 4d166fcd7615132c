"""Fetches from one leader for all partitions that this broker follows there, over one connection.

Strategy: a loop of long polls in one incremental fetch session. The loop is the machine of `fetcher_machine`: each
state has a coroutine here that does its work and returns the event that ends it. `followed_partition` decides what an
answer means for a partition; here records are appended in parts, with a turn of the reactor between them, logs are
truncated in threads, and partitions that failed or are throttled are left out for a while.

Rules:
- A partition with an error is paused, and the others continue. A connection that fails is opened again.
- While a log is truncated, its partition is not fetched, and the manager defers changes of its state. The same holds
  while a write in a thread takes longer than `_WRITE_SECONDS`: its disk must not hold up the others.
- A partition that is added again, in another leader epoch, forgets its pauses and positions.
- A partition that is added need not wait for a long poll to end: a second request in the same session, called a nudge,
  makes the leader answer both at once.

Must not know: how brokers are found and connected to, a partition's state in the metadata.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.log.errors import InvalidAppend, StorageError
from pylogd.broker.metadata.staggering import sleep
from pylogd.broker.replica.errors import FencedLeaderEpoch, PartitionOffline
from pylogd.broker.replica.fetch_session_handler import FetchSessionHandler, Key, next_epoch
from pylogd.broker.replica.fetcher_machine import FETCHER, FetcherEvent, FetcherState
from pylogd.broker.replica.followed_partition import PART_BYTES, FetchPosition, FollowedPartition, Step, StepKind, parts
from pylogd.broker.replica.log_ends import IConnection, ask_log_ends
from pylogd.broker.replica.partition import NO_EPOCH, Partition
from pylogd.broker.replica.waiting import unfinished
from pylogd.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

if TYPE_CHECKING:
    from pylogd.broker.replica.manager import ReplicaManager
    from pylogd.broker.replica.replication_throttle import ReplicaThrottle, ReplicationQuota

log = Logger()

_FIRST_BACKOFF = 0.05  # seconds after a connection failed; doubled with each failure up to `FetcherConfig.backoff`
_THROTTLED_SECONDS = 1.0  # the longest pause of a throttled replica before the quota is looked at again
_WRITE_SECONDS = 0.05  # how long partitions on other disks wait for a write in a thread
_UNTIL_DONE = float("inf")  # ends when the log's truncation or write ends
_SESSION_LOST = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)

Connect = Callable[[int], "Deferred[Any]"]
"""Opens a connection to the broker of that id; fires with an IConnection."""


class FetcherConfig(NamedTuple):
    """The `replica.*` settings of a fetcher; times are in seconds. `broker_epoch` returns this broker's epoch."""

    node_id: int
    max_bytes: int
    max_response_bytes: int
    min_bytes: int
    max_wait_ms: int
    backoff: float
    timeout: float
    cluster_id: str | None = None
    broker_epoch: Callable[[], int] = lambda: NO_EPOCH


class ReplicaFetcher:
    """Copies the records of partitions from one leader. `follow` adds a partition, `unfollow` removes it."""

    def __init__(
        self,
        leader_id: int,
        replicas: ReplicaManager,
        throttle: ReplicaThrottle,
        connect: Connect,
        clock: IReactorTime,
        config: FetcherConfig,
        quota: ReplicationQuota,
    ) -> None:
        self.leader_id = leader_id
        self._replicas = replicas
        self._replica_throttle = throttle
        self._connect = connect
        self._clock = clock
        self._config = config
        self._quota = quota
        self._followed: dict[Key, FollowedPartition] = {}
        self._paused: dict[Key, float] = {}  # the end of the pause, by the clock in seconds
        self._lost: dict[Key, FollowedPartition] = {}  # partitions whose position the leader lacks
        self._changed: dict[Key, None] = {}  # partitions that the next request names, in order
        self._session = FetchSessionHandler()
        self._machine = FETCHER.machine()
        self._steps: Mapping[FetcherState, Callable[[], Awaitable[FetcherEvent]]] = {
            FetcherState.STARTING: self._start,
            FetcherState.CONNECTING: self._open,
            FetcherState.LOCATING: self._locate,
            FetcherState.PREPARING: self._prepare,
            FetcherState.FETCHING: self._fetch,
            FetcherState.APPLYING: self._apply_answer,
            FetcherState.NUDGING: self._await_nudge,
            FetcherState.IDLE: self._idle,
            FetcherState.BACKING_OFF: self._back_off,
        }
        self._connection: IConnection | None = None
        self._request: FetchRequest | None = None  # the next request to send
        self._response: FetchResponse | None = None  # the next response to apply
        self._nudge: Deferred[Any] | None = None
        self._woken: Deferred[None] | None = None  # fires when an idle fetcher is woken
        self._pending: Deferred[Any] | None = None  # a connection that is being opened, or a back-off
        self._wake_call: IDelayedCall | None = None
        self._failures = 0
        self._broker_epoch = NO_EPOCH  # the epoch that the leader knows
        self._unyielded = 0  # bytes appended in this turn of the reactor
        self._ended = Deferred.fromCoroutine(self._run())

    def __len__(self) -> int:
        """How many partitions it follows."""
        return len(self._followed)

    # -- what to fetch

    def follow(self, partition: Partition) -> None:
        """Start to fetch a partition in its present leader epoch."""
        followed = FollowedPartition(partition, self._config.backoff)
        self._followed[followed.key] = followed
        if self._paused.get(followed.key) != _UNTIL_DONE:
            self._paused.pop(followed.key, None)
        self._lost.pop(followed.key, None)
        if followed.starts_at_latest:
            self._lost[followed.key] = followed
        self._changed[followed.key] = None
        self._wake_in(0)

    def unfollow(self, partition: Partition) -> None:
        """Stop fetching a partition."""
        key = partition.topic_id, partition.index
        if self._followed.pop(key, None) is not None:
            self._lost.pop(key, None)
            self._changed[key] = None

    def stop(self) -> Deferred[None]:
        """Stop fetching; nothing more is appended. Fires when the loop has ended."""
        self._machine.handle(FetcherEvent.STOP)
        self._followed.clear()
        if self._wake_call is not None and self._wake_call.active():
            self._wake_call.cancel()
        self._wake()
        if self._pending is not None:
            self._pending.cancel()
        if self._connection is not None:
            self._connection.close()
        return self._ended

    @property
    def _stopped(self) -> bool:
        return self._machine.state is FetcherState.STOPPED

    def _wake_in(self, seconds: float) -> None:
        """Send the next request in `seconds` seconds, or earlier."""
        at = self._clock.seconds() + seconds
        if self._wake_call is not None and self._wake_call.active():
            if self._wake_call.getTime() <= at:
                return
            self._wake_call.cancel()
        if not self._stopped:
            self._wake_call = self._clock.callLater(seconds, self._wake_or_nudge)

    def _wake_or_nudge(self) -> None:
        """End an idle wait, or make the leader answer a long poll at once."""
        self._wake()
        polling = self._machine.state is FetcherState.FETCHING and self._nudge is None
        if polling and self._connection is not None and self._session.incremental:
            session_id, epoch = self._session.next
            request = self._fetch_request([], [], session_id, next_epoch(epoch))
            request.max_wait_ms = 0
            self._nudge = self._connection.request(request, timeout=self._config.timeout)
            self._nudge.addErrback(lambda _: None)  # then the request before it has failed too

    def _wake(self) -> None:
        woken, self._woken = self._woken, None
        if woken is not None:
            woken.callback(None)

    # -- the loop

    async def _run(self) -> None:
        machine = self._machine
        while machine.state is not FetcherState.STOPPED:
            try:
                event = await self._steps[machine.state]()
            except (PylogdError, CancelledError) as error:
                event = self._failed(error)
            except Exception:
                log.failure("Unexpected error while fetching from broker {leader}, retrying", leader=self.leader_id)
                event = self._failed(None)
            if not self._stopped:
                machine.handle(event)
        self._hang_up()

    def _failed(self, error: BaseException | None) -> FetcherEvent:
        self._hang_up()
        if not self._stopped:
            self._failures += 1
            if error is not None and self._failures.bit_count() == 1:
                log.warn(
                    "Can't fetch from broker {leader} ({count} failures so far), retrying: {error}",
                    leader=self.leader_id, count=self._failures, error=error,
                )  # fmt: skip
        return FetcherEvent.FAILED

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._pending = self._nudge = None
        if connection is not None:
            connection.close()
        self._restart_session()

    def _restart_session(self) -> None:
        """Name every partition in the next request."""
        self._session.restart()
        self._changed.update(dict.fromkeys(self._followed))

    # -- one coroutine for each state

    async def _start(self) -> FetcherEvent:
        await sleep(self._clock, 0)
        return FetcherEvent.STARTED

    async def _open(self) -> FetcherEvent:
        self._pending = self._connect(self.leader_id)
        self._connection = await self._pending
        self._pending = None
        return FetcherEvent.CONNECTED

    async def _locate(self) -> FetcherEvent:
        """Ask for both ends of the leader's logs where a position is lost, and act on the answer."""
        if not self._lost:
            return FetcherEvent.LOCATED
        assert self._connection is not None
        lost, self._lost = list(self._lost.values()), {}
        try:
            starts, ends = await ask_log_ends(self._connection, self._config.node_id, lost, self._config.timeout)
        except BaseException:
            for followed in lost:
                if self._followed.get(followed.key) is followed:
                    self._lost[followed.key] = followed
            raise
        for followed in lost:
            if self._followed.get(followed.key) is not followed or not followed.current:
                continue
            start, end = starts.get(followed.partition.key), ends.get(followed.partition.key)
            if start is None or end is None:
                self._do(followed, followed.pause("the leader does not say where its log starts and ends", quick=True))
                if followed.starts_at_latest:
                    self._lost[followed.key] = followed
            else:
                self._do(followed, followed.located(start, end))
        return FetcherEvent.LOCATED

    async def _prepare(self) -> FetcherEvent:
        self._request = self._next_request()
        self._wake_at_end_of_pause()
        return FetcherEvent.NOTHING_TO_FETCH if self._request is None else FetcherEvent.REQUEST_MADE

    async def _fetch(self) -> FetcherEvent:
        assert self._connection is not None
        timeout = self._config.timeout + self._config.max_wait_ms / 1000
        self._response = await self._connection.request(self._request, timeout=timeout)
        return FetcherEvent.ANSWERED

    async def _apply_answer(self) -> FetcherEvent:
        response, self._response = self._response, None
        assert response is not None
        # No nudge is sent in this state. If one was sent before, one more answer is to come.
        if not response.error_code:
            self._session.answered(response)
            await self._apply(response)
        else:
            self._restart_session()
            if response.error_code not in _SESSION_LOST:
                raise KafkaError(ErrorCode(response.error_code))
        self._failures = 0
        if self._nudge is not None:
            return FetcherEvent.NUDGED
        return FetcherEvent.POSITION_LOST if self._lost else FetcherEvent.APPLIED

    async def _await_nudge(self) -> FetcherEvent:
        nudge, self._nudge = self._nudge, None
        assert nudge is not None
        self._response = await nudge
        return FetcherEvent.UNANSWERED if self._response is None else FetcherEvent.ANSWERED

    async def _idle(self) -> FetcherEvent:
        self._woken = Deferred()
        await self._woken
        self._failures = 0
        return FetcherEvent.WOKEN

    async def _back_off(self) -> FetcherEvent:
        seconds = min(_FIRST_BACKOFF * 2.0 ** min(self._failures - 1, 16), self._config.backoff)
        self._pending = Deferred()
        call = self._clock.callLater(seconds, self._pending.callback, None)
        try:
            await self._pending
        except CancelledError:
            if call.active():
                call.cancel()
        self._pending = None
        return FetcherEvent.BACKED_OFF

    # -- requests

    def _next_request(self) -> FetchRequest | None:
        """Return the next request, None if there is nothing to fetch."""
        self._end_pauses()
        epoch = self._config.broker_epoch()
        if epoch != self._broker_epoch:
            self._broker_epoch = epoch
            self._restart_session()  # every partition has to be sent again
        changed: dict[Key, FetchPosition] = {}
        gone: list[Key] = []
        for key in self._changed:
            followed = self._followed.get(key)
            if followed is not None and followed.current and key not in self._paused and key not in self._lost:
                try:
                    changed[key] = followed.position()
                    continue
                except PartitionOffline:
                    pass
            gone.append(key)
        self._changed.clear()
        topics, forgotten = self._session.request(changed, gone, self._config.max_bytes)
        if not self._session.positions:
            self._session.restart()  # the leader evicts an idle session
            return None
        return self._fetch_request(topics, forgotten, *self._session.next)

    def _fetch_request(
        self, topics: list[FetchTopic], forgotten: list[ForgottenTopic], session_id: int, epoch: int
    ) -> FetchRequest:
        config = self._config
        return FetchRequest(
            cluster_id=config.cluster_id,
            replica_state=ReplicaState(config.node_id, self._broker_epoch),
            max_wait_ms=config.max_wait_ms if session_id else 0,  # a session can be nudged, once there is one
            min_bytes=config.min_bytes,
            max_bytes=config.max_response_bytes,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )

    # -- pauses

    def _pause(self, followed: FollowedPartition, seconds: float) -> None:
        self._paused[followed.key] = self._clock.seconds() + seconds
        self._changed[followed.key] = None

    def _end_pauses(self) -> None:
        if self._paused:
            now = self._clock.seconds()
            over = [key for key, until in self._paused.items() if until <= now]
            for key in over:
                del self._paused[key]
                self._changed[key] = None
                if key in self._followed:
                    self._throttle(self._followed[key], 0)

    def _wake_at_end_of_pause(self) -> None:
        """Send the next request when the first pause is over."""
        until = min(self._paused.values(), default=_UNTIL_DONE)
        if until != _UNTIL_DONE:
            self._wake_in(max(until - self._clock.seconds(), 0.0))

    # -- answers

    async def _apply(self, response: FetchResponse) -> None:
        """Apply an answer to the partitions, at most `PART_BYTES` in a turn of the reactor."""
        writes: dict[Key, Deferred[None]] = {}
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                followed, asked = self._followed.get(key), self._session.positions.get(key)
                if followed is None or asked is None or asked.leader_epoch != followed.epoch:
                    continue
                if key in self._paused:
                    continue  # this answers a nudge and repeats the answer before it, which is still being written
                self._changed[key] = None
                step = followed.answered(data, asked)
                if step.kind is not StepKind.FETCH or data.error_code:
                    self._do(followed, step)
                    continue
                appended = self._append_all(followed, data, asked)
                if self._replicas.writes_in_threads:
                    writes[key] = Deferred.fromCoroutine(appended).addErrback(self._write_failed, followed)
                else:
                    await appended
        for key in await unfinished(writes, self._clock, _WRITE_SECONDS) if writes else ():
            self._paused[key] = _UNTIL_DONE
            writes[key].addCallback(self._resume, key)

    async def _append_all(self, followed: FollowedPartition, data: PartitionData, asked: FetchPosition) -> None:
        for part in self._parts(followed, data, asked):
            self._unyielded += len(part)
            if self._unyielded > PART_BYTES and not self._stopped:
                await sleep(self._clock, 0)  # in the reactor's next turn
                self._unyielded = len(part)
            if not await self._append(followed, part, data):
                break

    def _write_failed(self, failure: Failure, followed: FollowedPartition) -> None:
        log.failure("Unexpected error while replicating {partition!r}", failure, partition=followed.partition)
        self._refuse(followed, failure.value)

    def _parts(self, followed: FollowedPartition, data: PartitionData, asked: FetchPosition) -> list[memoryview]:
        """Return the answer's records in parts; one empty part without records, since it has offsets to apply."""
        if not followed.current or followed.partition.log.log_end_offset != asked.offset:
            return []
        records: Any = data.records
        if not records:
            return [memoryview(b"")]
        self._throttle(followed, len(records))
        try:
            return list(parts(memoryview(records)))
        except InvalidAppend as error:
            self._refuse(followed, error)
            return []

    async def _append(self, followed: FollowedPartition, part: memoryview, data: PartitionData) -> bool:
        """Append a part of an answer; return whether the next part may be appended."""
        if self._followed.get(followed.key) is not followed or not followed.current:
            return False
        try:
            begin = followed.begin_for(part)
            if begin is not None:
                await self._replicas.begin_at(followed.partition, begin)
                if self._followed.get(followed.key) is not followed or not followed.current:
                    return False
            done = self._replicas.append_fetched(followed.partition, part, data.high_watermark, data.log_start_offset)
            if done is not None:
                await done
        except (StorageError, PartitionOffline, FencedLeaderEpoch) as error:
            if self._followed.get(followed.key) is followed:
                self._refuse(followed, error)
            return False
        followed.succeeded()
        return True

    def _refuse(self, followed: FollowedPartition, error: object) -> None:
        self._do(followed, followed.pause(str(error)))

    def _do(self, followed: FollowedPartition, step: Step) -> None:
        partition = followed.partition
        if step.kind is StepKind.PAUSE:
            self._pause(followed, step.seconds)
            if step.loud:
                log.error("{partition!r} can't be replicated: {why}", partition=partition, why=step.why)
        elif step.kind is StepKind.LOCATE:
            self._lost[followed.key] = followed
        elif step.kind in (StepKind.TRUNCATE, StepKind.BEGIN):
            log.info(
                "Truncating {partition!r} from offset {end} to {offset}: {why}",
                partition=partition, end=partition.log.log_end_offset, offset=step.offset, why=step.why,
            )  # fmt: skip
            self._paused[followed.key] = _UNTIL_DONE
            truncate = self._replicas.truncate if step.kind is StepKind.TRUNCATE else self._replicas.begin_at
            truncate(partition, step.offset).addBoth(self._truncated, followed)
        self._changed[followed.key] = None

    def _truncated(self, result: Failure | None, followed: FollowedPartition) -> None:
        self._resume(None, followed.key)
        if isinstance(result, Failure) and self._followed.get(followed.key) is followed:
            self._refuse(followed, result.value)

    def _resume(self, _: object, key: Key) -> None:
        """Fetch a partition again after a truncation or a long write."""
        if self._paused.get(key) == _UNTIL_DONE:
            del self._paused[key]
        self._changed[key] = None
        self._wake_in(0)

    def _throttle(self, followed: FollowedPartition, count: int) -> None:
        """Count the bytes of a throttled replica, and pause it while they exceed the quota."""
        if self._replica_throttle.holds_itself_back(followed.partition):
            self._quota.record(count)
            wait = self._quota.wait
            if wait > 0:  # a short pause: a new rate has to take effect soon
                self._pause(followed, min(wait, _THROTTLED_SECONDS))
