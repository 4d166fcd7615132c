"""Check and compare schemas in child processes, so that a slow schema delays no other requests.

Strategy: a few `worker` processes are started when they are first needed. If a task is not done in time, its process is
killed, and the answer is InvalidSchema. Each client has a queue of tasks, of which only one runs at a time: while one
client's schemas take very long, other clients still get a process.

Must not know: HTTP, the registry's state.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.services.registry.contexts import context_of
from pylogd.services.registry.errors import InvalidRequest, InvalidSchema, Overloaded
from pylogd.services.registry.lookups import Lookups
from pylogd.services.registry.model import (
    AVRO,
    KINDS,
    PROTOBUF,
    Comparison,
    Definitions,
    Schema,
    extras_of,
    references_of,
)
from pylogd.services.registry.worker import LENGTH, compare_task, read_task, render_task

log = Logger()

_MOST_WAITING: Final = 100
_FOLDER: Final = "pylogd-proto-"
_START_SECONDS: Final = 20.0  # added to the limit of a worker's first task, for its imports


class SchemaChecker:
    """The processes and the queues.

    workers: the number of processes.
    seconds: the time limit of a task.
    megabytes: the limit of a process's address space.
    """

    def __init__(self, reactor: Any, *, workers: int = 2, seconds: int = 5, megabytes: int = 512) -> None:
        self._reactor = reactor
        self._seconds = seconds
        self._megabytes = megabytes
        self._idle: list[_Worker] = []
        self._busy: dict[str, _Worker] = {}  # the busy worker of each client
        self._all: set[_Worker] = set()
        self._most = workers
        self._waiting: OrderedDict[str, deque[tuple[dict[str, Any], Deferred[Any]]]] = OrderedDict()
        self._folders: WorkFolders | None = None
        self._stopped = False

    def read(self, client: str, kind: str, definitions: Definitions, *, normalize: bool = False) -> Deferred[Any]:
        """Check the last of these definitions.

        Fires with the text in the form that the registry keeps, or fails with InvalidSchema or Overloaded.
        """
        return self._add(client, read_task(kind, definitions, normalize=normalize))

    def render(self, client: str, kind: str, definitions: Definitions, form: str) -> Deferred[Any]:
        """Write the last of these definitions in another form. Fires or fails in the same way as `read`."""
        return self._add(client, render_task(kind, definitions, form))

    def compare(self, client: str, comparison: Comparison) -> Deferred[Any]:
        """Fires with the reasons why a schema is incompatible, if any, or fails with InvalidSchema or Overloaded."""
        return self._add(client, compare_task(comparison))

    def stop(self) -> Deferred[Any]:
        """End the processes. Fires when they have ended."""
        self._stopped = True
        while self._waiting:
            for _, done in self._waiting.popitem()[1]:
                done.errback(Failure(Overloaded("the schema registry is stopping")))
        return DeferredList([worker.end() for worker in list(self._all)])

    def _add(self, client: str, task: dict[str, Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        if sum(map(len, self._waiting.values())) >= _MOST_WAITING:
            full = Failure(Overloaded("too many schemas wait to be checked; try again later"))
            largest = max(self._waiting, key=lambda one: len(self._waiting[one]))
            if len(self._waiting.get(client, ())) + 1 >= len(self._waiting[largest]):
                done.errback(full)
                return done
            self._waiting[largest].pop()[1].errback(full)
        self._waiting.setdefault(client, deque()).append((task, done))
        self._assign()
        return done

    def _assign(self) -> None:
        """Give waiting tasks to free processes, one for each client, in turn."""
        for client in list(self._waiting):
            if client in self._busy:
                continue
            if len(self._busy) >= self._most or self._stopped:
                return
            queue = self._waiting[client]
            task, done = queue.popleft()
            if queue:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            worker = self._idle.pop() if self._idle else self._start()
            self._busy[client] = worker
            worker.run(task, client, done)

    def _start(self) -> _Worker:
        if self._folders is None:
            self._folders = WorkFolders()
        worker = _Worker(self, self._reactor, self._seconds, self._folders.make())
        self._all.add(worker)
        arguments = [sys.executable, "-m", "pylogd.services.registry.worker", str(self._megabytes), str(self._seconds)]
        pipes: dict[int, Any] = {0: "w", 1: "r", 2: 2}
        self._reactor.spawnProcess(
            worker, sys.executable, arguments, env={**os.environ, "TMPDIR": worker.folder}, childFDs=pipes
        )
        return worker

    def finished(self, worker: _Worker, client: str) -> None:
        """Free a process that has done its task."""
        del self._busy[client]
        self._idle.append(worker)
        self._assign()

    def ended(self, worker: _Worker, client: str | None) -> None:
        """Record that a process has ended; a new one is started when it is needed."""
        self._all.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if client is not None:
            del self._busy[client]
        self._assign()


class WorkFolders:
    """Folders of the processes, which may be killed before they remove their files.

    Folders that an earlier, killed registry left are removed first.
    """

    def __init__(self, parent: str | None = None) -> None:
        """`parent` is the folder that has them; by default the system's folder for temporary files."""
        self._parent = tempfile.gettempdir() if parent is None else parent
        for folder in Path(self._parent).glob(f"{_FOLDER}*"):
            process = folder.name.removeprefix(_FOLDER).partition("-")[0]
            if not process.isdigit() or not Path(f"/proc/{process}").exists():
                shutil.rmtree(folder, ignore_errors=True)

    def make(self) -> str:
        """Return a new folder."""
        return tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=self._parent)


class _Worker(ProcessProtocol):
    """One process. It has at most one task.

    folder: the folder of its files, which is removed when the process has ended.
    """

    transport: Any

    def __init__(self, checker: SchemaChecker, reactor: Any, seconds: int, folder: str) -> None:
        self._checker = checker
        self.folder = folder
        self._reactor = reactor
        self._seconds = seconds
        self._buffer = bytearray()
        self._client: str | None = None
        self._done: Deferred[Any] | None = None
        self._timer: Any = None
        self._ends: list[Deferred[None]] = []
        self._used = False
        self._late = False

    def run(self, task: dict[str, Any], client: str, done: Deferred[Any]) -> None:
        """Send a task. `done` is called with its result."""
        self._client, self._done = client, done
        extra = 0.0 if self._used else _START_SECONDS
        self._used = True
        # The kernel limits a task's processor time. This limits waiting too, such as on a machine without free memory.
        self._timer = self._reactor.callLater(2 * self._seconds + extra, self._give_up)
        data = json.dumps(task).encode()
        self.transport.write(LENGTH.pack(len(data)) + data)

    def end(self) -> Deferred[None]:
        """Kill the process. Fires when it has ended."""
        ended: Deferred[None] = Deferred()
        self._ends.append(ended)
        self._kill()
        return ended

    def _give_up(self) -> None:
        self._timer = None
        self._late = True
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")

    def outReceived(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < LENGTH.size:
            return
        end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return
        outcome = json.loads(self._buffer[LENGTH.size : end])
        self._buffer.clear()
        client, done = self._take()
        if client is not None:
            self._checker.finished(self, client)
        if done is None:
            return
        if "invalid" in outcome:
            done.errback(Failure(InvalidSchema(outcome["invalid"])))
        else:
            done.callback(outcome["text"] if "text" in outcome else outcome["reasons"])

    def processEnded(self, reason: Failure) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        client, done = self._take()
        self._checker.ended(self, client)
        if done is not None:
            log.warn(
                "A process that checked a schema of {client} ended ({reason}): the schema is refused",
                client=client, reason="out of time" if self._late else reason.getErrorMessage(),
            )  # fmt: skip
            done.errback(
                Failure(InvalidSchema(f"the schema could not be checked within {self._seconds} s: simplify it"))
            )
        for ended in self._ends:
            ended.callback(None)

    def _take(self) -> tuple[str | None, Deferred[Any] | None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        client, done, self._client, self._done = self._client, self._done, None, None
        return client, done


_MOST_KNOWN: Final = 256


class SchemaReader:
    """Reads schemas, and remembers the last ones."""

    def __init__(self, lookups: Lookups, checker: SchemaChecker) -> None:
        self._lookups = lookups
        self._checker = checker
        self._known: OrderedDict[tuple[str, Schema, bool], Schema] = OrderedDict()

    async def read(self, client: str, subject: str, document: Mapping[str, Any], *, normalize: bool) -> Schema:
        """Return the schema of a request. Raises InvalidSchema, InvalidRequest, InvalidRuleSet or Overloaded.

        client: the sender of the request.
        normalize: whether to write equivalent schemas alike; settings may require it too.
        """
        normalize = normalize or bool(self._lookups.settings(subject).normalize)
        given = given_schema(document)
        context = context_of(subject)
        if not normalize and self._lookups.knows(context, given):
            return given
        key = context, given, normalize
        found = self._known.get(key)
        definitions = self._lookups.definitions(subject, given)
        if found is None:
            text = await self._checker.read(client, given.kind, definitions, normalize=normalize)
            found = self._known[key] = Schema(text, given.references, given.kind, given.extras)
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return found


def given_schema(document: Mapping[str, Any]) -> Schema:
    """Return the schema of a request with compact JSON, without the check of the schema, which may take long.

    Raises InvalidSchema, InvalidRequest or InvalidRuleSet.
    """
    kind, text = document.get("schemaType") or AVRO, document.get("schema")
    if kind not in KINDS:
        raise InvalidSchema(f"Invalid schema type {kind}: use one of {', '.join(KINDS)}")
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchema("Empty schema")
    try:
        references = references_of(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest("a reference must have a name, a subject and a version") from error
    extras = extras_of(document)
    if kind == PROTOBUF:
        return Schema(text, references, kind, extras)
    try:
        text = json.dumps(json.loads(text), separators=(",", ":"))
    except RecursionError as error:
        raise InvalidSchema("Invalid schema: it is nested too deeply") from error
    except ValueError as error:
        if kind != AVRO:
            raise InvalidSchema(f"Invalid schema of type JSON, details: the text is not JSON: {error}") from None
        text = json.dumps(text.strip())  # a primitive type may be written without quotes
    return Schema(text, references, kind, extras)
