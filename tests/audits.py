"""Parts of the audit's tests: stamps, reports, a ledger whose time and readers are the test's, and a real service."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pylogd.client.core.audit import HEADER, Report, Stamp
from pylogd.local.broker import pylogd_command
from pylogd.local.launch import bound
from pylogd.services.audit.counting import Counted, WindowRows
from pylogd.services.audit.judging import Judgement
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.windows import Change, LedgerOptions, StageSpec

WIDTH = 1000
TOPIC = "t"
#: The start of the first window.
START = 3_600_000 * 1000
SERVING = StageSpec("serving")
TABLE = StageSpec("table", "serving", has_offsets=False)


def header(producer: str, number: int, time_ms: int = START, server: str = "here") -> tuple[str, bytes]:
    """Return the stamp of a message."""
    return HEADER, Stamp(time_ms, server, producer, number).encode()


def report(
    producer: str, first: int, last: int, number: int = 1, *, start: int = START,
    failed: Sequence[tuple[int, int]] = (), recovered: bool = False,
) -> Report:  # fmt: skip
    """Return a report of messages from `first` to `last`."""
    count = 0 if recovered else last - first + 1 - sum(end - begin + 1 for begin, end in failed)
    return Report(producer, "here", TOPIC, start, WIDTH, count, number, first, last, failed, recovered)


def options(**given: int) -> LedgerOptions:
    """Return options in which windows are judged 100 ms after their end."""
    return LedgerOptions(**{"width_ms": WIDTH, "period_ms": 10 * WIDTH, "grace_ms": 100, "late_ms": 5 * WIDTH, **given})


class AuditedLedger:
    """A ledger with one partition of the topic and one of the audit topic, which the test fills."""

    def __init__(self, *stages: StageSpec, **given: int) -> None:
        self.ledger = Ledger([SERVING, *stages], [TOPIC], options(**given))
        self.log: dict[str, int] = {stage.name: 0 for stage in (SERVING, *stages)}
        self.reports = 0
        self.now = START

    def rows(self, stage: str, *headers: tuple[str, bytes] | Sequence[tuple[str, bytes]]) -> None:
        """Have a stage read messages with these headers, which get the next offsets."""
        counted = Counted()
        first = self.log[stage]
        rows = [(first + at, [each] if isinstance(each[0], str) else list(each)) for at, each in enumerate(headers)]
        counted.count(0, rows, WIDTH, self.now, self.ledger.skip(stage, TOPIC))  # type: ignore[arg-type]
        self.log[stage] = first + len(rows)
        self.ledger.add(stage, TOPIC, counted, {0: self.log[stage]})

    def unstamped(self, stage: str, count: int, start: int = START) -> None:
        """Have a stage read messages without stamps, which get the next offsets."""
        first = self.log[stage]
        counted = Counted({start: WindowRows(unstamped=count, begins={0: first}, ends={0: first + count})})
        self.log[stage] = first + count
        self.ledger.add(stage, TOPIC, counted, {0: self.log[stage]})

    def report(self, *reports: Report) -> None:
        """Have reports read."""
        for each in reports:
            self.ledger.report(each, 0, self.reports)
            self.reports += 1
            self.ledger.reports_positions[0] = self.reports

    def bind(self, ends: Mapping[str, int] | None = None) -> None:
        """Look up the bounds that are needed: the ends of what was read, unless `ends` has others."""
        for (stage, topic), starts in self.ledger.needs(self.now).items():
            end = (ends or self.log).get(stage, self.log[stage])
            self.ledger.bind(stage, topic, starts, {0: end}, {0: self.reports})

    def judge(self, now: int | None = None) -> list[Change]:
        """Have everything judged that is due at `now`, by default well after the first window."""
        self.now = START + 2 * WIDTH if now is None else now
        changes = []
        for _ in self.ledger.stages:
            self.bind()
            changes += self.ledger.judge(self.now)
        return changes

    def judgement(self, stage: str = "serving", start: int = START) -> Judgement:
        """Return the judgement on a window."""
        found = self.ledger.windows[TOPIC, start].stages[stage].judgement
        assert found is not None
        return found


def numbers(producer: str, wanted: Iterable[int], time_ms: int = START) -> list[tuple[str, bytes]]:
    """Return the stamps of messages with these numbers."""
    return [header(producer, number, time_ms) for number in wanted]


SECONDS = 120.0


class ServedAudit:
    """`pylogd audit serve` of a topic as a process, which ends with the context."""

    def __init__(self, address: str, topic: str, folder: Path, *options: str) -> None:
        self._command = [
            *pylogd_command(), "audit", "serve", topic, "-b", address, "--reports", f"{topic}-audit",
            "--state", f"{topic}-state", "--markers", f"{topic}-complete", "--listen", "127.0.0.1:0", *options,
        ]  # fmt: skip
        self._log = folder / "audit.log"

    def __enter__(self) -> ServedAudit:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            assert self.end(signal.SIGTERM) == 0, self.log()
        assert "Traceback" not in self.log(), self.log()

    def start(self) -> None:
        """Start, or start again, and wait until it reads all stages."""
        with self._log.open("ab") as log:
            command = bound(self._command, signal.SIGTERM)
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"{line}\n{self.log()}"
        self.url = found[0]

    def end(self, sig: int) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(sig)
        code = self.process.wait(SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def log(self) -> str:
        """Return what it has logged."""
        return self._log.read_text()

    def get(self, name: str) -> str:
        """Return a page."""
        with urllib.request.urlopen(f"{self.url}/{name}", timeout=30) as answer:
            return str(answer.read().decode())

    def windows(self, stage: str = "serving") -> list[dict[str, Any]]:
        """Return the verdicts on all windows at a stage."""
        return [row for row in json.loads(self.get("windows.json")) if row["stage"] == stage]


def until(condition: Callable[[], Any], what: Callable[[], object]) -> None:
    """Wait until a condition holds. Fail with `what` if it does not in two minutes."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def sums(rows: Iterable[Mapping[str, Any]], *names: str) -> tuple[int, ...]:
    """Return the sums of columns."""
    each = list(rows)
    return tuple(sum(row[name] for row in each) for name in names)
