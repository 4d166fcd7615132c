"""Copiers of a topic: Kafka's own TransactionalMessageCopier, several in a group, killed, paused and restarted.

Each reads what is committed, and writes it to the same partition of another topic in transactions that commit its
offsets too; a third of the transactions is aborted. A copier ends by itself when it has copied all that was there when
it got its partitions, and when it was fenced; it is started again then.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from conformance import java_tools

GROUP: Final = "copiers"
_TOOL: Final = "org.apache.kafka.tools.TransactionalMessageCopier"
#: Small and soon ready: they are started often.
_JAVA: Final = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_TRANSACTION_SIZE: Final = 200
#: Longer than a session, so that a paused copier is taken for dead, and comes back with an open transaction.
_PAUSE_SECONDS: Final = (12.0, 16.0)


class Copier:
    """One copier. `resume_at`: when to resume it, if it is paused."""

    def __init__(self, number: int, bootstrap: str, source: str, target: str, folder: Path) -> None:
        program, _, *rest = java_tools.java()
        self.name = f"copier {number}"
        self._log = folder / f"copier{number}.log"
        self._command: Sequence[str] = [
            program, *_JAVA, *rest, _TOOL, "--broker-list", bootstrap, "--input-topic", source,
            "--input-partition", "0", "--output-topic", target, "--consumer-group", GROUP,
            "--transactional-id", f"copier-{number}",
            "--transaction-size", str(_TRANSACTION_SIZE), "--transaction-timeout", "10000", "--enable-random-aborts",
            "--group-mode", "--use-group-metadata",
        ]  # fmt: skip
        self.resume_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether it runs, or is paused."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, on the same transactional id."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=log)

    def pause(self, seconds: float) -> None:
        """Halt it for so many seconds; `follow` resumes it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.resume_at = time.monotonic() + seconds

    def follow(self) -> bool:
        """Resume it if it is time, and start it if it ended by itself. Return whether it was started."""
        if self.resume_at is not None and self.resume_at <= time.monotonic() and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self.resume_at = None
        if self.runs:
            return False
        self.start()
        return True

    def kill(self) -> None:
        """End it as a crash does."""
        self.resume_at = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Copiers:
    """All copiers, and what is done to them."""

    def __init__(
        self, count: int, bootstrap: str, topics: tuple[str, str], folder: Path, rng: random.Random,
        say: Callable[[str], object],
    ) -> None:  # fmt: skip
        """topics: the source and the target."""
        self.troubles: Counter[str] = Counter()
        self._copiers = [Copier(number, bootstrap, *topics, folder) for number in range(count)]
        self._rng = rng
        self._say = say

    def trouble(self) -> None:
        """Kill one, or pause one for longer than its session lasts."""
        copier = self._rng.choice(self._copiers)
        if not copier.runs or copier.resume_at is not None:
            return
        if self._rng.random() < 0.7:
            copier.kill()
            self._note("kill copier", f"kill {copier.name}")
        else:
            copier.pause(self._rng.uniform(*_PAUSE_SECONDS))
            self._note("pause copier", f"pause {copier.name}")

    def _note(self, kind: str, text: str) -> None:
        self.troubles[kind] += 1
        self._say(text)

    def follow(self) -> None:
        """Start those that ended, and resume those that were paused for long enough."""
        for copier in self._copiers:
            if copier.follow():
                self.troubles["start copier"] += 1

    def close(self) -> None:
        """Kill all."""
        for copier in self._copiers:
            copier.kill()
