"""Measure clients beside crowds of strangers: `python -m tests.strangers [--results FILE]`.

One broker with a plain and a SASL_SSL listener. Two neighbours, one on each, produce, fetch and ask for metadata, and
another client connects and authenticates again and again. Each attack is made in turn with a time without one, so that
whatever else the machine does is in both. Judged are the neighbours' waiting times beside the attacks, the broker's
memory, and the length of its log.

Exit status: 0 if everything is within bounds, 1 if something is not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.create_acls import AclCreation, CreateAclsRequest
from pylogd.wire.records import NewRecord, encode_batch
from tests.extreme.access import Access
from tests.extreme.brokers import SecuredBroker
from tests.extreme.neighbour import Neighbour, Sample, percentile
from tests.extreme.state import STAMP, TOPIC
from tests.pages import write_page
from tests.rawclient import ConnectionClosed, create_topic, memory, produce, reset_peak
from tests.strangers.crowds import ATTACKS, Attack, Crowd

P99_MS: Final = 50.0
MEMORY_MB: Final = 300.0
LINES_A_SECOND: Final = 50.0
_PLAIN: Final = "neighbour-plain"
_RECORDS: Final = 64  # of 1 MB: what is fetched and not read
_CONNECT_SECONDS: Final = 0.2  # between two connections
_SETTLE: Final = 2.0  # seconds after an attack that belong to neither
#: Shorter than by default, so that an attack meets them while it is measured.
SETTINGS: Final = {
    "connection.handshake.timeout.ms": "5000", "request.receive.timeout.ms": "5000",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER", "sasl.oauthbearer.unsecured.tokens.enable": "true",
    "sasl.oauthbearer.clock.skew.seconds": "0", "auto.create.topics.enable": "false",
}  # fmt: skip


@dataclass
class Phase:
    """A time with or without an attack. lines: of the log. peak: memory, MB. cpu: the broker's share of a core."""

    begun: float
    attacked: bool
    ended: float = 0.0
    attempts: int = 0
    lines: int = 0
    peak: float = 0.0
    cpu: float = 0.0

    def has(self, sample: Sample) -> bool:
        """Return whether a sample was taken in it."""
        return self.begun <= sample.at < self.ended


@dataclass
class Connects:
    """Connects and authenticates again and again, in a thread. samples: how long it took."""

    access: Access
    samples: list[Sample] = field(default_factory=list)
    failed: int = 0

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_CONNECT_SECONDS):
            begun = time.monotonic()
            try:
                with self.access.connect(30) as client:
                    client.request(ApiVersionsRequest("x", "1"), 3)
            except (OSError, ConnectionClosed):
                self.failed += 1
            self.samples.append(Sample(begun, time.monotonic() - begun))


def prepare(broker: SecuredBroker) -> None:
    """Make topics, permissions and what is fetched."""
    with broker.admin.connect() as admin:
        broker.prepare(admin)
        create_topic(admin, _PLAIN)
        create_topic(admin, TOPIC)
        acls = [AclCreation(2, name, 3, "User:ANONYMOUS", "*", 2, 3) for name in (_PLAIN, TOPIC)]
        assert not any(one.error_code for one in admin.request(CreateAclsRequest(acls), 3).results)
        batch = encode_batch([NewRecord(None, bytes(1_000_000), STAMP)])
        for _ in range(_RECORDS):
            produce(admin, TOPIC, [batch])


@contextlib.contextmanager
def phase(broker: SecuredBroker, phases: list[Phase], *, attacked: bool) -> Iterator[Phase]:
    """Measure for a while."""
    reset_peak(broker.pid)
    lines, cpu = broker.log().count("\n"), processor_seconds(broker.pid)
    made = Phase(time.monotonic(), attacked)
    yield made
    made.ended = time.monotonic()
    made.lines = broker.log().count("\n") - lines
    made.cpu = (processor_seconds(broker.pid) - cpu) / (made.ended - made.begun)
    made.peak = memory(broker.pid, "VmHWM")
    phases.append(made)


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(attack: Attack, broker: SecuredBroker, seconds: float, rounds: int) -> list[str]:
    """Make an attack in turns with none. Return its row of the table, and what is out of bounds."""
    target = broker.attackers[0][0] if attack.secured else broker.attackers[-1][0]
    phases: list[Phase] = []
    connects = Connects(broker.neighbour)
    topics = (f"tls-{attack.name}", f"plain-{attack.name}")
    names = ["".join(c if c.isalnum() else "-" for c in topic) for topic in topics]
    with broker.admin.connect() as admin:
        for name in names:
            create_topic(admin, name)
        acls = [
            AclCreation(2, name, 3, user, "*", 2, 3)
            for name, user in zip(names, ("User:neighbour", "User:ANONYMOUS"), strict=True)
        ]
        admin.request(CreateAclsRequest(acls), 3)
    with Neighbour(broker.neighbour, names[0]) as tls, Neighbour(Access(broker.address), names[1]) as plain:
        for _ in range(rounds):
            with phase(broker, phases, attacked=False):
                time.sleep(seconds)
            with Crowd(attack, target) as crowd, phase(broker, phases, attacked=True) as made:
                time.sleep(seconds)
                made.attempts = crowd.attempts
            time.sleep(_SETTLE)
        samples = [tls.finish(), plain.finish()]
    connects.close()
    return row(attack, phases, [*samples, connects.samples], connects.failed)


def row(attack: Attack, phases: Sequence[Phase], samples: Sequence[list[Sample]], failed: int) -> list[str]:
    """Return the cells of an attack's row."""
    cells = [attack.name, f"{sum(one.attempts for one in phases):,}"]
    for found in samples:
        for share in (0.5, 0.99):
            pair = [
                percentile([s for s in found if any(one.has(s) for one in phases if one.attacked is attacked)], share)
                for attacked in (False, True)
            ]
            cells.append(f"{pair[0]:.1f} / {pair[1]:.1f}")
    under = [one for one in phases if one.attacked]
    cells.append(str(failed))
    cells.append(f"{max(one.cpu for one in under):.2f}")
    cells.append(f"{max(one.peak for one in under):.0f}")
    cells.append(f"{max(one.lines / (one.ended - one.begun) for one in under):.0f}")
    return cells


HEAD: Final = (
    "attack", "connections made", "TLS p50, ms", "TLS p99", "plain p50", "plain p99", "to connect p50", "p99",
    "could not", "cores", "peak, MB", "log lines/s",
)  # fmt: skip


def judge(cells: Sequence[str]) -> list[str]:
    """Return what is out of bounds in a row."""
    faults = []
    for at in (3, 5):
        if float(cells[at].split("/")[1]) > P99_MS:
            faults.append(f"{HEAD[at]} is {cells[at]} ms; it should be under {P99_MS:.0f}")
    if int(cells[8]):
        faults.append(f"{cells[8]} connections of a well-behaved client failed")
    if float(cells[10]) > MEMORY_MB:
        faults.append(f"the broker took {cells[10]} MB; it should take less than {MEMORY_MB:.0f}")
    if float(cells[11]) > LINES_A_SECOND:
        faults.append(f"{cells[11]} lines a second in the log; it should be less than {LINES_A_SECOND:.0f}")
    return [f"{cells[0]}: {fault}" for fault in faults]


def report(rows: Sequence[Sequence[str]], counted: Sequence[str], seconds: float, rounds: int) -> list[str]:
    """Return the page, as Markdown."""
    command = ["git", "log", "-1", "--format=%h"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return [
        "# Strangers",
        "",
        "Written by `make strangers`, apart from the notes at its end. Crowds of clients that keep a broker busy "
        "without asking for anything, beside two neighbours that produce, fetch and ask for metadata, on a SASL_SSL "
        "and on a plain listener, and a client that connects and authenticates again and again. Times in ms: without "
        f"the attack / beside it, taken by turns of {seconds:.0f} s, {rounds} of each.",
        "",
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, commit {commit or 'unknown'}, {os.cpu_count()} "
        f"processors with a load of {os.getloadavg()[2]:.1f} on average over 15 minutes. The attackers run on the same "
        "machine.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "| --- |" + " --: |" * (len(HEAD) - 1),
        *("| " + " | ".join(cells) + " |" for cells in rows),
        "",
        "What the broker's log says was counted, a line a minute:",
        "",
        *(f"    {line}" for line in counted),
        "",
        *(f"**Out of bounds: {fault}.**\n" for cells in rows for fault in judge(cells)),
    ]


def main() -> int:
    """Measure, print the page, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.strangers", description="strangers beside clients")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each turn (12)")
    parser.add_argument("--rounds", type=int, default=2, help="of each attack (2)")
    parser.add_argument("--only", default="", help="only attacks whose names have this in them")
    parser.add_argument("--results", type=Path, help="write the page to this file too")
    options = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="pylogd-strangers-") as folder:
        broker = SecuredBroker(Path(folder), SETTINGS)
        try:
            prepare(broker)
            for attack in ATTACKS:
                if options.only in attack.name:
                    rows.append(measure(attack, broker, options.seconds, options.rounds))
                    print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
            log = broker.log()
        finally:
            broker.kill()
    counted = [line.partition("] ")[2] or line for line in log.splitlines() if "In the last 60 s: " in line]
    lines = report(rows, counted, options.seconds, options.rounds)
    print("\n".join(lines))
    if options.results:
        write_page(options.results, lines)
    faults = [fault for cells in rows for fault in judge(cells)]
    if "Traceback" in log:
        faults.append("the log has a traceback")
    for fault in faults:
        print(f"strangers: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
