"""`make bench`: pylogd beside its peers; writes bench/RESULTS.md, bench/results.json and bench/plots/*.svg.

Rules: one broker runs at a time, on loopback, with its data on the same disk, under the same load. The next run keeps
and skips what has been measured; `--again` measures it again. A peer that is not available or can't do an experiment
is listed with the reason. Experiments with targets come first, then the paper's, then the rest, so that a run that is
interrupted, or has a `--budget`, has what matters most. `--quick` gives an impression, not results: one short round of
each, kept under .cache.

    python -m bench.run [--quick] [--budget MINUTES] [--only WORD[,WORD]] [--list] [--report]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka

from bench import summary
from bench.experiments import COMPARED, EXPERIMENTS, Experiment, canonical
from bench.kinds import KINDS, Setup
from bench.loads import Load, Unsupported, load
from bench.loads.kafka import CLIENT
from bench.machine import machine
from bench.peers import PEERS
from bench.peers.base import Peer, unwind_on_sigterm
from bench.results import Measurement, Results
from conformance.checks import Missing, last_line

HERE = Path(__file__).parent
QUICK = HERE.parent / ".cache" / "bench" / "quick"
QUICK_SCALE, QUICK_SECONDS, QUICK_MINUTES = 0.2, 0.8, 9.0


def say(text: str) -> None:
    """Print progress on standard error."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def chosen(experiment: Experiment, peer: str, words: Sequence[str]) -> bool:
    """Return whether words select an experiment with a peer. Names of peers select peers, other words experiments."""
    peers = [word for word in words if word in PEERS]
    title = f"{experiment.group}: {experiment.name}".lower()
    return (not peers or peer in peers) and all(word.lower() in title for word in words if word not in PEERS)


def plan(words: Sequence[str], quick: bool) -> list[tuple[Experiment, str]]:
    """Return what to measure, in order. A quick run leaves some out, unless words select them.


    The peers of an experiment are measured one after the other, within minutes.
    """
    some = [one for one in EXPERIMENTS if one.quick or words or not quick]
    steps = [(canonical(one), peer) for one in some for peer in one.peers if chosen(one, peer, words)]
    return sorted(dict.fromkeys(steps), key=lambda step: step[0].rank(step[1]))


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run: a factor for messages, and values that replace those of the experiments."""

    scale: float = 1.0
    seconds: float | None = None
    rounds: int | None = None

    def setup(self, experiment: Experiment, peer: str, load: Load, folder: Path) -> Setup:
        """Return what a function of bench/kinds.py needs."""
        seconds = self.seconds or experiment.seconds_with(peer)
        rounds = self.rounds or experiment.rounds_with(peer)
        whole = experiment.whole and peer in COMPARED and self.seconds is None
        return Setup(experiment, peer, load, folder, self.scale, seconds, rounds, whole)


class Run:
    """One run of the planned experiments."""

    def __init__(self, results: Results, folder: Path, size: Size) -> None:
        self.results = results
        self.folder = folder
        self.size = size
        self.commit = str(results.about.get("commit", ""))
        self._missing: dict[str, str] = {}

    def describe(self, name: str) -> None:
        """Record a peer's version, command and client, or that it is not available."""
        if name in self._missing or name in self.results.peers:
            return
        peer: Peer | None = None
        try:
            peer = PEERS[name](self.folder)
            about = {"version": peer.version(), "command": peer.command(), "client": load(peer.load).client()}
            shown = {str(peer.folder): "DIR", str(HERE.parent): "."}
            for found, short in shown.items():
                about["command"] = about["command"].replace(found, short)
            self.results.peers[name] = about
        except Missing as why:
            self._missing[name] = str(why)
        finally:
            if peer is not None:
                peer.stop()

    def measure(self, experiment: Experiment, name: str) -> Measurement:
        """Run one experiment with one peer, and save each sample."""
        found = Measurement(commit=self.commit)
        self.describe(name)
        try:
            if name in self._missing:
                raise Missing(f"missing: {self._missing[name]}")
            client = load(experiment.client or PEERS[name].load)
            setup = self.size.setup(experiment, name, client, self.folder)
            for sample in KINDS[experiment.kind](setup):
                found.samples.append(sample)
                shown = (f"{metric} {sample[metric]:,.2f}" for metric in experiment.shows if metric in sample)
                say("    " + ", ".join(shown))
            found.final = True
        except Unsupported as why:
            found.why_not, found.final = f"can't: {why}", True
        except Missing as why:
            found.why_not = str(why)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            found.why_not = f"failed: {last_line(str(error)) or type(error).__name__}"
        if found.why_not:
            say(f"    {found.why_not}")
        return found

    def go(self, steps: Sequence[tuple[Experiment, str]], again: bool, budget: float) -> None:
        """Measure what has no results yet. After `budget` minutes no experiment is started."""
        begun = time.monotonic()
        for number, (experiment, name) in enumerate(steps, 1):
            there = self.results.get(experiment, name)
            if there is not None and there.final and not again:
                continue
            minutes = (time.monotonic() - begun) / 60
            if minutes > budget:
                say(f"{budget:g} minutes are over: run the same command again to continue")
                return
            say(f"[{number}/{len(steps)}, {minutes:.1f} min] {experiment.group}: {experiment.name}: {name}")
            self.results.put(experiment, name, self.measure(experiment, name))


def raise_limits() -> None:
    """Allow as many open files as possible, for both ends of all connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="pylogd beside its peers")
    parser.add_argument("--quick", action="store_true", help="a short run of under 10 minutes, kept under .cache")
    parser.add_argument("--only", default="", help="peers and words of experiments' names, separated by commas")
    parser.add_argument("--again", action="store_true", help="measure again what has results")
    parser.add_argument("--budget", type=float, help="begin nothing more after so many minutes (--quick: 9)")
    parser.add_argument("--rounds", type=int, help="rounds of which the median counts (what each experiment says)")
    parser.add_argument("--scale", type=float, help="a factor for the number of messages (1)")
    parser.add_argument("--seconds", type=float, help="how long a round lasts, about (what each experiment says)")
    parser.add_argument("--folder", type=Path, help="where the brokers' data goes (a folder under .cache)")
    parser.add_argument("--list", action="store_true", help="print what would be measured, and end")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report from existing results")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure as the command line says, and write the report."""
    said = options(arguments)
    words = [word.strip() for word in said.only.split(",") if word.strip()]
    steps = plan(words, said.quick)
    if said.list:
        print("\n".join(f"{experiment.group}: {experiment.name}: {peer}" for experiment, peer in steps))
        return
    place = QUICK if said.quick else HERE
    results = Results.load(place / "results.json")
    results.about = machine(confluent_kafka.libversion()[0])
    raise_limits()
    folder = said.folder or CLIENT.parent
    folder.mkdir(parents=True, exist_ok=True)
    size = Size(said.scale or 1.0, said.seconds, said.rounds)
    budget = said.budget or (QUICK_MINUTES if said.quick else float("inf"))
    if said.quick:
        size = Size(said.scale or QUICK_SCALE, said.seconds or QUICK_SECONDS, said.rounds or 1)
    unwind_on_sigterm()
    if not said.report:
        with tempfile.TemporaryDirectory(prefix="data-", dir=folder) as data:
            Run(results, Path(data), size).go(steps, said.again, budget)
    summary.write(results, place, quick=said.quick)
    say(f"wrote {os.path.relpath(place / 'RESULTS.md')}")


if __name__ == "__main__":
    main()
