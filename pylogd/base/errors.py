"""The error table of the protocol, and the base classes of pylogd's exceptions.

Codes and names are Kafka's, since they are part of the protocol; the texts are ours. Codes are defined only in the
enum: `ERRORS` is derived from it, and `protocol/errors.json` has the same for other languages (a test compares them).
This module imports nothing of the project, so everything may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple


class ErrorCode(IntEnum):
    """An error code of the protocol: its number, whether a client may retry, and its meaning."""

    retriable: bool
    text: str
    _value_: int

    def __new__(cls, code: int, retriable: bool = False, text: str = "") -> ErrorCode:
        """Make the member whose value is `code`."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.text = text
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed in a way that it did not foresee; its log says more."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset lies before the start or behind the end of the partition's log."
    CORRUPT_MESSAGE = 2, True, "A record batch is damaged: wrong checksum, wrong size, or no key on a compacted topic."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This broker does not know the topic, or does not host the partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch asks for an impossible number of bytes."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment; an election is under way."
    NOT_LEADER_OR_FOLLOWER = 6, True, "This broker is not the partition's leader, or not one of its replicas."
    REQUEST_TIMED_OUT = 7, True, "The request was not done within its time limit."
    BROKER_NOT_AVAILABLE = 8, False, "The broker can't be reached."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica can't be reached, or is not on this broker."
    MESSAGE_TOO_LARGE = 10, False, "A record batch is larger than max.message.bytes allows."
    STALE_CONTROLLER_EPOCH = 11, False, "The controller has moved to another broker since."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The note committed with an offset is longer than allowed."
    NETWORK_EXCEPTION = 13, True, "The connection was lost before the answer came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator still reads its state; ask again soon."
    COORDINATOR_NOT_AVAILABLE = 15, True, "No coordinator is up for this group or transactional id."
    NOT_COORDINATOR = 16, True, "Another broker coordinates this group or transactional id."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not allowed, or the topic can't be used this way."
    RECORD_LIST_TOO_LARGE = 18, False, "The record batches together are larger than a log segment may be."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer replicas are in sync than the topic demands; nothing was appended."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "Appended, but fewer replicas are in sync than the topic demands."
    INVALID_REQUIRED_ACKS = 21, False, "The acks of a produce request must be 0, 1 or -1 (all)."
    ILLEGAL_GENERATION = 22, False, "The group has moved on to another generation."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member has no protocol in common with the group, or named none."
    INVALID_GROUP_ID = 24, False, "The group id is not allowed."
    UNKNOWN_MEMBER_ID = 25, False, "The group has no such member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the range that the broker allows."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing; the member should join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offset commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "The client may not do this with the topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "The client may not do this with the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "The client may not do this with the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's time stamp is further from the broker's clock than the topic allows."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the present step of authentication."
    UNSUPPORTED_VERSION = 35, False, "The broker does not serve this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not allowed."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is below 1 or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The assignment of replicas to brokers is not allowed."
    INVALID_CONFIG = 40, False, "A setting's name or value is not allowed."
    NOT_CONTROLLER = 41, True, "Another broker is the controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The broker can't do this with this version of the record format."
    POLICY_VIOLATION = 44, False, "A policy of this cluster forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = (
        45,
        False,
        "The producer's sequence number leaves a gap: a batch before it is missing.",
    )
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer's batch was appended before."
    INVALID_PRODUCER_EPOCH = 47, False, "A newer instance of the producer has taken over."
    INVALID_TXN_STATE = 48, False, "The transaction's state does not allow this step."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to this transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is above what the broker allows."
    CONCURRENT_TRANSACTIONS = 51, True, "Another step of the same transaction is still under way."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The sender of the marker no longer coordinates the transaction."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "The client may not use this transactional id."
    SECURITY_DISABLED = 54, False, "Authorization is switched off on this broker."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not tried, since another part of the same request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The disk under the partition failed."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such data directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "Authentication failed."
    UNKNOWN_PRODUCER_ID = 59, False, "The broker has forgotten this producer, as when its records were deleted."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition's replicas are being moved."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are switched off."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "The broker does not know the delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The delegation token belongs to another principal."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "Delegation tokens can't be handled over this connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "The client may not handle this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The broker does not know this type of principal."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The broker has no such fetch session; begin a new one."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session expected another epoch; begin a new one."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener of the name that the request came in on."
    TOPIC_DELETION_DISABLED = 73, False, "Topics may not be deleted on this cluster."
    FENCED_LEADER_EPOCH = 74, True, "The client's leader epoch is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The client's leader epoch is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The compression codec can't be used by this client or broker."
    STALE_BROKER_EPOCH = 77, False, "The broker has registered anew since."
    OFFSET_NOT_AVAILABLE = 78, True, "The new leader does not know the high watermark yet; ask again soon."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id that this answer carries."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not up, or not in sync."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has as many members as it may have."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over this group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica of the partition may become leader at the moment."
    ELECTION_NOT_NEEDED = 84, True, "The partition has the right leader already."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition's replicas are not being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group still subscribes to the topic."
    INVALID_RECORD = 87, False, "A record breaks the rules of its batch or of the topic."
    UNSTABLE_OFFSET_COMMIT = 88, True, "A pending transaction holds offsets of this group; ask again soon."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The client is over its quota; try again later."
    PRODUCER_FENCED = 90, False, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The request names something that does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names the same thing twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the rules."
    INCONSISTENT_VOTER_SET = 94, False, "Sender or receiver is not among the expected voters."
    INVALID_UPDATE_VERSION = 95, False, "The version in the update is not allowed."
    FEATURE_UPDATE_FAILED = (
        96,
        False,
        "The features could not be updated, for a reason that the broker did not foresee.",
    )
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The principal of a forwarded request can't be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position is negative or behind the end of the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This broker does not know the topic id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "Another broker has registered under this id."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker has registered under this id."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic id is not that of the log on disk."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request was meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "The broker does not know the transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic names and topic ids; begin a new one."
    INELIGIBLE_REPLICA = 107, False, "One of the new in-sync replicas may not be one."
    NEW_LEADER_ELECTED = 108, False, "The change was made, and the partition has a new leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The records at this offset have moved to remote storage."
    FENCED_MEMBER_EPOCH = 110, False, "The member's epoch is out of date; give up all partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, False, "Another member still holds this group instance id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support the assignor, or not this version of it."
    STALE_MEMBER_EPOCH = (
        113,
        False,
        "The member's epoch is out of date; try again with the one from the next heartbeat.",
    )
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request went to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "The broker does not support this kind of endpoint."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no controller of this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The id of the telemetry subscription is wrong or out of date."
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry is larger than the broker allows."
    INVALID_REGISTRATION = 119, False, "The controller refuses the broker's registration."
    TRANSACTION_ABORTABLE = 120, False, "The transaction must be aborted; then the transactional id can be used on."
    INVALID_RECORD_STATE = 121, False, "The record's delivery can't be acknowledged in its present state."
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker has no such share session; begin a new one."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session expected another epoch; begin a new one."
    FENCED_STATE_EPOCH = 124, False, "The share group's state has moved on to another epoch."
    INVALID_VOTER_KEY = 125, False, "The voter's key is not that of the replica asked."
    DUPLICATE_VOTER = 126, False, "The voter is one of the voters already."
    VOTER_NOT_FOUND = 127, False, "The voter is not one of the voters."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression can't be read."
    REBOOTSTRAP_REQUIRED = 129, False, "The client's view is out of date; begin again from the bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The streams topology is not allowed."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The epoch of the streams topology is not allowed."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The epoch of the streams topology is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker holds as many share sessions as it may."


class ErrorInfo(NamedTuple):
    """One row of the error table."""

    code: int
    name: str
    retriable: bool
    text: str


#: every code of the protocol with its row
ERRORS: Mapping[ErrorCode, ErrorInfo] = MappingProxyType(
    {error: ErrorInfo(int(error), error.name, error.retriable, error.text) for error in ErrorCode}
)


class PylogdError(Exception):
    """The base of all errors that pylogd raises on purpose."""


class ProtocolError(PylogdError):
    """A breach of the wire protocol: by the peer, or by the local user of a codec."""


class KafkaError(PylogdError):
    """An error with a code of the protocol.

    Handlers answer with it; clients raise it when a broker answers with one.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = code.text if message is None else message
        super().__init__(f"{code.name}: {self.message}")

    def __reduce__(self) -> tuple[type[KafkaError], tuple[object, ...]]:
        return type(self), (self.code, self.message)

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.retriable


def error_for(code: int) -> ErrorCode:
    """Return the member for a code from the wire; UNKNOWN_SERVER_ERROR for a code that is not in the table."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class CloseConnection(PylogdError):
    """Raised by a request handler whose only answer is to close the connection. The text is the logged reason."""


class ClientError(PylogdError):
    """Base class of errors of the client library: of connections to brokers, and of how the library is used."""

    retriable = False


class BrokerUnavailable(ClientError):
    """The connection to the broker failed or was lost. A request in flight may or may not have taken effect."""

    retriable = True


class RequestTimedOut(ClientError):
    """The broker did not answer in time. The request may or may not have taken effect."""

    retriable = True


class InvalidReply(ClientError):
    """The broker answered with bytes that the protocol does not allow. The connection is closed."""

    retriable = True


class UnsupportedByBroker(ClientError):
    """The broker does not serve this API, or supports no version of it that this client supports."""


class AuthenticationFailed(ClientError):
    """The broker does not accept this client's credentials, or this client does not trust the broker.

    A retry helps only after credentials, certificates or settings were corrected.
    """


class TlsFailed(AuthenticationFailed):
    """The TLS handshake failed: one side does not trust the other's certificate, or they share no TLS version or
    cipher.
    """


def is_retriable(error: BaseException) -> bool:
    """Whether the same request, sent again a little later and perhaps to another broker, may succeed."""
    return isinstance(error, ClientError | KafkaError) and error.retriable
