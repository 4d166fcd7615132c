"""Write the index files of a segment, and read its transaction index."""

from __future__ import annotations

from pylogd.broker.log.errors import CorruptLog, StorageFailure
from pylogd.broker.log.files import FileSystem, read_file, replace_file
from pylogd.broker.log.index import IndexCorrupt, Indexes, TransactionIndex


def write_index_files(
    fs: FileSystem, offsets: str, times: str, transactions: str, indexes: Indexes, *, sync: bool
) -> None:
    """Write the indexes to the files with these paths. An empty transaction index gets no file. Raises OSError.

    The transaction index is written first, and is always synced: if its file is missing, it counts as empty, and
    readers would get records that were aborted. If another index file is missing after a crash, all three are rebuilt.
    """
    write_transaction_index(fs, transactions, indexes.aborted, sync=True)
    replace_file(fs, offsets, indexes.offsets.to_bytes(), sync=sync)
    replace_file(fs, times, indexes.times.to_bytes(), sync=sync)


def write_transaction_index(fs: FileSystem, path: str, index: TransactionIndex, *, sync: bool) -> None:
    """Write a transaction index, or remove its file if it is empty. Raises OSError."""
    if index.entries:
        replace_file(fs, path, index.to_bytes(), sync=sync)
    elif fs.exists(path):
        fs.unlink(path)


def read_transaction_index(fs: FileSystem, path: str, base_offset: int) -> TransactionIndex:
    """Read a transaction index; it is empty if the file does not exist. Raises CorruptLog, StorageFailure."""
    try:
        return TransactionIndex.from_bytes(read_file(fs, path), base_offset)
    except FileNotFoundError:
        return TransactionIndex()
    except IndexCorrupt as error:
        raise CorruptLog(f"{path}: {error}; restart the broker, which rebuilds it") from error
    except OSError as error:
        raise StorageFailure(path, error) from error
