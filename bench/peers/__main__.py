"""pylogd beside its peers, by turns; writes bench/RESULTS.md, bench/results/*.json and bench/plots/*.svg.

    python -m bench peers [--minutes N] [--groups WORD ...] [--quick] [--list] [--fetch] [--report]

Groups of rows are measured in the order of importance: first those without results, then the oldest. Each is kept when
it is done, so a run with `--minutes` is useful, and the next run goes on. A peer that is not available, or can't do a
row, is listed with the reason. `--quick` gives an impression, not results: one short round of each row, kept under
.cache. `bench/README.md` has the method.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import confluent_kafka

from bench import schedule, summary
from bench.experiments import Experiment
from bench.harness import say
from bench.kinds import KINDS
from bench.loads import load
from bench.loads.kafka import CLIENT
from bench.machine import machine
from bench.peers import PEERS
from bench.peers.base import Peer, unwind_on_sigterm
from bench.results import GroupResults, Results
from bench.rounds import Rounds, Setup
from conformance.checks import Missing

HERE = Path(__file__).parents[1]
_QUICK = HERE.parent / ".cache" / "bench" / "quick"
_QUICK_SCALE, _QUICK_SECONDS = 0.2, 0.8


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is: a factor for messages; the seconds of a round, and the rounds, if not the rows' own."""

    scale: float = 1.0
    seconds: float | None = None
    rounds: int | None = None


class Run:
    """A run: measures groups one after the other."""

    def __init__(self, results: Results, folder: Path, size: Size) -> None:
        """folder: where the brokers' data goes."""
        self._results = results
        self._folder = folder
        self._size = size
        self._about = machine(confluent_kafka.libversion()[0])
        self._peers: dict[str, dict[str, str]] = {}

    def go(self, names: Sequence[str], minutes: float) -> None:
        """Measure groups. After so many minutes no further one is begun."""
        begun = time.monotonic()
        for number, name in enumerate(names, 1):
            spent = (time.monotonic() - begun) / 60
            if spent > minutes:
                say(f"{minutes:g} minutes are over; the next run begins with {name}")
                return
            say(f"[{number}/{len(names)}, {spent:.1f} min] {name}")
            self._results.save(self.group(name))

    def fetch(self) -> None:
        """Download and build all brokers and their clients, so that a run does not have to."""
        for name in PEERS:
            try:
                self._describe(name, None)
                say(f"{name}: {self._peers[name]['version']}; {self._peers[name]['client']}")
            except Missing as missing:
                say(f"{name}: {missing}")

    def group(self, name: str) -> GroupResults:
        """Measure all rows of a group, and return the results."""
        rows, begun = {}, time.monotonic()
        for experiment in schedule.groups()[name]:
            say(f"  {experiment.name}")
            rows[experiment.name] = schedule.by_turns(
                experiment,
                [(peer, partial(self._start, experiment, peer)) for peer in experiment.peers],
                self._setup(experiment, "").fitting,
                self._size.rounds or experiment.rounds,
                say,
            )
        present = {peer for columns in rows.values() for peer, found in columns.items() if found.samples}
        peers = {peer: about for peer, about in self._peers.items() if peer in present}
        minutes = round((time.monotonic() - begun) / 60, 1)
        return GroupResults(name, time.strftime("%Y-%m-%d %H:%M", time.gmtime()), self._about, peers, rows, minutes)

    def _setup(self, experiment: Experiment, peer: str) -> Setup:
        seconds = self._size.seconds or experiment.seconds
        return Setup(experiment, peer, self._folder, self._size.scale, seconds)

    def _start(self, experiment: Experiment, peer: str) -> Rounds:
        self._describe(peer, experiment.client)
        return KINDS[experiment.kind](self._setup(experiment, peer))

    def _describe(self, name: str, client: str | None) -> None:
        """Keep a peer's version, command and client for the report. Raises Missing if it is not available."""
        if name in self._peers:
            return
        peer: Peer | None = None
        try:
            peer = PEERS[name](self._folder)
            about = {"version": peer.version(), "command": peer.command()}
            for found, short in {str(peer.folder): "DIR", str(HERE.parent): "."}.items():
                about["command"] = about["command"].replace(found, short)
            self._peers[name] = about | {"client": load(client or peer.load).client()}
        finally:
            if peer is not None:
                peer.stop()


def raise_limits() -> None:
    """Allow as many open files as possible, for both ends of all connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m bench peers", description="pylogd beside its peers, by turns")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no group after so many minutes")
    parser.add_argument("--groups", nargs="+", default=(), metavar="WORD", help="only groups with a word in their name")
    parser.add_argument("--quick", action="store_true", help="one short round of each row, kept under .cache")
    parser.add_argument("--folder", type=Path, help="where the brokers' data goes (a folder under .cache)")
    parser.add_argument("--list", action="store_true", help="print the groups in the order of the run, and their rows")
    parser.add_argument("--fetch", action="store_true", help="download and build the brokers; measure nothing")
    parser.add_argument("--report", action="store_true", help="measure nothing; write the report from what is there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure as the command line says, and write the report."""
    said = options(arguments)
    place = _QUICK if said.quick else HERE
    results = Results.load(place / "results")
    names = schedule.due(results, said.groups)
    if said.list:
        print(*_listed(names, results), sep="\n")
        return
    unwind_on_sigterm()
    if not said.report:
        raise_limits()
        folder = said.folder or CLIENT.parent
        folder.mkdir(parents=True, exist_ok=True)
        size = Size(_QUICK_SCALE, _QUICK_SECONDS, 1) if said.quick else Size()
        with tempfile.TemporaryDirectory(prefix="data-", dir=folder) as data:
            if said.fetch:
                Run(results, Path(data), Size()).fetch()
                return
            _write_at_end(partial(Run(results, Path(data), size).go, names, said.minutes), results, place, said.quick)
        return
    _write_at_end(lambda: None, results, place, said.quick)


def _write_at_end(work: Callable[[], None], results: Results, place: Path, quick: bool) -> None:
    """Write the report when the work ends, however it ends: the groups that are done are in it."""
    try:
        work()
    finally:
        summary.write(results, place, quick=quick)
        say(f"wrote {os.path.relpath(place / 'RESULTS.md')}")


def _listed(names: Sequence[str], results: Results) -> list[str]:
    rows = schedule.groups()
    found = []
    for name in names:
        group = results.groups.get(name)
        when = f"{group.measured}, {group.minutes:g} minutes" if group is not None else "not measured"
        found.append(f"{name} ({when}): " + "; ".join(one.name for one in rows[name]))
    return found


if __name__ == "__main__":
    main()
