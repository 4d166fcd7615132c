"""Compare what Kafka's own commands say of pylogd with what they say of Apache Kafka, one command after the other.

AclCommand (`kafka-acls`), ConfigCommand (`kafka-configs`: settings of topics, brokers and groups, quotas of users,
client ids and addresses, users of SCRAM) and DelegationTokenCommand (`kafka-delegation-tokens`), unmodified. Quotas
have no command of their own: KIP-546 proposed `kafka-client-quotas`, but Apache Kafka never had it.

The lines of each answer and the exit code have to be the same. Their order may differ, and what is random (ids and
times of tokens) is left out. Of an error the class counts, by which clients tell errors apart, not the broker's words.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from conformance import java_tools, kafka_peer
from conformance.brokers import watched
from conformance.checks import HERE, Check, expect
from pylogd.base.ports import free_ports
from pylogd.local.broker import BrokerProcess

_ACLS: Final = "org.apache.kafka.tools.AclCommand"
_CONFIGS: Final = "org.apache.kafka.tools.ConfigCommand"
_TOKENS: Final = "org.apache.kafka.tools.DelegationTokenCommand"
_TOPICS: Final = "org.apache.kafka.tools.TopicCommand"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_ADMIN: Final = "admin"
_PASSWORD: Final = "admin-secret"
_SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:ANONYMOUS;User:{_ADMIN}",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.users.plain.sasl.jaas.config": f'{_PLAIN} user_{_ADMIN}="{_PASSWORD}" user_alice="alice-secret";',
    "delegation.token.secret.key": "a secret of the conformance run",
}
#: The commands of each tool, in the order in which they are run. HMAC: that of the token that was created last.
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    _ACLS: (
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
    ),
    _CONFIGS: (
        # quotas of users
        "--describe --entity-type users",
        "--describe --user alice",
        "--alter --add-config producer_byte_rate=1048576,consumer_byte_rate=2097152 --user alice",
        "--describe --entity-type users --entity-name alice",
        "--alter --add-config request_percentage=50 --entity-type users --entity-default",
        "--describe --user-defaults",
        "--describe --entity-type users",
        "--alter --add-config producer_byte_rate=1.5 --user alice",
        "--describe --user alice",
        # quotas of users' clients
        "--alter --add-config controller_mutation_rate=10 --user alice --client app",
        "--alter --add-config producer_byte_rate=5 --user alice --client-defaults",
        "--alter --add-config consumer_byte_rate=6 --user-defaults --client app",
        "--alter --add-config consumer_byte_rate=7 --user-defaults --client-defaults",
        "--describe --user alice --client app",
        "--describe --user alice --entity-type clients",
        "--describe --entity-type users --entity-type clients",
        "--describe --user bob --client app",
        # quotas of client ids
        "--alter --add-config producer_byte_rate=1000 --client app",
        "--alter --add-config request_percentage=20,consumer_byte_rate=2000 --client-defaults",
        "--describe --client app",
        "--describe --client-defaults",
        "--describe --entity-type clients",
        # quotas of addresses
        "--alter --add-config connection_creation_rate=5 --ip 10.0.0.1",
        "--alter --add-config connection_creation_rate=50 --ip-defaults",
        "--describe --ip 10.0.0.1",
        "--describe --ip-defaults",
        "--describe --entity-type ips",
        "--alter --add-config connection_creation_rate=5 --ip not.a.host.invalid",
        "--alter --add-config producer_byte_rate=5 --ip 10.0.0.2",
        # what is not a quota
        "--alter --add-config nonsense=1 --user alice",
        "--alter --add-config producer_byte_rate=many --user alice",
        "--alter --add-config producer_byte_rate=-1 --user alice",
        "--alter --add-config producer_byte_rate=0 --user alice",
        "--alter --add-config connection_creation_rate=5 --user alice",
        "--alter --delete-config request_percentage --user alice",
        "--alter --delete-config producer_byte_rate --user nobody",
        "--alter --delete-config producer_byte_rate --user alice",
        "--describe --user alice",
        "--alter --delete-config consumer_byte_rate --user alice",
        "--alter --delete-config controller_mutation_rate --user alice --client app",
        "--alter --delete-config connection_creation_rate --ip 10.0.0.1",
        "--alter --delete-config connection_creation_rate --ip-defaults",
        "--alter --delete-config request_percentage --user-defaults",
        "--describe --entity-type users",
        "--describe --entity-type ips",
        # users of SCRAM
        "--alter --add-config SCRAM-SHA-256=[iterations=8192,password=secret] --user alice",
        "--alter --add-config SCRAM-SHA-512=[password=secret] --user alice",
        "--alter --add-config SCRAM-SHA-256=[password=a] --user bob",
        "--alter --add-config SCRAM-SHA-512=[password=a] --user bob",
        "--alter --add-config SCRAM-SHA-256=[password=b],SCRAM-SHA-512=[password=b] --user bob",
        "--describe --user alice",
        "--describe --entity-type users",
        "--alter --add-config SCRAM-SHA-256=[iterations=100,password=secret] --user carol",
        "--alter --add-config SCRAM-SHA-256=[iterations=20000,password=secret] --user carol",
        "--alter --add-config SCRAM-SHA-256=[password=secret] --user-defaults",
        "--alter --add-config SCRAM-SHA-256=[password=secret],producer_byte_rate=5 --user carol",
        "--alter --add-config SCRAM-SHA-1=[password=secret] --user carol",
        "--alter --delete-config SCRAM-SHA-256 --user alice",
        "--alter --delete-config SCRAM-SHA-256 --user alice",
        "--alter --delete-config SCRAM-SHA-256 --user nobody",
        "--describe --user alice",
        "--describe --user nobody",
        "--alter --delete-config SCRAM-SHA-256 --user bob",
        "--alter --delete-config SCRAM-SHA-512 --user bob",
        "--describe --entity-type users",
        # settings of topics
        "--describe --topic orders",
        "--alter --add-config retention.ms=60000,cleanup.policy=[compact,delete] --topic orders",
        "--describe --topic orders",
        "--describe --entity-type topics",
        "--alter --add-config retention.ms=soon --topic orders",
        "--alter --add-config no.such.setting=1 --topic orders",
        "--alter --add-config cleanup.policy=nonsense --topic orders",
        "--alter --add-config min.insync.replicas=0 --topic orders",
        "--alter --add-config retention.ms=1 --topic missing",
        "--describe --topic missing",
        "--alter --delete-config retention.ms --topic orders",
        "--alter --delete-config retention.ms --topic orders",
        "--describe --topic orders",
        # settings of brokers
        "--describe --broker 0",
        "--describe --broker-defaults",
        "--alter --add-config max.connections.per.ip=900 --broker 0",
        "--alter --add-config log.retention.ms=3600000 --broker-defaults",
        "--describe --broker-defaults",
        "--alter --add-config node.id=9 --broker 0",
        "--alter --add-config max.connections.per.ip=none --broker 0",
        "--alter --add-config no.such.setting=1 --broker-defaults",
        "--alter --add-config max.connections=5 --broker 7",
        "--alter --delete-config max.connections.per.ip --broker 0",
        "--alter --delete-config log.retention.ms --broker-defaults",
        "--describe --broker 0",
        # settings of groups
        "--describe --group billing",
        "--alter --add-config consumer.session.timeout.ms=50000 --group billing",
        "--alter --add-config consumer.heartbeat.interval.ms=6000 --entity-type groups --entity-name audit",
        "--describe --group billing",
        "--describe --entity-type groups",
        "--alter --add-config consumer.session.timeout.ms=1 --group billing",
        "--alter --add-config consumer.session.timeout.ms=60001 --group billing",
        "--alter --add-config consumer.heartbeat.interval.ms=soon --group billing",
        "--alter --add-config no.such.setting=1 --group billing",
        "--alter --delete-config consumer.heartbeat.interval.ms --group billing",
        "--alter --delete-config consumer.session.timeout.ms --group billing",
        "--describe --group billing",
    ),
    _TOKENS: (
        "--describe",
        "--create --max-life-time-period -1 --renewer-principal User:alice",
        "--describe",
        "--describe --owner-principal User:admin",
        "--describe --owner-principal User:alice",
        "--renew --renew-time-period -1 --hmac HMAC",
        "--renew --renew-time-period 3600000 --hmac HMAC",
        "--describe --owner-principal User:admin",
        "--renew --renew-time-period -1 --hmac bm90aGluZw==",
        "--expire --expiry-time-period -1 --hmac bm90aGluZw==",
        "--expire --expiry-time-period 3600000 --hmac HMAC",
        "--expire --expiry-time-period -1 --hmac HMAC",
        "--describe",
        "--create --max-life-time-period 86400000 --owner-principal User:alice",
        "--describe --owner-principal User:alice",
        "--expire --expiry-time-period -1 --hmac HMAC",
        "--create --max-life-time-period -1 --renewer-principal alice",
    ),
}
_TITLES: Final = {_ACLS: "AclCommand", _CONFIGS: "ConfigCommand", _TOKENS: "DelegationTokenCommand"}
#: What differs from run to run: dates, ids and HMACs of tokens.
_RANDOM: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d"), "TIME"),
    (re.compile(r"(tokenId :?\s*)\S+"), r"\1ID"),
    (re.compile(r"^\S{20,}\s+(?:HMAC|\S{40,})(\s+User:)"), r"ID HMAC\1"),
    (re.compile(r"expiryDate=\d+|\b1[789]\d{11}\b"), "TIME"),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(org\.apache\.kafka\.common\.errors\.\w+):.*"), r"\1"),
)
#: How long a new token may take from Kafka's controller to the broker.
_TOKEN_SECONDS: Final = 3.0
Run = Callable[[list[str]], dict[str, Any]]


def suite(folder: Path) -> list[Check]:
    """Each command is a check."""
    with _tools() as run:
        with _pylogd(folder) as addresses:
            ours = list(_answers(run, addresses, folder))
        kafka = folder / "kafka"
        kafka.mkdir()
        with _kafka(kafka) as addresses:
            theirs = list(_answers(run, addresses, folder))
    return [
        expect(name, mine == other, f"pylogd: {_only(mine, other)}; Kafka: {_only(other, mine)}")
        for name, mine, other in zip(_names(), ours, theirs, strict=True)
    ]


def _names() -> Iterator[str]:
    """Yield a name for each command; the second one of the same words has a (2) after it."""
    seen: Counter[str] = Counter()
    for tool, commands in COMMANDS.items():
        for command in commands:
            name = f"{_TITLES[tool]} {command}"
            seen[name] += 1
            yield name if seen[name] == 1 else f"{name} ({seen[name]})"


def _only(first: list[str], second: list[str]) -> str:
    return " / ".join(line for line in first if line not in second) or "(no line that the other has not)"


@contextmanager
def _tools() -> Iterator[Run]:
    """Yield a function that runs a tool: its class and arguments, to what it printed."""
    command = [*java_tools.java(), str(HERE / "java" / "Commands.java")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def run(words: list[str]) -> dict[str, Any]:
            stdin.write(json.dumps(words) + "\n")
            stdin.flush()
            answer: dict[str, Any] = json.loads(stdout.readline())
            return answer

        try:
            yield run
        finally:
            stdin.close()


@contextmanager
def _pylogd(folder: Path) -> Iterator[tuple[str, str]]:
    [port] = free_ports(1)
    arguments = ["--node-id", "0", "--listen", f"USERS://127.0.0.1:{port}"]
    with watched(BrokerProcess(folder / "data", folder / "log", _SETTINGS, arguments)) as broker:
        yield broker.address, f"127.0.0.1:{port}"


@contextmanager
def _kafka(folder: Path) -> Iterator[tuple[str, str]]:
    [port] = free_ports(1)
    users = f"127.0.0.1:{port}"
    with kafka_peer.running(folder, _SETTINGS, {"USERS": users}) as address:
        yield address, users


def _answers(run: Run, addresses: tuple[str, str], folder: Path) -> Iterator[list[str]]:
    """Yield the lines that each command prints. Tokens are for users; the rest is done without authentication."""
    plain, users = addresses
    config = folder / "admin.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={_PLAIN} username="{_ADMIN}" password="{_PASSWORD}";\n'
    )
    run([_TOPICS, "--bootstrap-server", plain, "--create", "--topic", "orders", "--partitions", "1"])
    hmac = "none"
    for tool, commands in COMMANDS.items():
        server = ["--bootstrap-server", plain]
        if tool == _TOKENS:
            server = ["--bootstrap-server", users, "--command-config", str(config)]
        for command in commands:
            answer = run([tool, *server, *command.replace("HMAC", hmac).split()])
            if created := _hmac(answer["said"]):
                hmac = created
                time.sleep(_TOKEN_SECONDS)
            yield _lines(answer, plain, hmac)


def _hmac(said: str) -> str | None:
    found = re.search(r"^\S{20,}\s+(\S{40,}={0,2})\s+User:", said, re.MULTILINE) if "Created" in said else None
    return found[1] if found else None


def _lines(answer: dict[str, Any], address: str, hmac: str) -> list[str]:
    """Return the sorted lines of an answer, without what differs from run to run, and the exit code."""
    found = [f"exit code {answer['code']}"]
    for line in answer["said"].replace(address, "BROKER").replace(hmac, "HMAC").splitlines():
        if line.startswith("\tat ") or not line.strip() or "SLF4J" in line:
            continue
        text = line.strip()
        for pattern, instead in _RANDOM:
            text = pattern.sub(instead, text)
        subject, are, listed = text.partition(" are ")  # mechanisms of a user, in the order of a hash map
        found.append(subject + are + ", ".join(sorted(listed.split(", "))))
    return sorted(found)
