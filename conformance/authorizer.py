"""Compare decisions with those of Apache Kafka's own StandardAuthorizer, on random sets of ACLs.

    python -m conformance.authorizer [--sets 20000]

The sets are those of tests/property/test_acl_rules.py, without networks, which Kafka does not know. Both authorizers
get the same ACLs and questions; every answer has to be the same.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from conformance import java_tools
from pylogd.broker.security.acls import AclBinding, AclEntry, Permission
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.broker.security.rules import AclAuthorizer, AclIndex
from pylogd.credentials.principal import Principal
from tests.property import test_acl_rules as sets

ORACLE = Path(__file__).parent / "java" / "AclOracle.java"
QUESTIONS = 20
SETS_AT_ONCE = 5000
_HOSTS = ("*", "10.0.0.1", "10.0.0.2", "localhost")
_USERS = [user for user in sets.USERS if user.name != "*"]  # with which Kafka's raises an exception
#: Kafka's does not apply ACLs for all resources (`*`) to a name that begins with an asterisk; ours does.
_NAMES = [*(name for name in sets.NAMES if not name.startswith("*")), "zzz"]
_CLIENTS = ("10.0.0.1", "10.0.0.2", "192.168.7.7")


class Question(NamedTuple):
    """A question, and its lines for the oracle. name: None for any resource of the type."""

    principal: Principal
    host: str
    operation: AclOperation
    resource: ResourceType
    name: str | None

    def line(self) -> str:
        """Return the line that asks Kafka."""
        kind, user = self.principal
        verb = "any" if self.name is None else "ask"
        words = [verb, kind, user, self.host, self.operation.name, self.resource.name]
        return "\t".join(words if self.name is None else [*words, self.name])

    def ask(self, authorizer: AclAuthorizer) -> bool:
        """Return our answer."""
        principal, host, operation, resource, name = self
        if name is None:
            return authorizer.authorize_any(principal, host, operation, resource)
        return authorizer.authorize(principal, host, operation, resource, name)


def random_acls(random: Random) -> list[AclBinding]:
    """Return a set of ACLs that Kafka can have too."""
    found = []
    for _ in range(random.randrange(9)):
        pattern, entry = sets.random_binding(random)
        host = random.choice(_HOSTS)
        found.append(AclBinding(pattern, AclEntry(entry.principal, host, entry.operation, entry.permission)))
    return found


def acl_line(acl: AclBinding) -> str:
    """Return the line that tells Kafka of an ACL."""
    pattern, entry = acl
    permission: Permission = entry.permission
    words = [pattern.resource.name, pattern.name, pattern.pattern.name, str(entry.principal), entry.host]
    return "\t".join(["acl", *words, entry.operation.name, permission.name])


def questions(random: Random) -> Iterator[Question]:
    """Yield questions about a set."""
    for number in range(QUESTIONS):
        yield Question(
            random.choice(_USERS), random.choice(_CLIENTS), random.choice(sets.OPERATIONS[1:]),
            random.choice(sets.KINDS), random.choice(_NAMES) if number % 5 else None,
        )  # fmt: skip


def compare(first: int, count: int) -> int:
    """Compare so many sets, from a number on; return how many answers were compared. Raises AssertionError."""
    lines: list[str] = []
    ours: list[tuple[Question, bool, int]] = []
    for number in range(first, first + count):
        random = Random(number)
        everyone = random.random() < 0.3
        acls = random_acls(random)
        authorizer = AclAuthorizer(AclIndex(), [Principal("User", "root")], everyone)
        sets.fill(authorizer.index, acls)
        lines += [f"set\t{int(everyone)}", *map(acl_line, sorted(set(acls)))]
        for question in questions(random):
            lines.append(question.line())
            ours.append((question, question.ask(authorizer), number))
    command = [*java_tools.java(), str(ORACLE)]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    answers = done.stdout.strip().splitlines()[-1:] or [""]
    assert len(answers[0]) == len(ours), done.stderr[-2000:]
    for (question, answer, number), theirs in zip(ours, answers[0], strict=True):
        assert answer == (theirs == "1"), f"set {number}: {question}: Kafka says {theirs}"
    return len(ours)


def main() -> None:
    """Compare, and print how much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=20_000)
    arguments = parser.parse_args()
    compared = 0
    for first in range(0, arguments.sets, SETS_AT_ONCE):
        compared += compare(first, min(SETS_AT_ONCE, arguments.sets - first))
        print(f"{compared:,} answers are those of Apache Kafka {java_tools.version()}", file=sys.stderr)


if __name__ == "__main__":
    main()
