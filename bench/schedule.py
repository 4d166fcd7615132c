"""The order of a run: groups by importance and age, and the brokers of a row by turns.

Strategy: all brokers of a row are started and warmed up. The quickest one's rate gives the number of messages of a
round, the same for all. The quick ones have a rehearsal: if a round was short, the number grows. Then each has one
round, in an order that is rotated by one for each round, until all have had theirs; the others are idle meanwhile.
Round N of one is compared with round N of another (`bench/pairs.py`).

Rules: results are kept for whole groups, and replaced for whole groups: no row is measured again alone. A broker that
fails in one round has no result in that row.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from bench.experiments import EXPERIMENTS, Experiment
from bench.loads import Unsupported
from bench.results import Measurement, Results
from bench.rounds import Ready, Rounds
from conformance.checks import Missing, last_line

#: A broker that is so many times slower than the quickest has no result, unless it has a target.
_TOO_SLOW = 4.0
#: Seconds of the shortest round in the rehearsal; below it the number of messages grows.
_SHORTEST = 1.5
_REHEARSED = 2.0  # brokers with rounds that are longer by this factor, or more, need no rehearsal
_FAILURES = (Missing, Unsupported, RuntimeError, OSError, subprocess.SubprocessError)


def groups() -> dict[str, list[Experiment]]:
    """Return the rows of each group, the most important group first."""
    return {name: list(rows) for name, rows in groupby(EXPERIMENTS, key=lambda one: one.group)}


def due(results: Results, words: Sequence[str] = ()) -> list[str]:
    """Return the groups to measure: those without results by importance, then the others, the oldest first.

    A group whose rows or peers are others than those of its results has none. words: only groups with one of these in
    their name.
    """
    chosen = [name for name in groups() if not words or any(word.lower() in name.lower() for word in words)]
    return sorted(chosen, key=lambda name: results.measured_at(name) if _is_current(results, name) else "")


def _is_current(results: Results, name: str) -> bool:
    """Return whether the results of a group are of the rows and peers that it has now."""
    wanted = {(one.name, peer) for one in groups()[name] for peer in one.peers}
    group = results.groups.get(name)
    return group is not None and wanted == {(row, peer) for row, peers in group.rows.items() for peer in peers}


def by_turns(
    experiment: Experiment,
    starts: Iterable[tuple[str, Callable[[], Rounds]]],
    fitting: Callable[[float], int],
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, Measurement]:
    """Measure one row, and return what each peer had.

    starts: the peers' names, with what starts them. fitting: the number of messages of a round, from the quickest
    rate. say: is told what happens.
    """
    row = _Row(experiment, say)
    try:
        for peer, begin in starts:
            row.start(peer, begin)
        row.leave_out_slow()
        count = row.rehearse(fitting(max(row.rates.values(), default=0.0)))
        for number in range(rounds):
            for peer in row.turn(number):
                row.round(peer, count)
        if "overhead" in experiment.shows:
            for peer in row.turn(0):
                row.add_up(peer)
    finally:
        row.stop()
    return row.found


class _Row:
    """The brokers of one row that run."""

    def __init__(self, experiment: Experiment, say: Callable[[str], None]) -> None:
        self._experiment = experiment
        self._say = say
        self._running: dict[str, Rounds] = {}
        self.rates: dict[str, float] = {}
        self.found: dict[str, Measurement] = {}

    def start(self, peer: str, begin: Callable[[], Rounds]) -> None:
        """Start a broker and warm it up."""
        self.found[peer] = Measurement()
        try:
            rounds = begin()
            ready = next(rounds)
        except _FAILURES as error:
            self._drop(peer, _reason(error))
            return
        assert isinstance(ready, Ready)
        self._running[peer], self.rates[peer] = rounds, ready.rate
        self._say(f"    {peer}: ready" + (f", {ready.rate:,.0f} messages/s" if ready.rate else ""))

    def leave_out_slow(self) -> None:
        """Stop the brokers for which rounds as long as the quickest broker needs would take minutes."""
        quickest = max(self.rates.values(), default=0.0)
        for peer, rate in self.rates.items():
            if peer not in self._experiment.compared and rate * _TOO_SLOW < quickest:
                self._drop(peer, f"too slow: {rate:,.0f} messages/s in the warm-up")

    def turn(self, number: int) -> Iterator[str]:
        """Yield the brokers that still run, in the order of this round."""
        order = list(self._running)
        start = number % len(order) if order else 0
        yield from order[start:] + order[:start]

    def rehearse(self, count: int) -> int:
        """Have the quick brokers do a round that does not count; return how many messages the rounds that do should
        have. Those whose rounds are long anyway have none, nor have those of rows that have their own count.
        """
        for peer in self.turn(0):
            if 0 < count / max(self.rates[peer], 1e-9) < _REHEARSED * _SHORTEST:
                self.round(peer, count)
        samples = [found.samples.pop() for found in self.found.values() if found.samples]
        shortest = min((sample["seconds"] for sample in samples if "seconds" in sample), default=_SHORTEST)
        return count if shortest >= _SHORTEST else int(count * _SHORTEST / max(shortest, 0.01)) + 1

    def round(self, peer: str, count: int) -> None:
        """Have a broker do a round of `count` messages."""
        try:
            sample = self._running[peer].send(count)
        except _FAILURES as error:
            self._drop(peer, _reason(error))
            return
        assert isinstance(sample, dict)
        self.found[peer].samples.append(sample)
        shown = (f"{metric} {sample[metric]:,.2f}" for metric in self._experiment.shows if metric in sample)
        self._say(f"    {peer}: {', '.join(shown)}")

    def add_up(self, peer: str) -> None:
        """Stop a broker, and add its size on disk to its last round."""
        try:
            last = self._running[peer].send(0)
        except _FAILURES as error:
            self._say(f"    {peer}: {_reason(error)}")
            return
        assert isinstance(last, dict)
        self.found[peer].samples[-1] |= last

    def stop(self) -> None:
        """Stop all brokers."""
        for peer in list(self._running):
            self._running.pop(peer).close()

    def _drop(self, peer: str, why: str) -> None:
        self.found[peer] = Measurement(why_not=why)
        self._say(f"    {peer}: {why}")
        if peer in self._running:
            self._running.pop(peer).close()


def _reason(error: BaseException) -> str:
    if isinstance(error, Unsupported):
        return f"can't: {error}"
    if isinstance(error, Missing):
        return f"missing: {error}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"failed: its client did not end within {error.timeout:.0f} s"
    return f"failed: {last_line(str(error)) or type(error).__name__}"
