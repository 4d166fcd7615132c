"""Fetches from one leader for all partitions that this broker follows there, over one connection.

Strategy: a loop of long polls in one incremental session: ask, apply, ask again. What an answer means is decided by
`following`; this drives it: appends in parts, with a turn of the reactor between them; cuts logs in threads; asks for
the ends of the leader's log where one is lost; leaves out for a while what failed or is throttled.

Rules:
- One partition's trouble is its own: it pauses and the others go on. A connection's trouble is everybody's.
- While a log is cut the partition is not fetched, and the manager holds back any change of its role.
- A partition that is given to a fetcher anew, in another leader epoch, begins anew.
- What is to be fetched from now on need not wait for a long poll to end: a second request in the same session nudges
  the leader, which answers both at once.

It must not know how brokers are found and connected to, or what a partition's state in the metadata is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.errors import ErrorCode, KafkaError, PylogdError
from pylogd.log.errors import InvalidAppend, StorageError
from pylogd.replica.asking import FetchConversation, Key, next_epoch
from pylogd.replica.following import PART_BYTES, Asked, Followed, Move, Step, parts
from pylogd.replica.partition import NO_EPOCH, Partition, PartitionOffline
from pylogd.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

if TYPE_CHECKING:
    from pylogd.replica.manager import ReplicaManager
    from pylogd.replica.throttle import ReplicationQuota

log = Logger()

_LATEST, _EARLIEST_LOCAL = -1, -4
_READ_COMMITTED = 1
_FIRST_BACKOFF = 0.05  # seconds, after a connection failed; doubled up to `FetcherConfig.backoff`


class IConnection(Protocol):
    """What is needed of a connection to a broker (`pylogd.net.client.BrokerConnection`)."""

    def request(self, message: Any, *, timeout: float | None = None) -> Deferred[Any]:
        """Fires with the response."""

    def close(self) -> None:
        """Fail what waits, and close."""


Connect = Callable[[int], "Deferred[Any]"]
"""Fires with an IConnection to the broker of that id."""


@dataclass(slots=True, frozen=True)
class FetcherConfig:
    """The `replica.*` settings of a fetcher; times in seconds. `broker_epoch`: this broker's, as it is now."""

    node_id: int
    max_bytes: int
    max_response_bytes: int
    min_bytes: int
    max_wait_ms: int
    backoff: float
    timeout: float
    cluster_id: str | None = None
    broker_epoch: Callable[[], int] = lambda: NO_EPOCH


class LeaderFetcher:
    """See the module. `follow` and `unfollow` say what to fetch; it runs until `stop`."""

    def __init__(
        self,
        leader_id: int,
        replicas: ReplicaManager,
        connect: Connect,
        clock: IReactorTime,
        config: FetcherConfig,
        quota: ReplicationQuota,
    ) -> None:
        self.leader_id = leader_id
        self._replicas = replicas
        self._connect = connect
        self._clock = clock
        self._config = config
        self._quota = quota
        self._followed: dict[Key, Followed] = {}
        self._paused: dict[Key, float] = {}  # until when, in seconds; infinite while its log is cut
        self._lost: dict[Key, Followed] = {}  # the leader's ends have to be asked for
        self._changed: dict[Key, None] = {}  # is to be asked for something else, or no more; in order
        self._conversation = FetchConversation()
        self._connection: IConnection | None = None
        self._waiting: Deferred[None] | None = None  # what the loop waits for when it asks nothing
        self._pending: Deferred[Any] | None = None
        self._polling = False  # a request is at the leader, and may be for long
        self._nudge: Deferred[Any] | None = None
        self._poke: IDelayedCall | None = None
        self._failures = 0
        self._broker_epoch = NO_EPOCH  # that the leader was told
        self._stopped = False
        self._done = Deferred.fromCoroutine(self._run())

    def __len__(self) -> int:
        """How many partitions it follows."""
        return len(self._followed)

    # -- what to fetch

    def follow(self, partition: Partition) -> None:
        """Fetch it from now on, in its present leader epoch."""
        followed = Followed(partition, self._config.backoff)
        self._followed[followed.key] = followed
        if self._paused.get(followed.key) != float("inf"):
            self._paused.pop(followed.key, None)
        self._lost.pop(followed.key, None)
        if followed.starts_at_latest:
            self._lost[followed.key] = followed
        self._changed[followed.key] = None
        self._poke_in(0)

    def unfollow(self, partition: Partition) -> None:
        """Fetch it no more."""
        key = partition.topic_id, partition.index
        if self._followed.pop(key, None) is not None:
            self._lost.pop(key, None)
            self._changed[key] = None

    def stop(self) -> Deferred[None]:
        """End the loop; fires when it has. Nothing is appended from now on."""
        self._stopped = True
        self._followed.clear()
        if self._poke is not None and self._poke.active():
            self._poke.cancel()
        self._wake()
        if self._pending is not None:
            self._pending.cancel()
        if self._connection is not None:
            self._connection.close()
        return self._done

    def _poke_in(self, seconds: float) -> None:
        """There is something to ask for, now or in a while."""
        at = self._clock.seconds() + seconds
        if self._poke is not None and self._poke.active():
            if self._poke.getTime() <= at:
                return
            self._poke.cancel()
        if not self._stopped:
            self._poke = self._clock.callLater(seconds, self._poke_now)

    def _poke_now(self) -> None:
        self._wake()
        connection, conversation = self._connection, self._conversation
        if self._polling and self._nudge is None and connection is not None and conversation.incremental:
            session_id, epoch = conversation.session
            request = self._fetch([], [], session_id, next_epoch(epoch))
            request.max_wait_ms = 0
            self._nudge = connection.request(request, timeout=self._config.timeout)
            self._nudge.addErrback(lambda _: None)  # the request before it has failed too

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)

    # -- the loop

    async def _run(self) -> None:
        await self._turn()  # what is followed at once is asked for together
        while not self._stopped:
            try:
                if self._connection is None:
                    self._pending = self._connect(self.leader_id)
                    self._connection = await self._pending
                    self._pending = None
                await self._round(self._connection)
                self._failures = 0
            except (PylogdError, CancelledError) as error:
                await self._failed(error)
            except Exception:
                log.failure("Unexpected error while fetching from broker {leader}, retrying", leader=self.leader_id)
                await self._failed(None)
        self._hang_up()

    async def _failed(self, error: BaseException | None) -> None:
        self._hang_up()
        if self._stopped:
            return
        self._failures += 1
        if error is not None and self._failures.bit_count() == 1:
            log.warn(
                "Can't fetch from broker {leader} ({count} failures so far), retrying: {error}",
                leader=self.leader_id, count=self._failures, error=error,
            )  # fmt: skip
        seconds = min(_FIRST_BACKOFF * 2.0 ** min(self._failures - 1, 16), self._config.backoff)
        pause: Deferred[None] = Deferred()
        call = self._clock.callLater(seconds, pause.callback, None)
        self._pending = pause
        try:
            await pause
        except CancelledError:
            if call.active():
                call.cancel()
        self._pending = None

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._pending = self._nudge = None
        self._polling = False
        if connection is not None:
            connection.close()
        self._conversation.restart()
        self._changed.update(dict.fromkeys(self._followed))

    async def _round(self, connection: IConnection) -> None:
        """Ask once, and do what the answer says; or wait until there is something to ask."""
        if self._lost:
            await self._locate(connection)
        request = self._request()
        self._poke_at_end()
        if request is None:
            self._waiting = Deferred()
            await self._waiting
            return
        self._polling = True
        response = await connection.request(request, timeout=self._config.timeout + self._config.max_wait_ms / 1000)
        self._polling = False
        nudge, self._nudge = self._nudge, None
        await self._answered(response)
        if nudge is not None:
            response = await nudge
            if response is not None:
                await self._answered(response)

    async def _answered(self, response: FetchResponse) -> None:
        if self._stopped:
            return
        if response.error_code:
            self._conversation.restart()
            self._changed.update(dict.fromkeys(self._followed))
            if response.error_code not in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH
            ):  # fmt: skip
                raise KafkaError(ErrorCode(response.error_code))
            return
        self._conversation.answered(response)
        await self._apply(response)

    def _request(self) -> FetchRequest | None:
        """The next request, None where there is nothing to fetch."""
        self._end_pauses()
        epoch = self._config.broker_epoch()
        if epoch != self._broker_epoch:
            self._broker_epoch = epoch
            self._conversation.restart()  # the leader is to hear it of every partition
            self._changed.update(dict.fromkeys(self._followed))
        changed: dict[Key, Asked] = {}
        gone: list[Key] = []
        for key in self._changed:
            followed = self._followed.get(key)
            if followed is not None and followed.current and key not in self._paused and key not in self._lost:
                try:
                    changed[key] = followed.asks()
                    continue
                except PartitionOffline:
                    pass
            gone.append(key)
        self._changed.clear()
        conversation = self._conversation
        topics, forgotten = conversation.request(changed, gone, self._config.max_bytes)
        if not conversation.asked:
            conversation.restart()  # the leader's session is left to be evicted
            return None
        return self._fetch(topics, forgotten, *conversation.session)

    def _fetch(
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

    def _pause(self, followed: Followed, seconds: float) -> None:
        self._paused[followed.key] = self._clock.seconds() + seconds
        self._changed[followed.key] = None

    def _end_pauses(self) -> None:
        if self._paused:
            now = self._clock.seconds()
            over = [key for key, until in self._paused.items() if until <= now]
            for key in over:
                del self._paused[key]
            self._changed.update(dict.fromkeys(over))

    def _poke_at_end(self) -> None:
        """Ask again when the first pause is over."""
        until = min(self._paused.values(), default=float("inf"))
        if until != float("inf"):
            self._poke_in(max(until - self._clock.seconds(), 0.0))

    # -- answers

    async def _apply(self, response: FetchResponse) -> None:
        """Do what the answer says, in turns of at most so many bytes."""
        unyielded = 0
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                followed, asked = self._followed.get(key), self._conversation.asked.get(key)
                if followed is None or asked is None or asked.leader_epoch != followed.epoch:
                    continue
                self._changed[key] = None
                step = followed.answered(data, asked)
                if step.move is not Move.FETCH or data.error_code:
                    self._do(followed, step)
                    continue
                for part in self._parts(followed, data, asked):
                    unyielded += len(part)
                    if unyielded > PART_BYTES and not self._stopped:
                        await self._turn()
                        unyielded = len(part)
                    if not self._append(followed, part, data):
                        break

    def _turn(self) -> Deferred[None]:
        """Fires in the reactor's next turn."""
        turn: Deferred[None] = Deferred()
        self._clock.callLater(0, turn.callback, None)
        return turn

    def _parts(self, followed: Followed, data: PartitionData, asked: Asked) -> list[memoryview]:
        """The answer's records in parts; one empty part where there are none, for what else it tells."""
        if not followed.current or followed.partition.log.log_end_offset != asked.offset:
            return []
        records: Any = data.records
        if not records:
            return [memoryview(b"")]
        self._count(followed.partition, len(records))
        try:
            return list(parts(memoryview(records)))
        except InvalidAppend as error:
            self._refuse(followed, error)
            return []

    def _append(self, followed: Followed, part: memoryview, data: PartitionData) -> bool:
        """Whether the next part may follow."""
        if self._followed.get(followed.key) is not followed or not followed.current:
            return False
        try:
            self._replicas.append_fetched(followed.partition, part, data.high_watermark, data.log_start_offset)
        except (StorageError, PartitionOffline) as error:
            self._refuse(followed, error)
            return False
        followed.succeeded()
        return True

    def _refuse(self, followed: Followed, error: object) -> None:
        self._do(followed, followed.pause(str(error)))

    def _do(self, followed: Followed, step: Step) -> None:
        partition = followed.partition
        if step.move is Move.PAUSE:
            self._pause(followed, step.seconds)
            if step.loud:
                log.error("{partition!r} can't be replicated: {why}", partition=partition, why=step.why)
        elif step.move is Move.LOCATE:
            self._lost[followed.key] = followed
        elif step.move in (Move.TRUNCATE, Move.BEGIN):
            log.info(
                "Truncating {partition!r} from offset {end} to {offset}: {why}",
                partition=partition, end=partition.log.log_end_offset, offset=step.offset, why=step.why,
            )  # fmt: skip
            self._paused[followed.key] = float("inf")
            cut = self._replicas.truncate if step.move is Move.TRUNCATE else self._replicas.begin_at
            cut(partition, step.offset).addBoth(self._cut, followed)
        self._changed[followed.key] = None

    def _cut(self, result: Failure | None, followed: Followed) -> None:
        self._paused.pop(followed.key, None)
        self._changed[followed.key] = None
        if isinstance(result, Failure) and self._followed.get(followed.key) is followed:
            self._refuse(followed, result.value)
        self._poke_in(0)

    def _count(self, partition: Partition, count: int) -> None:
        """Records of a throttled replica have come: it waits until its allowance has grown again."""
        if self._replicas.throttle.holds_itself_back(partition):
            self._quota.record(count)
            wait = self._quota.wait
            if wait > 0:
                self._pause(self._followed[partition.topic_id, partition.index], wait)

    # -- where the leader's logs start and end

    async def _locate(self, connection: IConnection) -> None:
        """Ask for both ends of what is lost, and act on them."""
        lost, self._lost = list(self._lost.values()), {}
        try:
            starts = await self._ends(connection, lost, _EARLIEST_LOCAL)
            ends = await self._ends(connection, [one for one in lost if not one.starts_at_latest], _LATEST)
            new = [one for one in lost if one.starts_at_latest]  # nothing undecided may lie before their beginning
            ends |= await self._ends(connection, new, _LATEST, _READ_COMMITTED)
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

    async def _ends(
        self, connection: IConnection, lost: list[Followed], timestamp: int, isolation: int = 0
    ) -> dict[tuple[str, int], int]:
        if not lost:
            return {}
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for followed in lost:
            topics.setdefault(followed.partition.topic, []).append(
                ListOffsetsPartition(followed.partition.index, followed.epoch, timestamp)
            )
        request = ListOffsetsRequest(
            self._config.node_id, isolation, [ListOffsetsTopic(name, entries) for name, entries in topics.items()]
        )
        response = await connection.request(request, timeout=self._config.timeout)
        return {
            (topic.name, data.partition_index): data.offset
            for topic in response.topics
            for data in topic.partitions
            if not data.error_code and data.offset >= 0
        }
