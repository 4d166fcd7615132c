"""Send extreme requests for a while, and judge: `python -m tests.extreme [--seconds N] [--seed N] [--results FILE]`.

Requests of every API and version, of sizes up to the limit on frames, and attacks that take many requests, come in a
random order from one client: half of the time to an open broker, then to one with TLS, SASL, ACLs and quotas
(`brokers.SecuredBroker`), where the client is one who may do everything, one who may do nothing, or anonymous.
Meanwhile a neighbour in a process of its own measures what it waits for answers; first without the attacks.
Judged are the neighbour's 99th percentile, the broker's memory, the size of answers, and its log.

Exit status: 0 if everything is within bounds, 1 if something is not.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from pylogd.broker.api.registry import REGISTRATIONS
from pylogd.wire.messages import ApiKey
from tests.extreme.access import Access
from tests.extreme.asking import Attacker, Outcome
from tests.extreme.brokers import OpenBroker, SecuredBroker
from tests.extreme.choosing import Chooser
from tests.extreme.messages import Extreme
from tests.extreme.neighbour import Neighbour, Sample, percentile
from tests.extreme.state import Known, begin_transaction, delete_others, make_doomed, prepare
from tests.pages import circumstances, write_page
from tests.rawclient import ConnectionClosed, RawClient, check_serves, memory

P99_MS = 50.0
MEMORY_MB = 300.0
_PATIENCE = 5.0  # seconds: how long an answer is waited for
_BRIEFLY = 0.3  # the same of an answer that may be late on purpose, or whose client is over its quota
_WORST = 15  # rows of a table
_NEED_DOOMED = (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS)
_MAKE_TOPICS = (ApiKey.CREATE_TOPICS, ApiKey.METADATA)
_END_TRANSACTIONS = (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS)
_MOST_ALONE = 60.0  # seconds in which the neighbour is alone


@dataclass
class Run:
    """What was sent to one broker, and what came of it.

    sent: when, the API or the attack, what, and the outcome. samples: the neighbour's. peak: memory of the broker, MB.
    missing: versions of APIs that were not sent.
    """

    broker: OpenBroker
    rng: Random
    begun: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    sent: list[tuple[float, str, str, Outcome | None]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    peak: float = 0.0
    missing: int = 0

    @property
    def beside(self) -> list[Sample]:
        """The neighbour's samples beside the attacks."""
        return [sample for sample in self.samples if self.begun <= sample.at < self.ended]

    def go_on(self, seconds: float) -> None:
        """Let the neighbour be alone for a while, then send requests for so many seconds."""
        with self.broker.admin.connect() as admin:
            known = prepare(admin)
            self.broker.prepare(admin)
            with Neighbour(self.broker.neighbour) as neighbour:
                time.sleep(min(_MOST_ALONE, seconds / 10))
                self.begun = time.monotonic()
                self._attack(admin, known, seconds)
                self.ended = time.monotonic()
                self.peak = memory(self.broker.pid, "VmHWM") if self.broker.exit_code is None else 0.0
                self.samples = neighbour.finish()

    def _attack(self, admin: RawClient, known: Known, seconds: float) -> None:
        attackers = [Attacker(access) for access, _ in self.broker.attackers]
        shares = [share for _, share in self.broker.attackers]
        chooser = Chooser(self.rng, known)
        while time.monotonic() - self.begun < seconds:
            chosen = chooser.next()
            (attacker,) = self.rng.choices(attackers, shares)
            if isinstance(chosen, Extreme):
                self._ask(admin, known, attacker, chosen)
            else:
                self._converse(attacker.access, *chosen)
        for attacker in attackers:
            attacker.close()
        self.missing = len(chooser.missing)

    def _ask(self, admin: RawClient, known: Known, attacker: Attacker, request: Extreme) -> None:
        if request.api_key in _NEED_DOOMED:
            make_doomed(admin)
        slowed = request.may_wait or attacker.access in self.broker.slowed
        at = time.monotonic()
        outcome = attacker.ask(request, _BRIEFLY if slowed else _PATIENCE)
        name = REGISTRATIONS[request.api_key].name
        self.sent.append((at, name, f"{request}{attacker.access.who}", outcome))
        if request.api_key == ApiKey.DELETE_ACLS:
            self.broker.repair(admin)
        if request.api_key in _MAKE_TOPICS:
            delete_others(admin)
        if request.api_key in _END_TRANSACTIONS:
            begin_transaction(admin, known)

    def _converse(self, access: Access, attack: Callable[..., Any], scale: float) -> None:
        self.sent.append((time.monotonic(), attack.__name__, f"{attack.__name__}, scale {scale}{access.who}", None))
        with contextlib.suppress(ConnectionClosed), attack(access, scale):
            check_serves(self.broker.address)


def report(title: str, run: Run) -> list[str]:
    """Return what was measured with one broker, as Markdown."""
    ends = Counter(outcome.end.value for *_, outcome in run.sent if outcome is not None)
    alone = [sample for sample in run.samples if sample.at < run.begun]
    beside = run.beside
    lines = [
        f"## {title}",
        "",
        f"{len(run.sent):,} requests and attacks in {run.ended - run.begun:.0f} s: "
        + ", ".join(f"{count:,} {end}" for end, count in ends.most_common()) + ". "
        + (f"{run.missing} versions of APIs were not sent." if run.missing else "Every version of every API was sent."),
        "",
        "| of the neighbour's requests | ms beside the attacks | ms alone |",
        "| --- | --: | --: |",
        *(
            f"| {share * 100:g} % took at most | {percentile(beside, share):.1f} | {percentile(alone, share):.1f} |"
            for share in (0.5, 0.99, 0.999, 0.9999)
        ),
        f"| the longest of {len(beside):,} and {len(alone):,} | {percentile(beside, 1.0):.1f} | "
        f"{percentile(alone, 1.0):.1f} |",
        "",
        f"Peak memory of the broker: {run.peak:.0f} MB.",
        "",
        "| the neighbour waited, ms | while this was sent |",
        "| --: | --- |",
    ]  # fmt: skip
    for sample in sorted(beside, key=lambda sample: -sample.seconds)[:_WORST]:
        lines.append(f"| {sample.seconds * 1000:.0f} | {_sent_at(run, sample)} |")
    lines += ["", "| answer, bytes | seconds | to |", "| --: | --: | --- |"]
    answered = [(outcome, what) for _, _, what, outcome in run.sent if outcome is not None]
    for outcome, what in sorted(answered, key=lambda row: -row[0].size)[:_WORST]:
        lines.append(f"| {outcome.size:,} | {outcome.seconds:.2f} | {what} |")
    counts = Counter(name for _, name, _, _ in run.sent)
    lines += ["", "Sent: " + ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) + "."]
    return lines


def _sent_at(run: Run, sample: Sample) -> str:
    """Return what the broker was busy with while a sample was taken."""
    end = sample.at + sample.seconds
    return next((what for at, _, what, _ in reversed(run.sent) if at <= end), "nothing yet")


def judge(run: Run) -> list[str]:
    """Return what is out of bounds."""
    faults = []
    p99 = percentile(run.beside, 0.99)
    if p99 >= P99_MS:
        faults.append(f"the neighbour's 99th percentile is {p99:.1f} ms; it should be under {P99_MS:.0f}")
    if run.peak >= MEMORY_MB:
        faults.append(f"the broker took {run.peak:.0f} MB; it should take less than {MEMORY_MB:.0f}")
    log = run.broker.log()
    faults += [f"the log has {what!r}" for what in ("Traceback", "internal error") if what in log]
    if run.broker.exit_code is not None:
        faults.append(f"the broker ended with exit code {run.broker.exit_code}")
    return faults


_KINDS = (("An open broker", OpenBroker), ("A broker with TLS, SASL, ACLs and quotas", SecuredBroker))


def run_one(kind: type[OpenBroker], seconds: float, seed: int, log: Path | None) -> tuple[Run, list[str]]:
    """Start a broker, attack it, and return what came of it, and what is out of bounds."""
    with tempfile.TemporaryDirectory(prefix="pylogd-extreme-") as folder:
        broker = kind(Path(folder))
        try:
            run = Run(broker, Random(seed))
            run.go_on(seconds)
            return run, judge(run)
        finally:
            broker.kill()
            if log is not None:
                log.write_text(broker.log())


def head(seconds: float) -> list[str]:
    """Return how the results came about."""
    return [
        "# Extreme requests",
        "",
        "Written by `make fuzz-requests`. Well-formed requests of every API and version that ask for very much, beside "
        "a client that produces, fetches and asks for metadata.",
        "",
        f"{circumstances()} {seconds:.0f} s.",
        "",
    ]


def main() -> int:
    """Run, print the report, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.extreme", description="well-formed extreme requests")
    parser.add_argument("--seconds", type=float, default=120.0, help="for how long, for both brokers together (120)")
    parser.add_argument("--seed", type=int, default=1, help="of the order and sizes of requests (1)")
    parser.add_argument("--results", type=Path, help="write the report to this file too")
    parser.add_argument("--logs", type=Path, help="keep the logs of the brokers in this folder")
    options = parser.parse_args()
    faults, lines = [], head(options.seconds)
    for title, kind in _KINDS:
        log = None if options.logs is None else options.logs / f"{kind.__name__}.log"
        run, found = run_one(kind, options.seconds / len(_KINDS), options.seed, log)
        faults += [f"{title}: {fault}" for fault in found]
        lines += [*report(title, run), "", *(f"**Out of bounds: {fault}.**\n" for fault in found)]
        if options.results:
            write_page(options.results, lines)
    print("\n".join(lines))
    for fault in faults:
        print(f"extreme: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
