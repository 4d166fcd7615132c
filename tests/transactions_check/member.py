"""A copier in a process of its own, which reports what it does by lines of JSON, and is killed if it gets stuck.

Strategy: the process writes each step before it takes it, with its time by the machine's monotonic clock, so nothing is
missing when it is killed. Its standard input says when to stop; when that ends, so does the process.
"""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from tests.transactions_check.history import Action, Outcome
from tests.transactions_check.workload import Load

_LOOK_SECONDS = 0.2


class Reports:
    """What a copier in a process of its own has in place of `Load` and its `History`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.stopping, self.draining = threading.Event(), threading.Event()

    @property
    def history(self) -> Reports:
        """It takes what the history takes."""
        return self

    def listen(self) -> None:
        """Learn from the standard input when to stop."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            (self.stopping if line.strip() == "stopping" else self.draining).set()
        if not self.draining.is_set():
            os._exit(1)  # whoever has started this process is gone

    def tell(self, **report: Any) -> None:
        """Write a line."""
        os.write(1, json.dumps(report).encode() + b"\n")

    def count(self, trouble: str) -> None:
        """See `Load`."""
        self.tell(trouble=trouble)

    def ended(self, transaction: str, outcome: Outcome) -> None:
        """See `History`."""
        self.tell(transaction=transaction, outcome=outcome.value)

    def step(self, transaction: str, action: Action, number: int = -1, read: Collection[str] = ()) -> None:
        """See `History`."""
        self.tell(transaction=transaction, action=action.value, at=time.monotonic(), number=number, read=list(read))


class _Process:
    """One process. number: of the last transaction that it has begun."""

    def __init__(self, load: Load, command: list[str], number: int) -> None:
        self.number = number
        self._load = load
        self._process = subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._told: set[str] = set()
        self._rest = b""

    def follow(self, stuck_seconds: float) -> str:
        """Record what it does until it has ended. Return why it did so before it was told to; "" if it was told."""
        out = self._process.stdout
        assert out is not None
        heard = time.monotonic()
        stuck = False
        while True:
            self._tell()
            if select.select([out], [], [], _LOOK_SECONDS)[0]:
                data = os.read(out.fileno(), 1 << 16)
                if not data:
                    break
                heard = time.monotonic()
                self._record(data)
            elif time.monotonic() > heard + stuck_seconds and not stuck:
                stuck = True
                self._process.kill()
        status = self._process.wait()
        for stream in (self._process.stdin, out):
            assert stream is not None
            stream.close()
        return "librdkafka: stuck, killed" if stuck else f"librdkafka: exit status {status}" if status else ""

    def _tell(self) -> None:
        """Tell the process when to stop."""
        assert self._process.stdin is not None
        for name, event in (("stopping", self._load.stopping), ("draining", self._load.draining)):
            if event.is_set() and name not in self._told:
                self._told.add(name)
                try:
                    os.write(self._process.stdin.fileno(), f"{name}\n".encode())
                except BrokenPipeError:
                    return  # it has ended

    def _record(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        history = self._load.history
        for line in lines:
            report = json.loads(line)
            if "trouble" in report:
                self._load.count(report["trouble"])
            elif "outcome" in report:
                history.ended(report["transaction"], Outcome(report["outcome"]))
                self.number = int(report["transaction"].rpartition("-")[2])
            elif "action" in report:
                history.step(
                    report["transaction"], Action(report["action"]), report["number"], report["read"], report["at"]
                )


def copy_in(module: str, group: str, stuck_seconds: float) -> Callable[[Load, str, random.Random], None]:
    """Return the work of a member of a group, in processes of a module: one after the other, if one gets stuck.

    stuck_seconds: after which a process that reports nothing is killed.
    """

    def copy(load: Load, name: str, rng: random.Random) -> None:
        number = 0
        while not load.draining.is_set():
            command = [sys.executable, "-m", module, load.bootstrap, name, str(rng.random()), group]
            process = _Process(load, command, number)
            trouble = process.follow(stuck_seconds)
            number = process.number
            if trouble:
                load.count(trouble)
                time.sleep(_LOOK_SECONDS)

    return copy
