"""The one table that maps exceptions of the packages below to error codes of the protocol.

Rules: handlers catch `PylogdError` around the work for one topic or partition and answer `explain(error)`. An exception
that is not in the table is unexpected: clients get UNKNOWN_SERVER_ERROR without its text, and its traceback is logged.
Clients are told why a file failed, but not the file's path, which is logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.log import errors as storage
from pylogd.broker.metadata.errors import TopicError
from pylogd.broker.replica.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeader,
    OffsetNotAvailable,
    PartitionOffline,
    UnknownLeaderEpoch,
)
from pylogd.config import ConfigError
from pylogd.store.errors import ConnectionLost, SessionExpired, StoreError

if TYPE_CHECKING:
    from pylogd.broker.api.context import BrokerParts

log = Logger()

CODES: Mapping[type[Exception], ErrorCode] = MappingProxyType(
    {
        storage.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
        storage.CorruptRecord: ErrorCode.CORRUPT_MESSAGE,
        storage.InvalidRecord: ErrorCode.INVALID_RECORD,
        storage.InvalidAppend: ErrorCode.INVALID_RECORD,
        storage.RecordTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
        storage.RecordListTooLarge: ErrorCode.RECORD_LIST_TOO_LARGE,
        storage.UnsupportedCompressionType: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        storage.TransactionNotOpen: ErrorCode.INVALID_TXN_STATE,
        storage.TransactionalIdMissing: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        storage.CoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        storage.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
        storage.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        storage.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
        # All other errors of storage are the broker's fault, not the client's.
        storage.StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
        PartitionOffline: ErrorCode.KAFKA_STORAGE_ERROR,
        NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        OffsetNotAvailable: ErrorCode.OFFSET_NOT_AVAILABLE,
        NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
        FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
        UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
        ConfigError: ErrorCode.INVALID_CONFIG,
        # The metadata store cannot be reached for now; the change may have been made.
        ConnectionLost: ErrorCode.REQUEST_TIMED_OUT,
        SessionExpired: ErrorCode.REQUEST_TIMED_OUT,
        StoreError: ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


#: The most characters of an error's text.
LONGEST_TEXT: Final = 1000


def explain(error: BaseException) -> tuple[ErrorCode, str]:
    """Return the error code and text for a client. Call it while `error` is handled: it may log the traceback.

    The text is cut to `LONGEST_TEXT`, since it may quote what the client sent, and a string in an answer has less than
    32 KB.
    """
    code, text = _explain(error)
    return code, text[:LONGEST_TEXT]


def _explain(error: BaseException) -> tuple[ErrorCode, str]:
    if isinstance(error, KafkaError):
        return error.code, error.message
    if isinstance(error, TopicError):
        return error.code, str(error)
    if isinstance(error, (storage.StorageFailure, storage.CorruptFile)):
        return ErrorCode.KAFKA_STORAGE_ERROR, error.reason
    for kind in type(error).__mro__:
        code = CODES.get(kind)
        if code is not None:
            return code, str(error)
    log.failure("Unexpected error while handling a request")
    return ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR.text


def why_absent(broker: BrokerParts, topic: str | bytes, index: int) -> ErrorCode:
    """Return why this broker lacks partition `index` of a topic, which is named, or given by its id as bytes.

    If the partition exists, the error is NOT_LEADER_OR_FOLLOWER: its log is still being created, or other brokers have
    it. Clients then refresh their metadata and try again.
    """
    if isinstance(topic, bytes):
        found = broker.topics.by_id(topic)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
    else:
        found = broker.topics.get(topic)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if 0 <= index < len(found.partitions):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
