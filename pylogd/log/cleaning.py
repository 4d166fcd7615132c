"""The two passes of a compaction in a process of their own, so that they don't hold the broker's interpreter.

Strategy: a cleaner thread starts `python -m pylogd.log.cleaning`, sends it one `Stretch` after the other, and answers
what it asks: may I go on, having done so many bytes (the limit of bytes a second is the thread's to keep), and may this
new segment take its place (the swap is the broker's). The process has the key map; it reads and writes the segments'
files by their paths and knows nothing else of the broker. It runs at a lower priority than the broker.

Rules: the process ends with its thread's end of the pipe, and is killed with the broker. Whatever it did until then
is in `.cleaned` files, which count for nothing. What fails in it is raised in the thread as if it had happened there;
a process that is lost in the middle is `ProcessLost`.
Must not know: `Log`, the reactor, which log is next.
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
from pylogd.log.compaction import Check, Cleaned, CleanerStopped, KeyMapTooSmall, Made, Place, Stretch, run_passes
from pylogd.log.errors import CorruptLog, StorageError, StorageFailure
from pylogd.log.files import RealFileSystem, SyncFailed
from pylogd.log.keymap import KeyMap
from pylogd.log.segment import Storage

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_NICE = 10
_PR_SET_PDEATHSIG = 1
_END_SECONDS = 10
#: A name for what was sent, and what goes with it.
_Message: TypeAlias = "tuple[str, Any]"


class ProcessLost(StorageError):
    """The process that compacted a log is gone: killed, or out of memory. Nothing was changed by what it did."""


class CleaningProcess:
    """The thread's side: `passes` as `compaction.Passes` has it. One thread uses it; `close` ends the process."""

    def __init__(self, key_map_bytes: int, load_factor: float) -> None:
        self._memory = key_map_bytes
        self._load_factor = load_factor
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None

    def passes(self, stretch: Stretch, check: Check, place: Place) -> Cleaned:
        """Both passes over the stretch, there. Raises as `run_passes` does, and `ProcessLost`."""
        try:
            return self._talk(stretch, {"check": check, "place": place})
        except (EOFError, OSError) as error:
            status = self._end()
            raise ProcessLost(
                f"{stretch.directory}: the process that compacted it ended with status {status} before it was done"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._end()

    def _talk(self, stretch: Stretch, asked: dict[str, Callable[[Any], None]]) -> Cleaned:
        pipe = self._pipe or self._start()
        pipe.send(stretch)
        refused: BaseException | None = None
        while True:
            kind, value = pipe.recv()
            if kind == "done":
                return value  # type: ignore[no-any-return]  # from our own process
            if kind == "failed":
                raise refused or _failure(value)
            try:
                asked[kind](value)
            except (CleanerStopped, StorageError) as error:
                refused = error  # it clears up behind itself, and says that it has failed
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
    kind, detail = value
    if kind == "files":
        path, number, text, syncing = detail
        return StorageFailure(path, (SyncFailed if syncing else OSError)(number, text, path))
    return KeyMapTooSmall(detail) if kind == "keys" else CorruptLog(detail)


# In the process -------------------------------------------------------------------------------------------------------


def serve(pipe: Connection[Any, Any], keys: KeyMap) -> None:
    """Compact what is sent until the pipe ends."""

    def ask(kind: str, value: Any) -> None:
        pipe.send((kind, value))
        if not pipe.recv():
            raise CleanerStopped

    def check(count: int) -> None:
        ask("check", count)

    def place(made: Made) -> None:
        ask("place", made)

    while True:
        stretch: Stretch = pipe.recv()
        try:
            message: _Message = ("done", run_passes(Storage(RealFileSystem()), keys, stretch, check, place))
        except CleanerStopped:
            message = ("failed", ("stopped", ""))
        except KeyMapTooSmall as error:
            message = ("failed", ("keys", str(error)))
        except StorageFailure as error:
            cause = error.cause
            detail = error.path, cause.errno, cause.strerror or str(cause), isinstance(cause, SyncFailed)
            message = ("failed", ("files", detail))
        except CorruptLog as error:
            message = ("failed", ("corrupt", str(error)))
        pipe.send(message)


def main() -> None:
    """What `python -m pylogd.log.cleaning DESCRIPTOR MEMORY LOAD_FACTOR` does."""
    import ctypes  # noqa: PLC0415 - the process's, not the broker's
    from multiprocessing.connection import Connection  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the broker too, which ends this process
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_NICE)
    descriptor, memory, load_factor = sys.argv[1:]
    with Connection(int(descriptor)) as pipe, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(pipe, KeyMap(int(memory), float(load_factor)))


if __name__ == "__main__":
    main()
