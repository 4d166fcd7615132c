"""Send extreme requests for a while, and judge: `python -m tests.extreme [--seconds N] [--seed N] [--results FILE]`.

Requests of every API and version, of sizes up to the limit on frames, and attacks that take many requests, come in a
random order from one connection. Meanwhile a neighbour in a process of its own measures what it waits for answers.
Judged are the neighbour's 99th percentile, the broker's memory, the size of answers, and its log.

Exit status: 0 if everything is within bounds, 1 if something is not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pylogd.api.registry import served_versions
from pylogd.local.broker import BrokerProcess
from tests.extreme.asking import Attacker, Outcome
from tests.extreme.attacks import CONVERSATIONS, TABLE
from tests.extreme.messages import Extreme, Sizes, extremes
from tests.extreme.neighbour import Neighbour, Sample, percentile
from tests.extreme.state import SETTINGS, Known, make_doomed, prepare
from tests.rawclient import RawClient, memory

P99_MS = 50.0
MEMORY_MB = 300.0
_PATIENCE = 20.0  # seconds: how long an answer is waited for
_WORST = 15  # rows of a table
_LARGEST_ELEMENTS = 2_000_000
_LARGEST_DATA = 80 << 20


@dataclass
class Run:
    """What was sent, and what came of it."""

    broker: BrokerProcess
    rng: Random
    begun: float = field(default_factory=time.monotonic)
    sent: list[tuple[float, str, Outcome | None]] = field(default_factory=list)

    def go_on(self, seconds: float) -> None:
        """Send requests for so many seconds."""
        with RawClient(self.broker.address) as client:
            known = prepare(client)
        attacker = Attacker(self.broker.address)
        apis = sorted(served_versions().items())
        while time.monotonic() - self.begun < seconds:
            kind = self.rng.random()
            if kind < 0.03:
                self._converse()
            elif kind < 0.2:
                self._ask(attacker, self.rng.choice(TABLE)(known, self.rng.choice((0.01, 0.1, 1.0))))
            else:
                key, (first, last) = self.rng.choice(apis)
                self._ask(attacker, self._any(key, self.rng.randint(first, last), known))
        attacker.close()

    def _any(self, key: int, version: int, known: Known) -> Extreme:
        """Make one of the extreme requests of an API. Large ones are rarer."""
        elements = int(10 ** self.rng.uniform(1, 6.3))
        found = list(extremes(key, version, known, Sizes(min(elements, 10_000), 1000)))
        name = self.rng.choice(found).about
        sizes = Sizes(min(elements, _LARGEST_ELEMENTS), min(elements * 50, _LARGEST_DATA))
        about = name.split()[0]
        like = [one for one in extremes(key, version, known, sizes) if one.about.split()[0] == about]
        return self.rng.choice(like)

    def _ask(self, attacker: Attacker, request: Extreme) -> None:
        with RawClient(self.broker.address) as client:
            make_doomed(client)
        at = time.monotonic()
        self.sent.append((at, str(request), attacker.ask(request, _PATIENCE)))

    def _converse(self) -> None:
        attack = self.rng.choice(CONVERSATIONS)
        scale = self.rng.choice((0.05, 0.2, 1.0))
        self.sent.append((time.monotonic(), f"{attack.__name__}, scale {scale}", None))
        with attack(self.broker.address, scale):
            time.sleep(1.0)


def report(run: Run, samples: Sequence[Sample], peak: float) -> list[str]:
    """Return the report, as Markdown."""
    ends = Counter(outcome.end.value for _, _, outcome in run.sent if outcome is not None)
    lines = [
        "# Extreme requests",
        "",
        "Written by `make fuzz-requests`. Well-formed requests of every API and version that ask for very much, beside "
        "a client that produces, fetches and asks for metadata.",
        "",
        f"{len(run.sent):,} requests and attacks in {time.monotonic() - run.begun:.0f} s: "
        + ", ".join(f"{count:,} {end}" for end, count in ends.most_common()) + ".",
        "",
        "| of the neighbour's requests | ms |",
        "| --- | --: |",
        *(f"| {share:.1%} took at most | {percentile(list(samples), share):.1f} |" for share in (0.5, 0.99, 0.999)),
        f"| the longest of {len(samples):,} | {percentile(list(samples), 1.0):.1f} |",
        "",
        f"Peak memory of the broker: {peak:.0f} MB.",
        "",
        "| the neighbour waited, ms | while this was sent |",
        "| --: | --- |",
    ]  # fmt: skip
    for sample in sorted(samples, key=lambda sample: -sample.seconds)[:_WORST]:
        lines.append(f"| {sample.seconds * 1000:.0f} | {_sent_at(run, sample)} |")
    lines += ["", "| answer, bytes | seconds | to |", "| --: | --: | --- |"]
    answered = [(outcome, what) for _, what, outcome in run.sent if outcome is not None]
    for outcome, what in sorted(answered, key=lambda row: -row[0].size)[:_WORST]:
        lines.append(f"| {outcome.size:,} | {outcome.seconds:.2f} | {what} |")
    return lines


def _sent_at(run: Run, sample: Sample) -> str:
    """Return what the broker was busy with while a sample was taken."""
    end = sample.at + sample.seconds
    return next((what for at, what, _ in reversed(run.sent) if at <= end), "nothing yet")


def judge(run: Run, samples: Sequence[Sample], peak: float) -> list[str]:
    """Return what is out of bounds."""
    faults = []
    p99 = percentile(list(samples), 0.99)
    if p99 >= P99_MS:
        faults.append(f"the neighbour's 99th percentile is {p99:.1f} ms; it should be under {P99_MS:.0f}")
    if peak >= MEMORY_MB:
        faults.append(f"the broker took {peak:.0f} MB; it should take less than {MEMORY_MB:.0f}")
    log = run.broker.log()
    faults += [f"the log has {what!r}" for what in ("Traceback", "internal error") if what in log]
    if run.broker.exit_code is not None:
        faults.append(f"the broker ended with exit code {run.broker.exit_code}")
    return faults


def main() -> int:
    """Run, print the report, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.extreme", description="well-formed extreme requests")
    parser.add_argument("--seconds", type=float, default=120.0, help="for how long (120)")
    parser.add_argument("--seed", type=int, default=1, help="of the order and sizes of requests (1)")
    parser.add_argument("--results", type=Path, help="write the report to this file too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pylogd-extreme-") as folder:
        broker = BrokerProcess(Path(folder, "data"), Path(folder, "log"), SETTINGS)
        try:
            with Neighbour(broker.address) as neighbour:
                run = Run(broker, Random(options.seed))
                run.go_on(options.seconds)
                peak = memory(broker.pid, "VmHWM") if broker.exit_code is None else 0.0
                samples = neighbour.finish()
            lines, faults = report(run, samples, peak), judge(run, samples, peak)
        finally:
            broker.kill()
    print("\n".join(lines))
    if options.results:
        options.results.write_text("\n".join(lines) + "\n")
    for fault in faults:
        print(f"extreme: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
