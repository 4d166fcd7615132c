"""The reasons for which a partition refuses a request. `pylogd.broker.api.errors` maps each to an error code."""

from __future__ import annotations

from pylogd.base.errors import PylogdError


class NotEnoughReplicas(PylogdError):
    """Nothing was appended: fewer replicas are in sync than `min.insync.replicas` demands, or a write queue is full."""


class QueueFull(NotEnoughReplicas):
    """Nothing was appended, because the write queue of the disk is full. The client should try again later.

    pause: seconds for which nothing more should be read from the client; 0 if few appends are being refused.
    """

    def __init__(self, message: str, pause: float) -> None:
        super().__init__(message)
        self.pause = pause


class FencedLeaderEpoch(PylogdError):
    """The client's leader epoch is older than ours. The client should refresh its metadata."""


class UnknownLeaderEpoch(PylogdError):
    """The client's leader epoch is newer than ours, since our metadata is outdated."""


class NotLeader(PylogdError):
    """Another broker leads the partition, or no broker does."""


class OffsetNotAvailable(PylogdError):
    """A new leader does not know yet how far its log is committed (KIP-207). The client should ask again soon."""


class PartitionOffline(PylogdError):
    """The partition's log could not be opened, or its log directory has failed since."""
