"""`make conformance`: run other projects' clients and suites against a broker. Writes conformance/RESULTS.md.

Each suite gets a fresh broker; that of clients over secured listeners has users and ACLs. conformance/known.toml lists
known failures with their reasons. A failure that is not listed makes the run fail, and so does a listed one that
passes. What is not available on a machine is reported as missing, never as passed.

    python -m conformance.run [--peer pylogd|kafka] [--only SUITE]

`--peer kafka` runs the same against Apache Kafka (from Maven Central), for the column beside pylogd's.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance import (
    brokers,
    client_contract,
    confluent_python_suite,
    dumped_segments,
    franz_go_suite,
    go_clients,
    java_tools,
    kafka_commands,
    kafka_python_suite,
    kafkajs_client,
    kcat,
    pipelines,
    platformatic_suite,
    pylogd_client,
    record_formats,
    refusals,
    registry_refusals,
    rskafka_suite,
    secure_clients,
    setting_values,
    streams_smoke,
    transactions,
)
from conformance.brokers import say
from conformance.checks import FAILED, HERE, MISSING, PASSED, SKIPPED, Check, Missing
from tests.pages import json_text, write_page


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite: its title, how to run it, its version, and which kinds of brokers it is for.

    run(kind, folder): start a broker of that kind, with its data below the folder, and return what came of each check.
    """

    title: str
    run: Callable[[str, Path], list[Check]]
    version: Callable[[], str]
    kinds: tuple[str, ...] = ("pylogd", "kafka")


def with_default_settings(suite: Callable[[str], list[Check]]) -> Callable[[str, Path], list[Check]]:
    """Return how to run a suite that takes the address of a broker."""

    def run(kind: str, folder: Path) -> list[Check]:
        with brokers.running(kind, folder) as address:
            return suite(address)

    return run


SUITES = {
    "kcat": Suite("kcat (Debian)", with_default_settings(kcat.suite), kcat.version),
    "kafkajs": Suite("kafkajs (npm)", with_default_settings(kafkajs_client.suite), kafkajs_client.version),
    "java": Suite(
        "Apache Kafka's Java client and tools (Maven Central)",
        with_default_settings(java_tools.suite),
        java_tools.version,
    ),
    "go": Suite("Go clients", with_default_settings(go_clients.suite), go_clients.version),
    "franz-go": Suite(
        "franz-go's own tests TestGroupETL and TestTxnEtl",
        with_default_settings(franz_go_suite.suite),
        franz_go_suite.version,
    ),
    "kafka-python": Suite(
        "kafka-python's own integration suite",
        kafka_python_suite.suite,
        kafka_python_suite.version,
    ),
    "rskafka": Suite(
        "rskafka's own integration tests (crates.io), without auto.create.topics.enable",
        rskafka_suite.suite,
        rskafka_suite.version,
    ),
    "platformatic": Suite(
        "@platformatic/kafka's own tests of its clients",
        platformatic_suite.suite,
        platformatic_suite.version,
        kinds=("pylogd",),
    ),
    "confluent-python": Suite(
        "confluent-kafka-python's own integration tests", confluent_python_suite.suite, confluent_python_suite.version
    ),
    "secure": Suite("Clients over SASL_SSL, by each mechanism", secure_clients.suite, secure_clients.version),
    "commands": Suite(
        "Apache Kafka's commands, their answers compared with those of Apache Kafka",
        lambda _, folder: kafka_commands.suite(folder),
        java_tools.version,
        kinds=("pylogd",),
    ),
    "settings": Suite(
        "Settings of topics and brokers, and the values that they take, compared with Apache Kafka",
        lambda _, folder: setting_values.suite(folder),
        java_tools.version,
        kinds=("pylogd",),
    ),
    "transactions": Suite(
        "Transactions and the newer groups: what clients answer, compared with Apache Kafka",
        lambda _, folder: transactions.suite(folder),
        transactions.version,
        kinds=("pylogd",),
    ),
    "refusals": Suite(
        "Refused requests, their error codes compared with those of Apache Kafka",
        lambda _, folder: refusals.suite(folder),
        java_tools.version,
        kinds=("pylogd",),
    ),
    "registry": Suite(
        "Requests that the schema registry refuses, by Confluent's client",
        lambda _, folder: registry_refusals.suite(folder),
        registry_refusals.version,
        kinds=("pylogd",),
    ),
    "streams": Suite("Kafka Streams' smoke test, exactly_once_v2, with kills", streams_smoke.suite, java_tools.version),
    "connect": Suite(
        "Kafka Connect with exactly-once sources, three brokers, with kills",
        pipelines.connect,
        java_tools.connect_version,
        kinds=("pylogd",),
    ),
    "flink": Suite(
        "Apache Flink copies exactly once, three brokers, with kills",
        pipelines.flink,
        java_tools.flink_version,
        kinds=("pylogd",),
    ),
    "dump": Suite("DumpLogSegments on the broker's files", dumped_segments.suite, java_tools.version),
    "records": Suite(
        "Records of internal topics, byte by byte as Apache Kafka's classes write them",
        lambda *_: record_formats.suite(),
        java_tools.version,
        kinds=("pylogd",),
    ),
    "pylogd": Suite("pylogd's own client", with_default_settings(pylogd_client.suite), pylogd_client.version),
    "contract": Suite("pylogd's client: its contract suite", client_contract.suite, client_contract.version),
}
#: suite -> {"version": ..., "kafka": version of Apache Kafka beside it, "checks": [...]}, as in results/*.json
Results = dict[str, Any]
PEERS = {"pylogd": "pylogd", "kafka": "Apache Kafka"}


def run_suite(name: str, peer: str) -> Results:
    """Run a suite against a fresh broker. Return its entry of the results."""
    suite = SUITES[name]
    begun = time.monotonic()
    try:
        version = suite.version()
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            checks = suite.run(peer, Path(folder))
    except Missing as missing:
        version, checks = "", [Check("the whole suite", MISSING, str(missing))]
    for check in checks:
        if check.outcome in (FAILED, MISSING):
            say(f"{name}: {check.name}: {check.outcome}: {check.reason}")
    counts = Counter(check.outcome for check in checks)
    say(f"{name}: {dict(counts)} in {time.monotonic() - begun:.0f} s")
    kafka = java_tools.version() if peer == "kafka" or suite.kinds == ("pylogd",) else ""
    return {"version": version, "kafka": kafka, "checks": [asdict(check) for check in checks]}


class Known:
    """conformance/known.toml: suite -> pattern of check names -> why it does not pass with pylogd."""

    def __init__(self) -> None:
        self._reasons: dict[str, dict[str, str]] = tomllib.loads((HERE / "known.toml").read_text())

    def reason(self, suite: str, name: str) -> str | None:
        """Return why this check is known to fail, or None."""
        for pattern, reason in self._reasons.get(suite, {}).items():
            if fnmatch.fnmatchcase(name, pattern):
                return reason
        return None


def unexpected(results: Results, known: Known) -> list[str]:
    """Return a line for each result that differs from known.toml."""
    faults = []
    for suite, found in results.items():
        for check in found["checks"]:
            reason = known.reason(suite, check["name"])
            if check["outcome"] == FAILED and reason is None:
                faults.append(f"{suite}: {check['name']}: {check['reason']}")
            if check["outcome"] == PASSED and reason is not None:
                faults.append(f"{suite}: {check['name']}: passes now; take it out of known.toml")
    return faults


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _summary(results: dict[str, Results]) -> list[str]:
    kinds = (PASSED, FAILED, SKIPPED, MISSING)
    titles = [f"{PEERS[peer]}: {kind}" for peer in results for kind in kinds]
    heads = ["suite", "version", "Apache Kafka", *titles]
    lines = ["| " + " | ".join(heads) + " |", "| --- | --- | --- |" + " --: |" * len(titles)]
    for name, suite in SUITES.items():
        version = next((str(found[name]["version"]) for found in results.values() if name in found), "")
        cells = [
            next((str(found[name]["kafka"]) for found in results.values() if found.get(name, {}).get("kafka")), "")
        ]
        for found in results.values():
            counts = Counter(check["outcome"] for check in found.get(name, {"checks": []})["checks"])
            cells += [str(counts[kind]) if name in found else "not run" for kind in kinds]
        lines.append(f"| {suite.title} | {version} | " + " | ".join(cells) + " |")
    return lines


def _details(name: str, results: dict[str, Results], known: Known) -> list[str]:
    own = results.get("pylogd", {}).get(name)
    if own is None:
        return []
    other = {check["name"]: check["outcome"] for check in results.get("kafka", {}).get(name, {"checks": []})["checks"]}
    lines = ["", f"## {SUITES[name].title}", "", "| test | pylogd | Apache Kafka | why |", "| --- | --- | --- | --- |"]
    for check in own["checks"]:
        why = check["reason"] if check["outcome"] != PASSED else ""
        if check["outcome"] == FAILED:
            why = known.reason(name, check["name"]) or f"NOT EXPLAINED: {why}"
        beside = other.get(check["name"], "not run")
        mark = check["outcome"] if check["outcome"] == PASSED else f"**{check['outcome']}**"
        lines.append(f"| {_cell(check['name'])} | {mark} | {beside} | {_cell(why)} |")
    return lines


def table(results: dict[str, Results], known: Known) -> str:
    """Return the text of RESULTS.md."""
    lines = [
        "# Conformance",
        "",
        "Written by `make conformance`. Most suites are other projects' clients, unmodified; those of refusals, "
        "of records and the last two are this project's own. Each is run against one fresh broker, with its default "
        "settings unless its title says otherwise. The columns of Apache Kafka are the same run against the original "
        "(`python -m conformance.run --peer kafka`), whose version is in the third column; some suites compare both in "
        "one run. Skipped is what a client or a suite does not have; it counts neither as passed nor as failed.",
        "",
        *_summary(results),
    ]
    for name in SUITES:
        lines += _details(name, results, known)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the suites, save the results, and write the table. Return 1 if a result differs from known.toml."""
    parser = argparse.ArgumentParser(description="run other projects' clients against a broker")
    parser.add_argument("--peer", choices=PEERS, default="pylogd", help="which broker (pylogd)")
    parser.add_argument("--only", choices=SUITES, action="append", help="only this suite; repeatable")
    options = parser.parse_args()
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    ran = {name: run_suite(name, options.peer) for name in options.only or SUITES if options.peer in SUITES[name].kinds}
    kept = folder / f"{options.peer}.json"
    found: Results = json.loads(kept.read_text()) if kept.exists() else {}
    found.update(ran)
    text = json_text({name: found[name] for name in SUITES if name in found})
    kept.write_text(text.replace(f"{HERE.parent}/", ""))  # keeps paths of this machine out of the results

    everything = {
        peer: json.loads((folder / f"{peer}.json").read_text()) for peer in PEERS if (folder / f"{peer}.json").exists()
    }
    known = Known()
    write_page(HERE / "RESULTS.md", [table(everything, known)])
    faults = unexpected(ran, known) if options.peer == "pylogd" else []
    for fault in faults:
        say(f"not as in known.toml: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
