"""The transactions of one producer, without I/O: which requests to send to the coordinator, and when.

Strategy: `TRANSACTION` (transaction_states) has the states. Each `turn` derives from the state the one request that is
due: find a coordinator, get a producer id, add partitions or a group, commit offsets, end the transaction. The
application waits for an `Operation`. The send queue has the batches: it asks `may_send`, and reports each batch that it
gives up with `batch_failed`; then the transaction can only be aborted.

    operation = transactions.prepare()              # wait until operation.done
    transactions.begin()
    ...                                             # records, and send_offsets(offsets, group)
    operation = transactions.end(committed=True)    # wait again; operation.error tells what went wrong

Rules: one request at a time, none before `not_before`. A transaction is ended only when all batches have results. Only
`transaction_model` says how to react to an error code. Retries continue until the application gives up waiting.
Callbacks of calls take `guard`; with threads, callers of all other methods hold it. No clock, no socket, no thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError, error_for
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.call import Call, Endpoint
from pylogd.client.core.errors import (
    ProducerFailed,
    ProducerFenced,
    TransactionAborted,
    TransactionError,
    is_retriable,
)
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import OffsetAndMetadata, TopicPartition
from pylogd.client.core.producer import transaction_requests as requests
from pylogd.client.core.producer.options import ProducerOptions
from pylogd.client.core.producer.transaction_model import (
    FENCED,
    FINAL_FOR_BATCHES,
    Action,
    Operation,
    PendingOffsets,
    TransactionOutcome,
    TransactionOwner,
    action_for,
)
from pylogd.client.core.producer.transaction_requests import ProducerIdentity
from pylogd.client.core.producer.transaction_states import (
    KNOWLEDGE,
    SENDING,
    TRANSACTION,
    CoordinatorEvent,
    CoordinatorKnowledge,
    TransactionInput,
    TransactionState,
)
from pylogd.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from pylogd.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from pylogd.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pylogd.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from pylogd.wire.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

PURPOSE = "transactions"
#: Seconds between tries while the coordinator is still ending the previous transaction.
_CONCURRENT_FIRST, _CONCURRENT_MOST = 0.01, 0.2

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
_State, _Input = TransactionState, TransactionInput


class Transactions:
    """See the module. `error` is the reason why the present transaction is broken, or the producer has failed."""

    def __init__(
        self,
        owner: TransactionOwner,
        options: ProducerOptions,
        *,
        features: Callable[[], Mapping[str, int]],
        guard: AbstractContextManager[Any],
    ) -> None:
        """options: those of a transactional producer.
        features: returns the features of the cluster.
        """
        assert options.transactional_id is not None
        self.transactional_id = options.transactional_id
        self.error: TransactionError | None = None
        self._owner = owner
        self._options = options
        self._features = features
        self._guard = guard
        self._machine = TRANSACTION.machine()
        self._level = 1  # the feature's level for the present transaction
        self._producer_id, self._epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        self._coordinators: dict[tuple[int, str], Endpoint] = {}
        self._in_flight = False
        self._not_before = 0.0
        self._backoff = options.backoff()
        self._concurrent = Backoff(_CONCURRENT_FIRST, _CONCURRENT_MOST)
        self._ready = Operation(done=True)  # the operation that waits for a producer id
        self._ending: tuple[bool, Operation] = (False, Operation(done=True))  # whether to commit; who waits
        self._drop_reason: TransactionError | None = None  # why the queued batches have to be dropped, at the next turn
        self._knowledge = KNOWLEDGE.machine()
        #: the outcome of the transaction that is open, or was open last
        self.outcome = TransactionOutcome(committed=False)
        self._clear()

    def _clear(self) -> None:
        """Forget the transaction that has ended."""
        self._partitions: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._offsets: deque[PendingOffsets] = deque()
        self._knowledge.handle(CoordinatorEvent.ENDED)
        self._renew = False  # whether sequence numbers have gaps, so that the next transaction needs another epoch

    @property
    def state(self) -> TransactionState:
        """The state of the producer."""
        return self._machine.state

    @property
    def refusal(self) -> PylogdError | None:
        """The reason why no records are accepted at the moment; None while a transaction is open."""
        if self._machine.state is _State.OPEN:
            return None
        return self.error or TransactionError("no transaction is open: call begin_transaction first")

    @property
    def is_committing(self) -> bool:
        """Whether batches are to be sent without lingering."""
        return self.state is _State.COMMITTING

    @property
    def is_broken(self) -> bool:
        """Whether `error` prevents the next commit."""
        return self.state in (_State.BROKEN, _State.FAILED)

    @property
    def can_abort(self) -> bool:
        """Whether a transaction is open or broken, and not being ended."""
        return self._machine.allows(_Input.ABORT)

    @property
    def produce_until(self) -> int | None:
        """The last version of Produce to use; None for any."""
        return requests.PRODUCE_UNTIL[self._level]

    # What the application wants

    def prepare(self) -> Operation:
        """Get a producer id, which fences earlier producers with this transactional id and ends their transactions.

        A producer that has an id only waits for its next epoch, if that is being requested.
        """
        if self.state is _State.NEW:
            self._ready = Operation()
            self._handle(_Input.INITIALIZE)
        elif self.state is _State.FAILED:
            return Operation(True, self.error)
        return self._ready

    def begin(self) -> None:
        """Begin a transaction. Raises TransactionError if a transaction is open, or if there is no producer id yet."""
        if self.state is _State.FAILED:
            assert self.error is not None
            raise self.error
        if self.state is not _State.READY:
            raise TransactionError(f"a transaction can't begin now: {self.state.value}")
        self._level = self._finalized_level()
        self.error = None
        self.outcome = TransactionOutcome()
        self._handle(_Input.BEGIN)

    def end(self, *, committed: bool) -> Operation:
        """Commit or abort. A repeated call waits again for the same end.

        Raises TransactionAborted if only an abort is possible; ProducerFailed; TransactionError if there is nothing to
        end.
        """
        commits, pending = self._ending
        if not pending.done:
            if commits is committed:
                return pending
            raise TransactionError(f"the {'commit' if commits else 'abort'} is under way: wait for its result first")
        if self.state is _State.FAILED or (committed and self.state is _State.BROKEN):
            assert self.error is not None
            raise self.error
        event = _Input.COMMIT if committed else _Input.ABORT
        if not self._machine.allows(event):
            raise TransactionError(f"there is no transaction to end: {self.state.value}")
        self._ending = committed, Operation()
        if not committed:
            self._break_off(self.error or TransactionAborted("the transaction was aborted by the application"))
        self._handle(event)
        return self._ending[1]

    def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> Operation:
        """Commit a group's offsets with the transaction. Raises `refusal` if there is one."""
        if (refusal := self.refusal) is not None:
            raise refusal
        pending = PendingOffsets(dict(offsets), group)
        if pending.left:
            self._offsets.append(pending)
        else:
            pending.operation.end()
        return pending.operation

    def close(self, error: PylogdError) -> None:
        """End all operations with `error`."""
        for operation in (self._ready, self._ending[1], *(pending.operation for pending in self._offsets)):
            operation.end(error)

    # What the send queue asks and reports

    def may_send(self, partition: TopicPartition) -> bool:
        """Whether batches may be sent to a partition."""
        if self._level == 1:
            return partition in self._partitions and self._machine.state in SENDING
        return self._machine.state in SENDING

    def sending(self) -> None:
        """Record that batches are being sent: the coordinator will know of the transaction."""
        self._knowledge.handle(CoordinatorEvent.ASKED)

    def batch_failed(self, error: PylogdError) -> None:
        """Record that a batch will not be written: the transaction can't be committed."""
        code = error.code if isinstance(error, KafkaError) else None
        self._renew = True
        if code in FINAL_FOR_BATCHES:
            self._fail(error, fenced=code in FENCED)
        else:
            self._break(error)

    # Time

    def turn(self, now: float, wanted: Set[TopicPartition], unfinished: Callable[[], int]) -> list[Call]:
        """Return the request that is due, if any.

        wanted: the partitions for which there are batches.
        unfinished: returns the number of batches without a result.
        """
        if (reason := self._drop_reason) is not None:
            self._drop_reason = None
            self._renew |= self._owner.drop_batches(reason)
        if self._in_flight or now < self._not_before:
            return []
        call = self._next(wanted, unfinished)
        return [] if call is None else [call]

    def next_time(self, now: float) -> float | None:
        """Return when to call `turn`, unless an event comes first."""
        return self._not_before if not self._in_flight and self._not_before > now else None

    def _next(self, wanted: Set[TopicPartition], unfinished: Callable[[], int]) -> Call | None:
        state = self.state
        if state in (_State.INITIALIZING, _State.RENEWING):
            return self._at_coordinator(self._init_call)
        if state in SENDING:
            if self._level == 1 and (new := wanted - self._partitions):
                return self._at_coordinator(partial(self._partitions_call, sorted(new)))
            if self._offsets:
                return self._offsets_call(self._offsets[0])
        if state not in (_State.COMMITTING, _State.ABORTING) or unfinished():
            return None
        if self._knowledge.state is not CoordinatorKnowledge.NONE:
            return self._at_coordinator(self._end_call)
        self._ended()
        return None if self.state is _State.READY else self._next(wanted, unfinished)

    def _at_coordinator(
        self, make: Callable[[Endpoint], Call], key_type: int = requests.TRANSACTION_KEY, key: str | None = None
    ) -> Call:
        """Return the call that `make` makes for a coordinator, or the call that looks up the coordinator."""
        name = self.transactional_id if key is None else key
        known = self._coordinators.get((key_type, name))
        return make(known) if known is not None else self._find_call(key_type, name)

    # Requests

    def _identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.transactional_id, self._producer_id, self._epoch)

    def _call(
        self,
        message: Any,
        endpoint: Endpoint | None,
        codes: Callable[[Any], Iterable[int]],
        done: Callable[[Any], None],
        *,
        highest: int | None = None,
        api: type[Any] | None = None,
    ) -> Call:
        """Return a call that sends `message` (if it is a function, its result for a version), then calls `done` without
        errors.
        """
        self._in_flight = True
        kind = api or type(message)

        def answered(response: Any, now: float) -> None:
            with self._guard:
                self._in_flight = False
                errors = [error_for(code) for code in codes(response) if code]
                if errors:
                    self._refused(kind, endpoint, errors, now)
                else:
                    self._backoff.reset()
                    self._concurrent.reset()
                    done(response)

        def failed(error: PylogdError, now: float) -> None:
            with self._guard:
                self._in_flight = False
                if is_retriable(error):
                    self._forget(endpoint)
                    self._not_before = now + self._backoff.next()
                else:
                    self._fail(error)

        build = message if api is not None else lambda _: message
        return Call(
            kind, build, answered, failed, self._options.request_timeout, endpoint, "" if endpoint is None else PURPOSE,
            highest=highest,
        )  # fmt: skip

    def _find_call(self, key_type: int, key: str) -> Call:
        def found(response: Any) -> None:
            answer = response.coordinators[0] if response.coordinators else response
            self._coordinators[key_type, key] = Endpoint(answer.node_id, answer.host, answer.port)

        return self._call(
            lambda version: requests.find_coordinator(key, key_type, version),
            None,
            lambda response: [(response.coordinators[0] if response.coordinators else response).error_code],
            found,
            api=FindCoordinatorRequest,
        )

    def _init_call(self, coordinator: Endpoint) -> Call:
        message = InitProducerIdRequest(
            self.transactional_id, int(self._options.transaction_timeout * 1000), self._producer_id, self._epoch
        )
        return self._call(message, coordinator, requests.error_code, self._id_given)

    def _partitions_call(self, new: list[TopicPartition], coordinator: Endpoint) -> Call:
        def added(_: object) -> None:
            self._partitions.update(new)
            self._knowledge.handle(CoordinatorEvent.CONFIRMED)

        self._knowledge.handle(CoordinatorEvent.ASKED)
        message = requests.add_partitions(self._identity(), new)
        assert isinstance(message, AddPartitionsToTxnRequest)
        return self._call(
            message, coordinator, requests.add_partitions_codes, added, highest=requests.ADD_PARTITIONS_UNTIL
        )

    def _offsets_call(self, pending: PendingOffsets) -> Call:
        group = pending.group
        self._knowledge.handle(CoordinatorEvent.ASKED)
        if self._level == 1 and group.group_id not in self._groups:
            return self._at_coordinator(partial(self._group_call, group.group_id))
        return self._at_coordinator(
            partial(self._commit_offsets_call, pending), requests.GROUP_KEY, group.group_id
        )  # fmt: skip

    def _group_call(self, group_id: str, coordinator: Endpoint) -> Call:
        def added(_: object) -> None:
            self._groups.add(group_id)
            self._knowledge.handle(CoordinatorEvent.CONFIRMED)

        message = AddOffsetsToTxnRequest(self.transactional_id, self._producer_id, self._epoch, group_id)
        return self._call(message, coordinator, requests.error_code, added)

    def _commit_offsets_call(self, pending: PendingOffsets, coordinator: Endpoint) -> Call:
        identity, offsets = self._identity(), dict(pending.left)

        def codes(response: TxnOffsetCommitResponse) -> list[int]:
            found = requests.offset_codes(response)
            for partition in [partition for partition in offsets if not found.get(partition, -1)]:
                pending.left.pop(partition, None)
            return [found.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR) for partition in pending.left]

        def done(_: object) -> None:
            self._knowledge.handle(CoordinatorEvent.CONFIRMED)
            if pending in self._offsets:
                self._offsets.remove(pending)
            pending.operation.end()

        return self._call(
            lambda version: requests.commit_offsets(identity, pending.group, offsets, version),
            coordinator, codes, done,
            highest=requests.COMMIT_OFFSETS_UNTIL[self._level], api=TxnOffsetCommitRequest,
        )  # fmt: skip

    def _end_call(self, coordinator: Endpoint) -> Call:
        message = EndTxnRequest(
            self.transactional_id, self._producer_id, self._epoch, self.state is _State.COMMITTING
        )  # fmt: skip
        return self._call(
            message, coordinator, requests.error_code, self._ended, highest=requests.END_UNTIL[self._level]
        )

    # Answers

    def _id_given(self, response: InitProducerIdResponse) -> None:
        self._take_id(response.producer_id, response.producer_epoch)
        self._handle(_Input.ID_GIVEN)
        self._ready.end()

    def _take_id(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._producer_id, self._epoch = producer_id, epoch
            self._owner.producer_id_given(producer_id, epoch)

    def _ended(self, response: EndTxnResponse | None = None) -> None:
        """Record that the transaction is ended, or that the coordinator never knew of it."""
        raised = response is not None and response.producer_id != NO_PRODUCER_ID
        if response is not None and raised:
            self._take_id(response.producer_id, response.producer_epoch)
        # A client that changes to level 2 begins with another epoch, so that its earlier requests can't be taken for
        # new ones.
        renew = (self._renew and not raised) or (self._level == 1 and self._finalized_level() > 1)
        self._clear()
        self.outcome.committed = self.state is _State.COMMITTING
        if renew:
            self._ready = Operation()
        self._handle(_Input.ENDED_WITH_OLD_EPOCH if renew else _Input.ENDED)
        self._ending[1].end()

    def _finalized_level(self) -> int:
        return 2 if self._features().get(requests.FEATURE, 0) >= 2 else 1

    def _refused(self, api: type[Any], endpoint: Endpoint | None, errors: list[ErrorCode], now: float) -> None:
        """React to the most severe of the error codes in an answer."""
        confirmed = self._knowledge.state is CoordinatorKnowledge.CERTAIN
        actions = {code: action_for(code, api, self.state, confirmed=confirmed) for code in errors}
        order = list(Action)
        code = max(actions, key=lambda code: order.index(actions[code]))
        action, error = actions[code], KafkaError(code)
        if action is Action.FIND:
            self._forget(endpoint)
        if action in (Action.RETRY, Action.FIND):
            pauses = self._concurrent if code is ErrorCode.CONCURRENT_TRANSACTIONS else self._backoff
            self._not_before = now + pauses.next()
        elif action is Action.ABORT and self.state is _State.ABORTING and api is EndTxnRequest:
            self._renew = True
            self._ended()  # the coordinator knows of no transaction to abort
        elif action is Action.ABORT:
            self._renew = True
            self._break(error)
        else:
            self._fail(error, fenced=action is Action.FENCED)

    def _forget(self, target: object) -> None:
        """Look up a coordinator again before the next request to it."""
        for key in [key for key, endpoint in self._coordinators.items() if endpoint == target]:
            del self._coordinators[key]

    # Failures

    def _break(self, cause: PylogdError) -> None:
        """Record that the transaction can only be aborted."""
        if not self._machine.allows(_Input.BROKE):
            return
        if self.state in SENDING:
            error = TransactionAborted(f"the transaction can't be committed: {cause}")
            error.__cause__ = cause
            self._break_off(error)
            self._ending[1].end(error)
        self._handle(_Input.BROKE)

    def _break_off(self, error: TransactionError) -> None:
        """Fail the waiting operations with `error`."""
        self.error = self._drop_reason = error
        while self._offsets:
            self._offsets.popleft().operation.end(error)

    def _fail(self, cause: PylogdError, *, fenced: bool = False) -> None:
        """Record that the producer can't be used any more."""
        if self.state is _State.FAILED:
            return
        kind = ProducerFenced if fenced else ProducerFailed
        error = kind(f"transactional id {self.transactional_id!r}: {cause}")
        error.__cause__ = cause
        self._break_off(error)
        self.outcome.committed = bool(self.outcome.committed)
        self._handle(_Input.FAILED)
        self._ready.end(error)
        self._ending[1].end(error)

    def _handle(self, event: TransactionInput) -> None:
        self._machine.handle(event)
        self._owner.transaction_changed()
