"""Do compaction jobs in a child process, so that they do not hold the broker's interpreter.

A cleaner thread starts `python -m pylogd.broker.log.compaction.process`, sends it one job after another, and answers
two kinds of messages. "progress" says how many bytes were processed; the answer is delayed to keep the limit of bytes
per second. "install" says that a new segment is complete; the thread installs it in the log. The child has the offset
map. It reads and writes segment files by their paths, knows nothing else of the broker, and runs at a lower priority.

Rules: the child ends when the pipe is closed, and is killed when the broker dies. Until a segment is installed there
are only `.cleaned` files, which the next start removes. An error in the child is raised in the thread; if the child
ends before a job is done, the thread raises ProcessLost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pylogd
from pylogd.broker.log.compaction.jobs import (
    CleanerStopped,
    CompactedSegment,
    CompactionJob,
    CompactionResult,
    InstallSegment,
    OffsetMapTooSmall,
    OnProgress,
)
from pylogd.broker.log.compaction.offset_map import OffsetMap
from pylogd.broker.log.compaction.passes import run_job
from pylogd.broker.log.errors import CorruptLog, StorageError, StorageFailure
from pylogd.broker.log.files import RealFileSystem, SyncFailed
from pylogd.broker.log.storage import Storage

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_NICE = 10
_PR_SET_PDEATHSIG = 1
_END_SECONDS = 10
#: The kind of a message from the child, and its value.
_Message: TypeAlias = "tuple[str, Any]"


class ProcessLost(StorageError):
    """The child process ended in the middle of a job: it was killed, or ran out of memory."""


class CompactionProcess:
    """A child process as its cleaner thread sees it. It is started by the first job and ended by `close`.

    Only one thread may use it. The arguments are those of `OffsetMap`.
    """

    def __init__(self, offset_map_bytes: int, load_factor: float) -> None:
        self._memory = offset_map_bytes
        self._load_factor = load_factor
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None

    def run(self, job: CompactionJob, on_progress: OnProgress, install: InstallSegment) -> CompactionResult:
        """Have the job done in the child. Raises the errors of `run_job`, and ProcessLost."""
        try:
            return self._converse(job, {"progress": on_progress, "install": install})
        except (EOFError, OSError) as error:
            status = self._end()
            raise ProcessLost(
                f"{job.directory}: the process that compacted it ended too early, with exit status {status}"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the child, if it is running."""
        if self._process is not None:
            self._end()

    def _converse(self, job: CompactionJob, callbacks: dict[str, Callable[[Any], None]]) -> CompactionResult:
        """Send the job, call the callback that each message asks for, and return the result."""
        pipe = self._pipe or self._start()
        pipe.send(job)
        refused: BaseException | None = None
        while True:
            kind, value = pipe.recv()
            if kind == "done":
                return value  # type: ignore[no-any-return]  # from our own process
            if kind == "failed":
                raise refused or _failure(value)
            try:
                callbacks[kind](value)
            except (CleanerStopped, StorageError) as error:
                refused = error  # the child removes its files, and then reports that it failed
            pipe.send(refused is None)

    def _start(self) -> Connection[Any, Any]:
        from multiprocessing import Pipe  # noqa: PLC0415 - most brokers never compact so much

        ours, theirs = Pipe()
        home = str(Path(pylogd.__file__).parent.parent)
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(self._memory), str(self._load_factor)],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        self._pipe = ours
        return ours

    def _end(self) -> int | None:
        """Close the pipe and wait for the child. Return its exit status, or None if no child was started."""
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if pipe is not None:
            pipe.close()
        if process is None:
            return None
        try:
            return process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _failure(value: tuple[str, Any]) -> StorageError:
    """Return the error that the child reported by a "failed" message."""
    kind, detail = value
    if kind == "file system":
        path, number, text, syncing = detail
        return StorageFailure(path, (SyncFailed if syncing else OSError)(number, text, path))
    return OffsetMapTooSmall(detail) if kind == "offset map" else CorruptLog(detail)


# In the child process -------------------------------------------------------------------------------------------------


def serve(pipe: Connection[Any, Any], offset_map: OffsetMap) -> None:
    """Do the jobs that arrive through the pipe. Raises EOFError when it is closed."""

    def ask(kind: str, value: Any) -> None:
        pipe.send((kind, value))
        if not pipe.recv():
            raise CleanerStopped

    def on_progress(count: int) -> None:
        ask("progress", count)

    def install(compacted: CompactedSegment) -> None:
        ask("install", compacted)

    while True:
        job: CompactionJob = pipe.recv()
        try:
            message: _Message = ("done", run_job(Storage(RealFileSystem()), offset_map, job, on_progress, install))
        except CleanerStopped:
            message = ("failed", ("stopped", ""))
        except OffsetMapTooSmall as error:
            message = ("failed", ("offset map", str(error)))
        except StorageFailure as error:
            cause = error.cause
            detail = error.path, cause.errno, cause.strerror or str(cause), isinstance(cause, SyncFailed)
            message = ("failed", ("file system", detail))
        except CorruptLog as error:
            message = ("failed", ("corrupt", str(error)))
        pipe.send(message)


def main() -> None:
    """Run `python -m pylogd.broker.log.compaction.process DESCRIPTOR MEMORY LOAD_FACTOR`."""
    import ctypes  # noqa: PLC0415 - only the child needs it
    from multiprocessing.connection import Connection  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the broker too, which ends this process
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_NICE)
    descriptor, memory, load_factor = sys.argv[1:]
    with Connection(int(descriptor)) as pipe, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(pipe, OffsetMap(int(memory), float(load_factor)))


if __name__ == "__main__":
    main()
