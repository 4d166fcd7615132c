"""What a decision of the authorizer costs, and what it adds to a request: processor time, not elapsed time.

    python -m bench.authorization [--acls 10000] [--write]

Prints nanoseconds for decisions that are known and for those that are made anew, and microseconds for a Produce and a
Fetch request with and without an authorizer, in turns. `--write` writes them to AUTHORIZATION.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.machine import machine
from pylogd.security.acls import AclEntry, PatternType, Permission, ResourcePattern
from pylogd.security.authorizer import AclOperation, ResourceType
from pylogd.security.principal import ANONYMOUS, Principal
from pylogd.security.rules import AclAuthorizer, AclIndex
from tests.hotpath import TOPIC, HotPath
from tests.pages import write_page

REPORT = Path(__file__).with_name("AUTHORIZATION.md")
_ROUNDS = 15
_CALLS = 20_000


def seconds_each(work: Callable[[], object], calls: int = _CALLS) -> float:
    """Return the processor time of one call, the least of several rounds."""
    found = []
    for _ in range(_ROUNDS):
        begin = time.process_time()
        for _ in range(calls):
            work()
        found.append((time.process_time() - begin) / calls)
    return min(found)


def make_authorizer(acls: int) -> AclAuthorizer:
    """Return an authorizer with so many ACLs: a topic, a prefix and a group for each user, and this client's topic."""
    index = AclIndex()
    for number in range(acls // 3):
        user = Principal("User", f"user{number}")
        entry = AclEntry(user, "*", AclOperation.READ, Permission.ALLOW)
        index.put(ResourcePattern(ResourceType.TOPIC, f"topic{number}", PatternType.LITERAL), [entry])
        index.put(ResourcePattern(ResourceType.TOPIC, f"team{number}-", PatternType.PREFIXED), [entry])
        index.put(ResourcePattern(ResourceType.GROUP, f"group{number}", PatternType.LITERAL), [entry])
    mine = [
        AclEntry(ANONYMOUS, "*", operation, Permission.ALLOW) for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    index.put(ResourcePattern(ResourceType.TOPIC, TOPIC, PatternType.LITERAL), mine)
    return AclAuthorizer(index)


def decisions(acls: int) -> list[tuple[str, str]]:
    """Return what decisions cost, as rows of a table."""
    authorizer = make_authorizer(acls)
    host, read, topic = "10.1.2.3", AclOperation.READ, ResourceType.TOPIC

    def known() -> bool:
        return authorizer.authorize(ANONYMOUS, host, read, topic, TOPIC)

    def anew() -> bool:
        authorizer.changed()
        return authorizer.authorize(ANONYMOUS, host, read, topic, TOPIC)

    return [
        (f"a decision that is known, {acls:,} ACLs", f"{seconds_each(known) * 1e9:.0f} ns"),
        (f"a decision that is made, {acls:,} ACLs", f"{seconds_each(anew, 2000) * 1e9:.0f} ns"),
    ]


def requests(acls: int) -> list[tuple[str, str]]:
    """Return what requests cost without and with an authorizer, in turns, as rows of a table."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        path = HotPath(Path(directory))
        one = path.produce_frame(1, 200)
        for _ in range(300):
            path.ask(one)
        cases = {"Produce, a batch of 1": one, "Fetch, 4 KB": path.fetch_frame(0, 4096)}
        authorizer = make_authorizer(acls)
        for name, frame in cases.items():
            times: dict[bool, list[float]] = {False: [], True: []}
            for number in range(40):
                with_one = bool(number % 2)
                path.parts.authorizer = authorizer if with_one else None
                begin = time.process_time()
                for _ in range(1000):
                    path.ask(frame)
                times[with_one].append((time.process_time() - begin) / 1000)
            off, on = min(times[False]), min(times[True])
            middle = statistics.median(times[True]) - statistics.median(times[False])
            rows.append(
                (
                    name,
                    f"{off * 1e6:.2f} us without, {on * 1e6:.2f} us with an authorizer; medians {middle * 1e6:+.2f} us",
                )
            )
        path.parts.authorizer = None
        path.close()
    return rows


def report(rows: list[tuple[str, str]]) -> str:
    """Return the page with the results."""
    where = machine("")
    lines = [
        "# What authorization costs",
        "",
        "By `python -m bench.authorization --write`: processor time, the least of 15 rounds of 20,000 decisions, and "
        "of 20 rounds of 1,000 requests each with and without an authorizer, in turns. A known decision is what the "
        "hot path asks for; the target is a microsecond.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {what} | {cost} |" for what, cost in rows),
        "",
        f"Measured on {where['cores']} cores ({where['processor']}), {where['memory']}, {where['system']}, "
        f"Python {where['python']}, at commit {where['commit']}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acls", type=int, default=10_000)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    arguments = parser.parse_args()
    found = decisions(arguments.acls) + requests(arguments.acls)
    for what, cost in found:
        print(f"{what:45} {cost}")
    if arguments.write:
        write_page(REPORT, [report(found)])
