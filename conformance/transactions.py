"""Transactions and the newer groups: each client answers one script on pylogd and on Apache Kafka. Compare both.

`transacting/scenarios.py` and `transacting/groups.py` are the script; `transacting/driver.py` says what a client's
program has to do. `transacting/requests.py` are requests that no client sends. A check is one scenario with one client:
it passes if every answer is the same with both brokers. What both answered is kept in results/transactions.jsonl.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from conformance import brokers, go_clients, java_tools
from conformance.brokers import say
from conformance.checks import FAILED, HERE, MISSING, PASSED, SKIPPED, Check, Missing
from conformance.transacting import groups, requests, scenarios
from conformance.transacting.driver import Driver, Lacks
from conformance.transacting.stage import Stage

_SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "1",
}
#: What Apache Kafka needs beside them. It assigns once a second at most, in another thread (KIP-1263); pylogd at once.
_BOUNDS: Final = {
    "group.consumer.assignor.offload.enable": "false",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.min.session.timeout.ms": "6000",
}
_ANSWERS: Final = HERE / "results" / "transactions.jsonl"
Transcript = list[tuple[str, Any]]
#: client -> scenario -> transcript, or None if the client does not have it
Answers = dict[str, dict[str, Transcript | None]]


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", f"conformance.transacting.{module}"]


#: How each client's program is started; the address is the last argument.
PROGRAMS: Final[Mapping[str, Callable[[], list[str]]]] = {
    "librdkafka (confluent-kafka)": lambda: _python("librdkafka"),
    "kafka-python": lambda: _python("kafka_python"),
    "Java": lambda: [*java_tools.java(), str(HERE / "java" / "Transacting.java")],
    "franz-go": lambda: [go_clients.build(), "--transacting"],
}
_REQUESTS: Final = "requests"


def version() -> str:
    """Return the versions of all clients."""
    return (
        f"librdkafka {confluent_kafka.libversion()[0]}, kafka-python {installed('kafka-python')}, "
        f"Java {java_tools.version()}, {go_clients.version().partition(', ')[2]}"
    )


def title(scenario: Callable[..., object]) -> str:
    """Return the name of a scenario in words."""
    return scenario.__name__.replace("_", " ")


def suite(folder: Path, only: str = "") -> list[Check]:
    """Compare. only: a word that the names of the checks to run have."""
    programs: dict[str, list[str]] = {}
    found = []
    for client, command in PROGRAMS.items():
        try:
            programs[client] = command()
        except Missing as missing:
            found.append(Check(f"{client}, all", MISSING, str(missing)))
    answers: dict[str, Answers] = {}
    for kind in ("kafka", "pylogd"):
        at = folder / kind
        at.mkdir()
        settings = _SETTINGS | (_BOUNDS if kind == "kafka" else {})
        with brokers.running(kind, at, settings) as address:
            answers[kind] = _answers(programs, address, at, only)
    _keep(answers)
    return found + [
        _compared(f"{client}, {name}", transcript, answers["pylogd"][client][name])
        for client, transcripts in answers["kafka"].items()
        for name, transcript in transcripts.items()
    ]


def _keep(answers: Mapping[str, Answers]) -> None:
    """Write down what was answered, beside what other runs kept of other clients and scenarios: a line for each."""
    lines = _ANSWERS.read_text().splitlines() if _ANSWERS.exists() else []
    kept = {tuple(one[:3]): one[3] for one in map(json.loads, lines)}
    for kind, clients in answers.items():
        for client, transcripts in clients.items():
            kept.update({(kind, client, scenario): transcript for scenario, transcript in transcripts.items()})
    _ANSWERS.write_text("".join(json.dumps([*key, transcript]) + "\n" for key, transcript in sorted(kept.items())))


def _answers(programs: Mapping[str, list[str]], address: str, folder: Path, only: str) -> Answers:
    """Run all scenarios with all clients against one broker."""
    found: Answers = {_REQUESTS: {}}
    for scenario in requests.SCENARIOS:
        if only in f"{_REQUESTS}, {title(scenario)}":
            wire = requests.Wire(address, scenario.__name__.replace("_", "-"))
            scenario(wire)
            wire.close()
            found[_REQUESTS][title(scenario)] = wire.transcript
    for client, command in programs.items():
        found[client] = _transcripts(client, [*command, address], address, folder, only)
    return found


def _transcripts(
    client: str, command: list[str], address: str, folder: Path, only: str
) -> dict[str, Transcript | None]:
    """Run all scenarios with one client. Its program is started anew if it hangs or ends."""
    found: dict[str, Transcript | None] = {}
    log = folder / f"{client}.log"
    driver = Driver(command, log)
    try:
        for scenario in (*scenarios.SCENARIOS, *groups.SCENARIOS):
            if only in f"{client}, {title(scenario)}":
                if driver.broken:
                    driver.close()
                    driver = Driver(command, log)
                name = f"{client.partition(' ')[0]}-{scenario.__name__}".replace("_", "-").lower()
                found[title(scenario)] = _play(scenario, Stage(driver, address, name), f"{client}, {title(scenario)}")
    finally:
        driver.close()
    return found


def _play(scenario: Callable[[Stage], None], stage: Stage, name: str) -> Transcript | None:
    """Run one scenario. If it could not go on, that is the end of its transcript."""
    begun = time.monotonic()
    try:
        scenario(stage)
    except Lacks:
        return None
    except Exception as error:
        stage.keep("stopped by", f"{type(error).__name__}: {str(error).splitlines()[0][:300]}")
    finally:
        stage.close()
    say(f"{name}: {time.monotonic() - begun:.1f} s")
    return stage.transcript


def _compared(name: str, kafka: Transcript | None, pylogd: Transcript | None) -> Check:
    if kafka is None or pylogd is None:
        return Check(name, SKIPPED, "the client does not have it")
    differences = [
        f"{asked}: pylogd answers {ours}, Apache Kafka {theirs}"
        for (asked, theirs), (_, ours) in zip(kafka, pylogd, strict=False)
        if json.dumps(theirs, sort_keys=True) != json.dumps(ours, sort_keys=True)
    ]
    if len(kafka) != len(pylogd):
        differences.append(f"pylogd gives {len(pylogd)} answers, Apache Kafka {len(kafka)}")
    return Check(name, FAILED if differences else PASSED, "; ".join(differences))


def main() -> int:
    """Compare the scenarios whose names have a word, and print each difference."""
    with tempfile.TemporaryDirectory(prefix="transactions-") as folder:
        found = suite(Path(folder), sys.argv[1] if len(sys.argv) > 1 else "")
    for check in found:
        print(check.outcome, check.name, check.reason)
    return any(check.outcome == FAILED for check in found)


if __name__ == "__main__":
    sys.exit(main())
