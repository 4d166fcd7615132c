"""The errors of requests about topics, their settings or brokers that can't be done.

Each class has the protocol's error code, and its text can be sent to a client. Errors of the metadata store are in
`store.errors`.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.base.errors import ErrorCode, PylogdError


class ProducerIdsExhausted(PylogdError):
    """No further producer id fits into the protocol's 64 bits."""


class TopicError(PylogdError):
    """A request about topics or settings can't be done.

    code: the error code that is sent to the client.
    """

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR


class TopicExists(TopicError):
    """A topic with this name already exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class UnknownTopic(TopicError):
    """No topic with this name or id exists."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class InvalidTopicName(TopicError):
    """The name is empty, too long, has characters other than [a-zA-Z0-9._-], or collides with another."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class TopicDeletionDisabled(TopicError):
    """Topics may not be deleted here (`delete.topic.enable`)."""

    code = ErrorCode.TOPIC_DELETION_DISABLED


class InvalidPartitions(TopicError):
    """The number of partitions is not possible."""

    code = ErrorCode.INVALID_PARTITIONS


class TooManyPartitions(TopicError):
    """A request would make more partitions than `max.partitions.per.request` allows."""

    code = ErrorCode.POLICY_VIOLATION


class InvalidReplicationFactor(TopicError):
    """The replication factor is below 1 or above the number of brokers."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(TopicError):
    """An assignment has gaps, duplicates, unknown brokers or replica lists of different lengths."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class FencedLeader(TopicError):
    """The broker that wants to change an in-sync set does not lead the partition in that leader epoch."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class StalePartition(TopicError):
    """The partition has changed since the state that a change was based on."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class IneligibleReplica(TopicError):
    """A broker can't join an in-sync set: it has no replica, is not alive, is stopping, or must not join yet."""

    code = ErrorCode.INELIGIBLE_REPLICA


class ElectionNotNeeded(TopicError):
    """The partition already has the leader that it should have."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class PreferredLeaderNotAvailable(TopicError):
    """The preferred leader is not alive, or not in sync."""

    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailable(TopicError):
    """No replica of the partition is alive."""

    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class NoReassignmentInProgress(TopicError):
    """There is no reassignment to cancel."""

    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class InvalidConfig(TopicError):
    """A setting is unknown or has an invalid value."""

    code = ErrorCode.INVALID_CONFIG


class OutsideLabel(TopicError):
    """A change would leave replicas on brokers that do not carry the topic's label."""

    code = ErrorCode.POLICY_VIOLATION


class InvalidChange(TopicError):
    """A request contradicts itself or the state of its topic."""

    code = ErrorCode.INVALID_REQUEST
