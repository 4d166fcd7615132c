"""Measure clients beside crowds of strangers: `python -m tests.strangers [--results FILE]`.

A broker for each attack, with a plain and a SASL_SSL listener. Two neighbours, one on each, produce, fetch and ask for
metadata; others connect and authenticate again and again, one of them 100 ms away, make groups and producers, push
metrics, look up time stamps, go on with a fetch session, and ask for `/healthz`. Each attack is made in turn with a
time without one, so that whatever else the machine does is in both. Judged are the neighbours' waiting times beside the
attacks, whether all were served, the broker's memory, and the length of its log. `web` has attacks on the schema
registry and on the console.

Exit status: 0 if everything is within bounds, 1 if something is not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pylogd.base.ports import free_ports
from pylogd.credentials.passwords import add_user
from pylogd.local.broker import HOST
from pylogd.wire.compression import CompressionType
from pylogd.wire.messages.create_acls import AclCreation, CreateAclsRequest
from pylogd.wire.records import NewRecord, encode_batch
from tests.extreme.access import Access, password_of
from tests.extreme.brokers import USERS, SecuredBroker
from tests.extreme.neighbour import TOPIC as NEIGHBOURS
from tests.extreme.neighbour import Neighbour, Sample
from tests.extreme.state import STAMP, TOPIC
from tests.pages import commit_id, write_page
from tests.rawclient import create_topic, memory, produce, reset_peak
from tests.strangers import web
from tests.strangers.crowds import ATTACKS, SEARCHED, Attack, Crowd
from tests.strangers.far import FarAway
from tests.strangers.probes import GroupMember, Probe, connects, health, pairs
from tests.strangers.users import works_of

P99_MS: Final = 50.0
#: Beside attackers that ask for as much work as they can: connections take turns, so this is a few of their turns.
COSTLY_P99_MS: Final = 250.0
MEMORY_MB: Final = 300.0
LINES_A_SECOND: Final = 50.0
_SLOWER: Final = 2.0
_PLAIN: Final = "neighbour-plain"
_RECORDS: Final = 64  # of 1 MB: what is fetched and not read
_SEARCHED_RECORDS: Final = 5000
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


def prepare(broker: SecuredBroker) -> None:
    """Make topics, permissions and what is fetched."""
    with broker.admin.connect() as admin:
        broker.prepare(admin)
        create_topic(admin, _PLAIN)
        create_topic(admin, TOPIC)
        create_topic(admin, SEARCHED)
        acls = [AclCreation(2, name, 3, "User:ANONYMOUS", "*", 2, 3) for name in (_PLAIN, TOPIC, SEARCHED)]
        acls.append(AclCreation(2, SEARCHED, 3, "User:neighbour", "*", 2, 3))
        acls += [
            AclCreation(kind, "*", 3, user, "*", 2, 3)
            for kind in (3, 5) for user in ("User:ANONYMOUS", "User:neighbour")  # groups, transactional ids
        ]  # fmt: skip
        assert not any(one.error_code for one in admin.request(CreateAclsRequest(acls), 3).results)
        batch = encode_batch([NewRecord(None, bytes(1_000_000), STAMP)])
        for _ in range(_RECORDS):
            produce(admin, TOPIC, [batch])
        records = [NewRecord(None, b"v" * 100, STAMP + number // 100) for number in range(_SEARCHED_RECORDS)]
        produce(admin, SEARCHED, [encode_batch(records, compression=CompressionType.GZIP)])


def settings_with_users(folder: Path, pages: str) -> dict[str, str]:
    """Return the settings of a broker whose passwords are hashed: to check one takes 50 ms. pages: see `measure`."""
    users = folder / "users"
    for name in USERS:
        add_user(users, name, password_of(name))
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    return {
        **SETTINGS, "metrics.listener": pages, "listener.name.clients.plain.sasl.jaas.config": f'{module} unused="";',
        "listener.name.clients.plain.sasl.plain.users.file": str(users),
    }  # fmt: skip


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


def measure(attack: Attack, seconds: float, rounds: int) -> tuple[list[str], str]:
    """Make an attack on a new broker, in turns with none. Return its row of the table, and the broker's log."""
    with tempfile.TemporaryDirectory(prefix="pylogd-strangers-") as folder:
        pages = f"{HOST}:{free_ports(1)[0]}"
        broker = SecuredBroker(Path(folder), settings_with_users(Path(folder), pages))
        try:
            prepare(broker)
            target = broker.attackers[0][0] if attack.secured else broker.attackers[-1][0]
            crowds = [Crowd(attack, Access(pages) if attack.pages else target) for _ in range(rounds)]
            with FarAway(broker.neighbour.address) as far:
                cells = _measure(attack, crowds, broker, pages, far.address, seconds)
            return cells, broker.log()
        finally:
            broker.kill()


def _measure(
    attack: Attack, crowds: Sequence[Crowd], broker: SecuredBroker, pages: str, far: str, seconds: float
) -> list[str]:
    phases: list[Phase] = []
    members = GroupMember(broker.neighbour)
    members.prepare()
    with Neighbour(broker.neighbour, NEIGHBOURS) as tls, Neighbour(Access(broker.address), _PLAIN) as plain:
        probes = [
            Probe("to connect", connects(broker.neighbour)),
            Probe("to connect, 100 ms away", connects(replace(broker.neighbour, address=far))),
            Probe("groups", members.work),
            Probe("/healthz", health(pages)),
            *(Probe(name, work) for name, work in works_of(broker.neighbour).items()),
        ]
        for crowd in crowds:
            with phase(broker, phases, attacked=False):
                time.sleep(seconds)
            with crowd, phase(broker, phases, attacked=True) as made:
                time.sleep(seconds)
                made.attempts = crowd.attempts
            time.sleep(_SETTLE)
        samples = [tls.finish(), plain.finish()]
    for one in probes:
        one.close()
    failures = [failure for one in probes for failure in one.failures]
    for failure in failures[:5]:
        print(f"strangers: {attack.name}: {failure}", file=sys.stderr)
    return row(attack, phases, [*samples, *(one.samples for one in probes[:3])], len(failures))


def row(attack: Attack, phases: Sequence[Phase], samples: Sequence[list[Sample]], failed: int) -> list[str]:
    """Return the cells of an attack's row."""
    cells = [attack.name, f"{sum(one.attempts for one in phases):,}"]
    for found in samples:
        cells += pairs(*(
            [sample for sample in found if any(one.has(sample) for one in phases if one.attacked is attacked)]
            for attacked in (False, True)
        ))  # fmt: skip
    under = [one for one in phases if one.attacked]
    cells.append(str(failed))
    cells.append(f"{max(one.cpu for one in under):.2f}")
    cells.append(f"{max(one.peak for one in under):.0f}")
    cells.append(f"{max(one.lines / (one.ended - one.begun) for one in under):.0f}")
    return cells


HEAD: Final = (
    "attack", "connections made", "TLS p50, ms", "TLS p99", "plain p50", "plain p99", "to connect p50", "p99",
    "100 ms away p50", "p99", "groups p50", "p99", "could not", "cores", "peak, MB", "log lines/s",
)  # fmt: skip
_FAILED, _PEAK, _LINES = HEAD.index("could not"), HEAD.index("peak, MB"), HEAD.index("log lines/s")
_COSTLY: Final = frozenset(attack.name for attack in ATTACKS if attack.costly)


def judge(cells: Sequence[str]) -> list[str]:
    """Return what is out of bounds in a row. What takes long without the attack may take twice as long beside it."""
    faults = []
    for at in (3, 5):
        without, beside = map(float, cells[at].split("/"))
        most_ms = max(COSTLY_P99_MS if cells[0] in _COSTLY else P99_MS, _SLOWER * without)
        if beside > most_ms:
            faults.append(f"{HEAD[at]} is {cells[at]} ms; it should be under {most_ms:.0f}")
    if int(cells[_FAILED]):
        faults.append(f"{cells[_FAILED]} requests or health checks of well-behaved clients failed")
    if float(cells[_PEAK]) > MEMORY_MB:
        faults.append(f"the broker took {cells[_PEAK]} MB; it should take less than {MEMORY_MB:.0f}")
    if float(cells[_LINES]) > LINES_A_SECOND:
        faults.append(f"{cells[_LINES]} lines a second in the log; it should be less than {LINES_A_SECOND:.0f}")
    return [f"{cells[0]}: {fault}" for fault in faults]


def report(
    rows: Sequence[Sequence[str]], served: Sequence[Sequence[str]], counted: Sequence[str], seconds: float, rounds: int
) -> list[str]:
    """Return the page, as Markdown. served: the rows of the attacks on the registry and on the console."""
    return [
        "# Strangers",
        "",
        "Written by `make strangers`, apart from the notes at its end. Crowds of clients that keep a broker busy "
        "without asking for anything, beside two neighbours that produce, fetch and ask for metadata, on a SASL_SSL "
        "and on a plain listener, two clients that connect and authenticate again and again, one of them 100 ms away, "
        "one that makes groups of both protocols, commits offsets and opens producers, "
        "users who push metrics, look up time stamps and go on with a fetch session, "
        "and a probe of `/healthz`. Times in ms: without "
        f"the attack / beside it, taken by turns of {seconds:.0f} s, {rounds} of each. Each attack has a broker of its "
        "own.",
        "",
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, commit {commit_id()}, {os.cpu_count()} "
        f"processors with a load of {os.getloadavg()[2]:.1f} on average over 15 minutes. The attackers run on the same "
        "machine.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "| --- |" + " --: |" * (len(HEAD) - 1),
        *("| " + " | ".join(cells) + " |" for cells in rows),
        "",
        *web.report(served),
        "What the brokers' logs say was counted, a line a minute:",
        "",
        *(f"    {line}" for line in counted),
        "",
        *(f"**Out of bounds: {fault}.**\n" for cells in rows for fault in judge(cells)),
        *(f"**Out of bounds: {fault}.**\n" for cells in served for fault in web.judge(cells)),
    ]


def main() -> int:
    """Measure, print the page, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.strangers", description="strangers beside clients")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each turn (12)")
    parser.add_argument("--rounds", type=int, default=1, help="of each attack (1)")
    parser.add_argument("--only", default="", help="only attacks whose names have this in them")
    parser.add_argument("--results", type=Path, help="write the page to this file too")
    options = parser.parse_args()
    allow_many_files()
    rows: list[list[str]] = []
    logs = ""
    for attack in ATTACKS:
        if options.only in attack.name:
            cells, log = measure(attack, options.seconds, options.rounds)
            rows.append(cells)
            logs += log
            print(" | ".join(cells), file=sys.stderr, flush=True)
    served = web.measure_all(options.only, options.seconds, options.rounds)
    counted = [line.partition("] ")[2] or line for line in logs.splitlines() if "In the last 60 s: " in line]
    lines = report(rows, served, counted, options.seconds, options.rounds)
    print("\n".join(lines))
    if options.results:
        write_page(options.results, lines)
    faults = [fault for cells in rows for fault in judge(cells)]
    faults += [fault for cells in served for fault in web.judge(cells)]
    if "Traceback" in logs:
        faults.append("a broker's log has a traceback")
    for fault in faults:
        print(f"strangers: {fault}", file=sys.stderr)
    return 1 if faults else 0


def allow_many_files() -> None:
    """Raise the number of files that this process may have open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
