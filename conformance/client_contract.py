"""The contract suite of pylogd's client, on its three faces, against pylogd or Apache Kafka."""

from __future__ import annotations

import sys
from pathlib import Path

from conformance import brokers, checks
from conformance.checks import FAILED, HERE, Check
from pylogd import __version__

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
#: So that members of the newer group protocol notice soon what happens. Kafka has a bound of its own for it.
HEARTBEATS = {"group.consumer.heartbeat.interval.ms": "200"}
KAFKA_HEARTBEATS = {**HEARTBEATS, "group.consumer.min.heartbeat.interval.ms": "200"}
_SUITE = "tests/contract/clients"


def version() -> str:
    """The checkout's."""
    return __version__


def suite(kind: str, folder: Path) -> list[Check]:
    """Each test, on each face, is a check. The broker has an authorizer, since some tests are of ACLs."""
    results = folder / "results.xml"
    settings = {**AUTHORIZER, **(KAFKA_HEARTBEATS if kind == "kafka" else HEARTBEATS)}
    with brokers.running(kind, folder, settings) as address:
        command = [sys.executable, "-m", "pytest", _SUITE, "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        done = checks.run(command, seconds=1800, folder=HERE.parent, environment={"PYLOGD_TEST_BOOTSTRAP": address})
    if not results.exists():
        return [Check("runs to its end", FAILED, checks.last_line(done.stderr or done.stdout))]
    return checks.from_junit(results, lambda _, test: test.removeprefix("test_").replace("_", " "))
