"""The errors of storage. Only `api/` translates them into error codes of the protocol.

There are two families. InvalidAppend and OffsetOutOfRange mean that the caller's records or offset are not acceptable.
StorageFailure, CorruptLog, LogDirLocked and similar errors mean that the storage itself has a problem.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pylogd.base.errors import PylogdError
from pylogd.broker.log.files import SyncFailed


class StorageError(PylogdError):
    """The base class of all errors of storage."""


class OffsetOutOfRange(StorageError):
    """The offset is before the log start offset or after the log end offset."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        self.offset = offset
        self.start = start
        self.end = end
        super().__init__(f"offset {offset} is outside the log, which extends from {start} to {end}")


class ColdRead(StorageError):
    """The read would wait for the disk, or take long, and the caller allows neither. Repeat it in a thread."""


class InspectionNeeded(StorageError):
    """The records must be inspected one by one, which takes too long here. Inspect them in a thread, then append."""


class AppendInTurn(InspectionNeeded):
    """Another thread is writing or changing the log: the append has to wait for its turn.

    Raised by logs that are sometimes written in threads (`log.paced`), and by logs at rest.
    """


class LogAtRest(AppendInTurn):
    """The files of the log are not open: open them in a thread (`Log.open`), then append."""

    def __init__(self, directory: str) -> None:
        super().__init__(f"the files of {directory} are not open yet")


class InvalidAppend(StorageError):
    """The log refuses the records of an append. Nothing of the append was written.

    record_indexes: the indexes, starting at 0, of the records that are at fault; empty if no single records are.
    reason: what is wrong with each of these records.
    """

    def __init__(self, message: str, record_indexes: Sequence[int] = (), reason: str = "") -> None:
        self.record_indexes = record_indexes
        self.reason = reason or message
        super().__init__(message)


class CorruptRecord(InvalidAppend):
    """A batch has a wrong CRC or length."""


class InvalidRecord(InvalidAppend):
    """A batch is intact but invalid: its counts or offsets are wrong, or it is a control batch from a client."""


class KeylessRecords(InvalidRecord):
    """Records for a compacted log have no key."""


class TransactionNotOpen(InvalidAppend):
    """A batch is transactional, but its producer has no open transaction here."""


class TransactionalIdMissing(InvalidAppend):
    """A client sent a transactional batch in a request without a transactional id."""


class CoordinatorFenced(InvalidAppend):
    """A marker was sent by a transaction coordinator that another broker has replaced."""


class RecordTooLarge(InvalidAppend):
    """A batch is larger than `max.message.bytes`."""


class RecordListTooLarge(InvalidAppend):
    """The batches of an append are together larger than a segment may be."""


class UnsupportedCompressionType(InvalidAppend):
    """A batch is compressed with an unknown codec."""


class InvalidTimestamp(InvalidAppend):
    """A time stamp is too far from the broker's clock, or of a type that clients may not set."""


class OutOfOrderSequence(InvalidAppend):
    """An idempotent producer left a gap in its sequence numbers."""


class InvalidProducerEpoch(InvalidAppend):
    """The producer has been replaced by a newer one with the same id."""


class OffsetsOutOfOrder(InvalidAppend):
    """Batches from a leader do not continue this log: their offset or epoch is before its end."""


#: The volume is full, or this user's quota on it is.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Errors that are temporary, or caused by this process or by a symbolic link. The disk need not be defective.
_NOT_FATAL = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.ELOOP}
)
LINK = "it is a symbolic link, and links are not followed: replace it by what it points to"


class StorageFailure(StorageError):
    """The file system failed.

    cause: the error of the file system.
    reason: the error in words.
    path: the path of the file.
    """

    @property
    def is_fatal(self) -> bool:
        """Whether the data directory can no longer be used: after a failed sync, or an error not in `_NOT_FATAL`."""
        return isinstance(self.cause, SyncFailed) or self.cause.errno not in _NOT_FATAL

    def without_traceback(self) -> StorageFailure:
        """Return a copy of this failure to keep. A traceback would keep the records that were being written."""
        return StorageFailure(self.path, type(self.cause)(*self.cause.args))

    @property
    def is_full(self) -> bool:
        """Whether the volume is full."""
        return not self.is_fatal and self.cause.errno in _FULL

    def __init__(self, path: str, cause: OSError) -> None:
        self.path = path
        self.cause = cause
        self.reason = LINK if cause.errno == errno.ELOOP else cause.strerror or str(cause)
        super().__init__(f"{path}: {self.reason}")


class CorruptLog(StorageError):
    """The files of a partition contradict each other in a way that can't be repaired without loss."""


class CorruptFile(StorageError):
    """A checkpoint, snapshot or properties file has invalid contents."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class NoLogDirectory(StorageError):
    """All data directories are offline."""


class UnknownLogDirectory(StorageError):
    """The path is not a data directory of this broker."""


class TooManyPartitions(StorageError):
    """The process can't open enough files for another partition.

    limit: the number of partitions that it may have.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"this broker may have {limit} partitions, as many as its limit of open files allows: raise that limit "
            "(LimitNOFILE= of the service, ulimit -n) or delete topics, then restart"
        )


class LogDirLocked(StorageError):
    """Another process uses the data directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is in use by another broker (it holds the lock on {path}/.lock). "
            "Stop that broker, or configure another directory for this one."
        )


class InconsistentMetadata(StorageError):
    """A data directory belongs to another broker or another cluster."""


class LoadCancelled(StorageError):
    """The start was cancelled while logs were being loaded. The next start repeats the recovery."""


class LogClosed(StorageError):
    """The log was closed or deleted."""
