"""The runs of `pylogd load` in a round: loaders, which are started again when they have ended, and the compactor."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.kills.comparing import LakeFault
from tests.kills.lakes import RoundLake
from tests.kills.processes import ONLY_BY_SPARK, Loader

PROGRESS_SECONDS = 600.0
LOCAL = "local[2,4]"
_COMPACTED_COMMITS = 3  # so many commits are made from one compaction to the next
_LOG_CHARACTERS = 6000


class Loads:
    """All runs of `pylogd load` of a round on one lake. ends: the last lines of those that ended by an error."""

    def __init__(self, lake: RoundLake, folder: Path, master: str = LOCAL) -> None:
        self._lake, self._folder, self._master = lake, folder, master
        self._scratch = folder / "spark"
        self._scratch.mkdir(parents=True)
        self._all: list[Loader] = []
        self._followed = 0  # runs with `--follow`
        self.ends: Counter[str] = Counter()
        #: An archive of the JVM's classes, which the first run writes when it ends.
        self.classes = folder.parent / "classes.jsa"

    def start(self, arguments: Sequence[str], master: str | None = None, log: str = "loader.log") -> Loader:
        """Start `pylogd load` with these arguments. log: a name of its own for each that runs at the same time.

        Every second run with `--follow` waits for Spark, so that its tasks are killed as often as loads without them.
        """
        settings = dict(self._lake.settings)
        if "--follow" in arguments:
            self._followed += 1
            settings |= ONLY_BY_SPARK if self._followed % 2 else {}
        loader = Loader(arguments, self._folder / log, master or self._master, self._scratch, self.classes, settings)
        self._all.append(loader)
        return loader

    def complete(self, arguments: Sequence[str], master: str | None = None) -> None:
        """Run `pylogd load` to its end. Raises LakeFault if it fails."""
        loader = self.start(arguments, master)
        deadline = time.monotonic() + PROGRESS_SECONDS
        while not loader.ended():  # not the command alone: the JVM writes the archive of classes behind it
            if time.monotonic() > deadline:
                raise LakeFault(f"`pylogd load` did not end:\n{loader.output()[-_LOG_CHARACTERS:]}")
            time.sleep(0.1)
        if loader.process.returncode:
            raise LakeFault(f"`pylogd load` failed without a kill:\n{loader.output()[-_LOG_CHARACTERS:]}")

    def note_end(self, loader: Loader) -> None:
        """Note how a run ended. Raises LakeFault if it did not say why."""
        if loader.process.returncode in (0, -9):
            return
        said = loader.output()
        last = (said.strip().splitlines() or [""])[-1]
        if not last.startswith("Error: "):
            raise LakeFault(
                f"a loader ended by {loader.process.returncode} without an error message:\n{said[-_LOG_CHARACTERS:]}"
            )
        self.ends[last] += 1

    def kill_all(self) -> None:
        """Kill all runs with their JVMs and workers."""
        for loader in self._all:
            loader.kill_all()


class Compactor:
    """`pylogd load --compact`, run again after some commits. running: the present run, None between two of them."""

    def __init__(self, loads: Loads, lake: RoundLake, commits: int = _COMPACTED_COMMITS) -> None:
        """commits: how many are made from the start of one compaction to the start of the next."""
        self._loads, self._lake, self._each = loads, lake, commits
        self._begun_at = 0  # the number of commits when the last compaction began
        self.running: Loader | None = None

    def keep(self) -> None:
        """Note the end of a run that has ended, and start the next one if it is due."""
        if self.running is not None:
            if self.running.process.poll() is None:
                return
            self._loads.note_end(self.running)
            self.running = None
        if (commits := self._lake.commits()) >= self._begun_at + self._each:
            self._begun_at = commits
            self.running = self._loads.start(compaction(self._lake), LOCAL, "compactor.log")

    def kill(self) -> None:
        """Kill the present run."""
        if self.running is not None:
            self.running.kill_all()


def compaction(lake: RoundLake) -> list[str]:
    """Return the arguments of `pylogd load` for a compaction."""
    return ["--to", lake.url, "--compact", "--target-mb", "64"]
