"""What a decision of the authorizer costs, and what it adds to a request: processor time, not elapsed time.

    python -m bench.authorization [--acls 10000]

Prints nanoseconds for decisions that are known and for those that are made anew, and microseconds for a Produce and a
Fetch request with and without an authorizer, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pylogd.security.acls import AclEntry, PatternType, Permission, ResourcePattern
from pylogd.security.authorizer import AclOperation, ResourceType
from pylogd.security.principal import ANONYMOUS, Principal
from pylogd.security.rules import AclAuthorizer, AclIndex
from tests.hotpath import TOPIC, HotPath

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


def decisions(acls: int) -> None:
    """Print what decisions cost."""
    authorizer = make_authorizer(acls)
    host, read, topic = "10.1.2.3", AclOperation.READ, ResourceType.TOPIC

    def known() -> bool:
        return authorizer.authorize(ANONYMOUS, host, read, topic, TOPIC)

    def anew() -> bool:
        authorizer.changed()
        return authorizer.authorize(ANONYMOUS, host, read, topic, TOPIC)

    print(f"{acls:,} ACLs")
    print(f"  a decision that is known    {seconds_each(known) * 1e9:8.0f} ns")
    print(f"  a decision that is made     {seconds_each(anew, 2000) * 1e9:8.0f} ns")


def requests(acls: int) -> None:
    """Print what requests cost without and with an authorizer, in turns."""
    with tempfile.TemporaryDirectory() as directory:
        path = HotPath(Path(directory))
        one = path.produce_frame(1, 200)
        for _ in range(300):
            path.ask(one)
        cases = {"produce, a batch of 1": one, "fetch, 4 KB": path.fetch_frame(0, 4096)}
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
            print(f"  {name:26}  {off * 1e6:6.2f} us without, {on * 1e6:6.2f} us with, median {middle * 1e6:+.2f} us")
        path.parts.authorizer = None
        path.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acls", type=int, default=10_000)
    arguments = parser.parse_args()
    decisions(arguments.acls)
    requests(arguments.acls)
