"""Read records of a Fetch response that are not in the page cache. Threads do this, since they wait for the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from twisted.internet.defer import Deferred, gatherResults
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, PylogdError
from pylogd.broker.api.errors import explain
from pylogd.broker.api.fast import fetch as fast
from pylogd.broker.api.statistics import FETCH, STATISTICS
from pylogd.broker.log.errors import StorageError
from pylogd.broker.log.files import FileSlice
from pylogd.broker.replica.committed_read import CommittedRead
from pylogd.broker.replica.disk_calls import DiskCalls
from pylogd.wire.messages.fetch import PartitionData

#: `Partition.read`, `Partition.read_for_follower`, or a `CommittedRead`.
Read: TypeAlias = Callable[..., FileSlice | None]

_NO_DATA = PartitionData()
_NO_RECORDS = b""


class ColdPartition:
    """A read that has to wait for the disk.

    data: the part of the response that the read fills.
    directory: the directory of the partition's log.
    """

    __slots__ = ("_limit", "_min_one", "_offset", "_read", "data", "directory")

    def __init__(self, directory: str, offset: int, limit: int, min_one: bool, read: Read) -> None:
        """offset, limit, min_one: arguments of `read`."""
        self.directory = directory
        self._offset = offset
        self._limit = limit
        self._min_one = min_one
        self._read = read
        self.data = _NO_DATA

    def read(self) -> None:
        """Fill `data`. This runs in a thread; meanwhile nothing else uses `data`."""
        self.data.records = _NO_RECORDS
        try:
            records = self._read(self._offset, self._limit, min_one=self._min_one, allow_cold=True)
        except PylogdError as error:
            self.data.error_code = code = explain(error)[0]
            STATISTICS.errors[FETCH, code] += 1
        else:
            if records is not None:
                self.data.records = records
                if isinstance(self._read, CommittedRead):
                    self.data.aborted_transactions = fast.named(self._read.aborted)


def read_cold(calls: DiskCalls, cold: Sequence[ColdPartition]) -> Deferred[Any]:
    """Fill the data of all reads in threads. If disks have their own threads, a read uses those of its disk."""
    STATISTICS.cold_reads += len(cold)
    by_directory: dict[str | None, list[ColdPartition]] = {}
    for one in cold:
        by_directory.setdefault(calls.directory_of(one.directory), []).append(one)
    reads = [calls.at(path, _read_all, some).addErrback(_refuse_all, some) for path, some in by_directory.items()]
    return gatherResults(reads, consumeErrors=True)  # a stop cancels all of them: the first error is enough


def _read_all(cold: Sequence[ColdPartition]) -> None:
    # Runs in a thread.
    for partition in cold:
        partition.read()


def _refuse_all(failure: Failure, cold: Sequence[ColdPartition]) -> None:
    """Answer with errors, since the disk was given up."""
    failure.trap(StorageError)
    for partition in cold:
        partition.data.records = _NO_RECORDS
        partition.data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        STATISTICS.errors[FETCH, ErrorCode.KAFKA_STORAGE_ERROR] += 1
