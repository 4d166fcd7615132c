"""What storage raises. Only `api/` turns these into protocol codes.

Two families: what a caller asked for can't be done with these records or that offset (`InvalidAppend` and
`OffsetOutOfRange`), and the storage itself is in trouble (`StorageFailure`, `CorruptLog`, `LogDirLocked`).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pylogd.errors import PylogdError
from pylogd.log.files import SyncFailed


class StorageError(PylogdError):
    """The base of all that this room raises."""


class OffsetOutOfRange(StorageError):
    """The offset lies before the log's start or behind its end."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        self.offset = offset
        self.start = start
        self.end = end
        super().__init__(f"offset {offset} is outside the log, which runs from {start} to {end}")


class ColdRead(StorageError):
    """The look-up would wait for the disk, and the caller asked not to. Ask again from a thread."""


class InspectionNeeded(StorageError):
    """The records must be looked at one by one, which takes too long here. Inspect them in a thread; then append."""


class InvalidAppend(StorageError):
    """Records that the log refuses. Nothing of the append was written.

    places: the numbers of the refused records in their batch, from 0, where single records are at fault.
    reason: what is wrong with each of them.
    """

    def __init__(self, message: str, places: Sequence[int] = (), reason: str = "") -> None:
        self.places = places
        self.reason = reason or message
        super().__init__(message)


class CorruptRecord(InvalidAppend):
    """A batch whose CRC or length is wrong."""


class InvalidRecord(InvalidAppend):
    """A batch that is whole but says what can't be: counts, offsets, a control batch from a client."""


class KeylessRecords(InvalidRecord):
    """Records without a key, for a compacted log."""


class TransactionNotOpen(InvalidAppend):
    """A transactional batch of a producer that has no open transaction here."""


class RecordTooLarge(InvalidAppend):
    """A batch larger than `max.message.bytes`."""


class RecordListTooLarge(InvalidAppend):
    """Batches that together are larger than a segment may be."""


class UnsupportedMessageFormat(InvalidAppend):
    """A batch of a data format other than version 2."""


class UnsupportedCompressionType(InvalidAppend):
    """A batch compressed with a codec that nobody knows."""


class InvalidTimestamp(InvalidAppend):
    """A time stamp further from the broker's clock than the topic allows, or of a kind that a client may not set."""


class OutOfOrderSequence(InvalidAppend):
    """An idempotent producer left a gap in its sequence numbers."""


class InvalidProducerEpoch(InvalidAppend):
    """A producer that has been replaced by a newer one with the same id."""


class OffsetsOutOfOrder(InvalidAppend):
    """A replica's batches don't continue this log: an offset at or below one that is here."""


#: No room is left on the volume, or none of it for this user.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Trouble that passes, or is the process's own, or a link's: it says nothing about the disk.
_PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.ELOOP}
)
LINK = "it is a symbolic link, and links are not followed: put what it points to in its place"


class StorageFailure(StorageError):
    """The file system failed. `cause` is its error, `path` the file it was about."""

    @property
    def is_fatal(self) -> bool:
        """Whether the data directory can't be relied on any more: any error but a full disk and its like, or a sync."""
        return isinstance(self.cause, SyncFailed) or self.cause.errno not in _PASSING

    @property
    def is_full(self) -> bool:
        """Whether the volume has no room left."""
        return not self.is_fatal and self.cause.errno in _NO_ROOM

    def __init__(self, path: str, cause: OSError) -> None:
        self.path = path
        self.cause = cause
        super().__init__(f"{path}: {LINK if cause.errno == errno.ELOOP else cause.strerror or cause}")


class CorruptLog(StorageError):
    """Files of a partition contradict each other in a way that no repair could settle without loss."""


class CorruptFile(StorageError):
    """A checkpoint, snapshot or properties file that does not hold what it should."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class NoLogDirectory(StorageError):
    """Every data directory has failed."""


class UnknownLogDirectory(StorageError):
    """A path that is none of the broker's data directories."""


class TooManyPartitions(StorageError):
    """The process may not open enough files for another partition. `limit`: how many it may hold."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"this broker may hold {limit} partitions, as many as its limit of open files allows: raise that "
            "(LimitNOFILE= of the service, ulimit -n), or delete topics, and restart"
        )


class LogDirLocked(StorageError):
    """Another process has the directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is in use by another broker (it holds the lock on {path}/.lock). "
            "Stop that broker, or give this one a directory of its own."
        )


class InconsistentMetadata(StorageError):
    """A data directory that belongs to another broker or another cluster."""


class LoadCancelled(StorageError):
    """The start was called off while logs were being recovered: the next one begins where this one began."""


class LogClosed(StorageError):
    """The log was closed or deleted."""
