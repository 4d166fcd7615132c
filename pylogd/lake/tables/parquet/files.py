"""The file systems that a lake can be on: their interface, and the directories of a lake.

Paths are relative to the lake's root and separated by `/`.
Must not know: Spark, formats of documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

META: Final = "_pylogd"
COMMITS: Final = f"{META}/commits"
CHECKPOINTS: Final = f"{META}/checkpoints"
FLOORS: Final = f"{META}/floors"
ATTEMPTS: Final = f"{META}/attempts"
STAGING: Final = f"{META}/staging"
QUARANTINE: Final = f"{META}/quarantine"
REPLACED: Final = f"{META}/replaced"
#: The directory in which `create` prepares files on file systems without atomic writes. Drafts may be deleted at any
#: time.
DRAFTS: Final = f"{META}/drafts"

_DIGITS: Final = 20
Item = TypeVar("Item")
Result = TypeVar("Result")


class Files(Protocol):
    """The operations of a file system that a lake needs. It does no harm to repeat any of them except `read` and
    `create`.

    They raise TableError if the file system fails.
    threads: how many operations may run at once, each in a thread; 1 if more would not be faster.
    """

    threads: int

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; no names if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""

    def create(self, path: str, data: bytes) -> bool:
        """Make a file with this content, durably and atomically. Return false, and change nothing, if it exists.

        If several processes create the same file at the same time, one of them gets true. No reader sees a part of the
        file, and no crash leaves a part. After an error the file may exist.
        """

    def move(self, source: str, target: str) -> bool:
        """Rename a file, and make its directories. Return false if the target exists. Raises FileNotFoundError.

        On an object store the file is copied, then deleted: a crash may leave both.
        """

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content, if it exists."""


def each(files: Files, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of a function for each item, in order, computed in `threads` threads."""
    given = list(items)
    if files.threads == 1 or len(given) < 2:
        return [function(item) for item in given]
    with ThreadPoolExecutor(min(files.threads, len(given))) as pool:
        return list(pool.map(function, given))


def numbered(directory: str, number: int, suffix: str) -> str:
    """Return the path of the file of a commit's number in a directory."""
    return f"{directory}/{number:0{_DIGITS}d}{suffix}"


def numbers(names: Sequence[str], suffix: str) -> list[int]:
    """Return the numbers of the files whose names end with this suffix, ascending."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isdigit())
