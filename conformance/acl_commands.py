"""Compare what Kafka's own AclCommand says of pylogd with what it says of Apache Kafka, command by command.

    python -m conformance.acl_commands

Both brokers decide by ACLs, and who connects is a super user. The lines of each answer have to be the same; their order
may differ.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from conformance import checks, java_tools, kafka_peer
from pylogd.local.broker import BrokerProcess

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
COMMANDS = (
    "--list",
    "--add --allow-principal User:alice --producer --topic orders --transactional-id tx",
    "--add --allow-principal User:alice --producer --idempotent --topic orders",
    "--add --allow-principal User:bob --consumer --topic orders --group billing",
    "--add --allow-principal User:carol --operation Read --topic logs- --resource-pattern-type prefixed",
    "--add --deny-principal User:* --deny-host 10.9.0.1 --operation Write --operation Delete --topic *",
    "--add --allow-principal User:CN=a,O=b --operation All --cluster",
    "--add --allow-principal User:dave --operation CreateTokens --user-principal User:erin",
    "--add --allow-principal User:dave --operation Describe --delegation-token abc",
    "--add --allow-principal User:dave --operation Write --group g",
    "--add --allow-principal dave --operation Read --group g",
    "--list",
    "--list --topic orders",
    "--list --topic logs-1 --resource-pattern-type match",
    "--list --topic logs- --resource-pattern-type prefixed",
    "--list --topic * --resource-pattern-type any",
    "--list --principal User:bob",
    "--list --group billing --cluster",
    "--list --topic nothing",
    "--remove --force --allow-principal User:bob --operation Read --topic orders",
    "--remove --force --allow-principal User:nobody --operation Read --topic orders",
    "--list --topic orders",
    "--remove --force --topic orders",
    "--remove --force --group billing --cluster",
    "--remove --force --topic logs- --resource-pattern-type prefixed",
    "--list",
)


def answers(address: str) -> list[list[str]]:
    """Return the sorted lines that each command prints, without what differs from run to run."""
    java = java_tools.java()
    found = []
    for command in COMMANDS:
        words = [*java, f"{java_tools.TOOLS}AclCommand", "--bootstrap-server", address, *command.split()]
        done = checks.run(words, seconds=60)
        lines = (done.stdout + done.stderr).replace(address, "BROKER").splitlines()
        found.append(sorted(line.strip() for line in lines if line.strip() and "SLF4J" not in line))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def main() -> int:
    """Compare, and print what differs; return how many answers do."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
        broker = BrokerProcess(folder / "data", folder / "log", settings)
        try:
            ours = answers(broker.address)
        finally:
            broker.stop()
        kafka = folder / "kafka"
        kafka.mkdir()
        properties = "".join(f"{key}={value}\n" for key, value in settings.items())
        with kafka_peer.running(kafka, properties) as address:
            theirs = answers(address)
    different = 0
    for command, mine, other in zip(COMMANDS, ours, theirs, strict=True):
        if mine != other:
            different += 1
            print(f"AclCommand {command}\n  pylogd: {mine}\n  Kafka:  {other}")
    print(f"{len(COMMANDS) - different} of {len(COMMANDS)} answers are those of Apache Kafka {java_tools.version()}")
    return different


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
