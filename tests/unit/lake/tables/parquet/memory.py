"""A lake's files in memory: they can fail at any call like a killed process, and several processes can take turns.

A process is an `Actor`: it has its own view of the shared files, which stops before each call until it is its turn, and
raises Crash at the calls chosen for it. `Turns` lets several actors run, one call at a time, in an order that a seed
determines.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

from pylogd.lake.tables.errors import TableError


class Crash(BaseException):
    """The process was killed."""


class MemoryFiles:
    """`Files` in a dict. Crashes before call number `stop`."""

    threads = 1

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.calls = 0
        self.stop: int | None = None

    def call(self, name: str) -> None:
        """Note a call. Crash if it is its turn."""
        self.calls += 1
        if self.calls == self.stop:
            raise Crash(name)

    def names(self, directory: str) -> list[str]:
        self.call("names")
        prefix = directory + "/"
        return sorted({path[len(prefix) :].split("/")[0] for path in list(self.content) if path.startswith(prefix)})

    def read(self, path: str) -> bytes:
        self.call("read")
        try:
            return self.content[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def create(self, path: str, data: bytes) -> bool:
        self.call("create")
        if path in self.content:
            return False
        self.content[path] = data
        return True

    def move(self, source: str, target: str) -> bool:
        self.call("move")
        if target in self.content:
            return False
        if source not in self.content:
            raise FileNotFoundError(source)
        self.content[target] = self.content.pop(source)
        return True

    def exists(self, path: str) -> bool:
        self.call("exists")
        return path in self.content or any(name.startswith(path + "/") for name in self.content)

    def delete(self, path: str) -> None:
        for name in [name for name in self.content if name == path or name.startswith(path + "/")]:
            self.call("delete")
            self.content.pop(name, None)

    def data(self) -> dict[str, bytes]:
        """Return the files that a reader of directories finds."""
        return {path: data for path, data in self.content.items() if not path.startswith("_")}


class Turns:
    """Run actors in threads of which one runs at a time; `rng` chooses which one makes its next call.

    calls: how many calls an actor makes on average before another one is chosen. If there are many, the others stall
    for long, and what they know of the lake becomes old.
    """

    def __init__(self, rng: random.Random, calls: int = 1) -> None:
        self.rng = rng
        self._stays = 1 - 1 / calls
        self._gates: dict[str, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)
        self._failures: list[BaseException] = []

    def run(self, actors: dict[str, Callable[[], None]]) -> None:
        """Run all actors to their ends. Raise the first error of one."""
        self._gates = {name: threading.Semaphore(0) for name in actors}
        threads = [threading.Thread(target=self._act, args=item, daemon=True) for item in actors.items()]
        for thread in threads:
            thread.start()
        chosen = ""
        while self._gates:
            if chosen not in self._gates or self.rng.random() >= self._stays:
                chosen = self.rng.choice(list(self._gates))
            self._gates[chosen].release()
            self._back.acquire()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _act(self, name: str, function: Callable[[], None]) -> None:
        gate = self._gates[name]
        gate.acquire()
        try:
            function()
        except BaseException as error:  # of the test: it is raised by `run`
            self._failures.append(error)
        del self._gates[name]
        self._back.release()

    def wait(self, name: str) -> None:
        """Let other actors run until it is this one's turn again."""
        gate = self._gates[name]
        self._back.release()
        gate.acquire()


class Actor(MemoryFiles):
    """The files of one process of several.

    crashes: at how many calls it is killed. copies: whether a move copies and then deletes, as on an object store.
    unsure: whether `create` sometimes reports an error, or that the file existed, though it made the file.
    """

    def __init__(
        self, shared: MemoryFiles, turns: Turns, name: str, *, crashes: int = 0, copies: bool = False,
        unsure: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.content = shared.content
        self._turns, self._name = turns, name
        self._crashes, self._copies, self._unsure = crashes, copies, unsure

    def call(self, name: str) -> None:
        self._turns.wait(self._name)
        if self._crashes and self._turns.rng.random() < 0.03:
            self._crashes -= 1
            raise Crash(name)

    def create(self, path: str, data: bytes) -> bool:
        made = super().create(path, data)
        if made and self._unsure and self._turns.rng.random() < 0.1:
            if self._turns.rng.random() < 0.5:
                raise TableError(f"{path}: the connection broke")
            return False
        return made

    def move(self, source: str, target: str) -> bool:
        if not self._copies:
            return super().move(source, target)
        self.call("move")
        if target in self.content:
            return False
        if source not in self.content:
            raise FileNotFoundError(source)
        self.content[target] = self.content[source]
        self.call("delete")
        self.content.pop(source, None)
        return True


def run_until_done(work: Callable[[], None], again: Sequence[type[BaseException]] = (Crash,)) -> None:
    """Do work, again and again as long as it ends by one of these errors, as a service manager would restart it."""
    while True:
        try:
            return work()
        except tuple(again):
            continue
