"""Other projects' clients over secured listeners, by each mechanism that they have.

Each client creates a topic, produces, and reads in a group over SASL_SSL; is refused with wrong credentials; and is
refused as a user without ACLs. Then come traffic over several sessions (KIP-368), a certificate in place of SASL, and a
delegation token (KIP-48). What a client does not have is a skipped check with the reason.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version as installed
from pathlib import Path
from typing import Final

import confluent_kafka

from conformance import checks, go_clients, java_tools, kafkajs_client, kcat
from conformance.checks import FAILED, HERE, MISSING, SKIPPED, Check, Missing
from conformance.secure import peer as peers
from conformance.secure.tasks import (
    CERTIFICATE,
    MECHANISMS,
    SESSIONS,
    TOKEN,
    Client,
    Login,
    Peer,
    Task,
    java_properties,
    librdkafka_properties,
    tasks,
    token_task,
)

#: How long a client may take for all of its tasks.
_SECONDS: Final = 900.0
_NO_TOKEN: Final = "its SCRAM can't send the extension tokenauth"
_BY_KCAT: Final = "see librdkafka"
JAVA: Final = Client("Java")
FRANZ: Final = Client("franz-go")
LIBRDKAFKA: Final = Client("librdkafka", {"GSSAPI": "the wheel is built without it; see kcat", TOKEN: _NO_TOKEN})
KCAT: Final = Client(
    "librdkafka (kcat)",
    dict.fromkeys([*(name for name in MECHANISMS if name != "GSSAPI"), SESSIONS, CERTIFICATE, TOKEN], _BY_KCAT),
)
KAFKA_PYTHON: Final = Client("kafka-python", {TOKEN: _NO_TOKEN})
AIOKAFKA: Final = Client("aiokafka", {TOKEN: _NO_TOKEN})
KAFKAJS: Final = Client("kafkajs", {"GSSAPI": "it does not have it", TOKEN: _NO_TOKEN})


def version() -> str:
    """Return the versions of all clients."""
    return ", ".join(
        [
            f"Java {java_tools.version()}", f"librdkafka {confluent_kafka.libversion()[0]}", kcat.version(),
            go_clients.version().partition(", ")[2], f"kafka-python {installed('kafka-python')}",
            f"aiokafka {installed('aiokafka')}", f"kafkajs {kafkajs_client.version()}",
        ]
    )  # fmt: skip


def suite(kind: str, folder: Path) -> list[Check]:
    """Run all clients against a broker of this kind."""
    found: list[Check] = []
    with peers.running(kind, folder) as peer:
        for client, program in _PROGRAMS:
            found += [*_not_there(client, peer), *_run(client, program, peer, folder, list(tasks(client, peer)))]
        found += _with_tokens(peer, folder)
    return found


def _not_there(client: Client, peer: Peer) -> Iterator[Check]:
    """Yield a check for each thing that the client, or this machine, does not have."""
    for name, why in client.lacks.items():
        if why != _BY_KCAT:
            yield Check(f"{client.name}, {name}", SKIPPED, f"the client does not support it: {why}")
    for mechanism in MECHANISMS:
        if mechanism not in peer.logins and mechanism not in client.lacks:
            yield Check(f"{client.name}, {mechanism}", MISSING, peer.no_kerberos)


Program = Callable[[Peer, Path, list[Task]], tuple[Sequence[str], list[Task]]]


def _run(client: Client, program: Program, peer: Peer, folder: Path, todo: list[Task]) -> list[Check]:
    """Run a client's program with tasks. A task that it said nothing of has failed."""
    path = folder / f"{client.name}.json"
    try:
        command, todo = program(peer, path, todo)
    except Missing as missing:
        return [Check(f"{client.name}, all", MISSING, str(missing))]
    path.write_text(json.dumps([task.json() for task in todo]))
    where = kafkajs_client.install()[1] if client is KAFKAJS else HERE.parent
    done = checks.run(command, seconds=_SECONDS, folder=where, environment={"PYTHONPATH": str(HERE.parent)})
    print(done.stderr[-4000:], file=sys.stderr)
    found = checks.reported(done.stdout)
    said = {check.name for check in found}
    why = checks.last_line(done.stderr or done.stdout)
    return found + [Check(task.name, FAILED, why) for task in todo if task.name not in said]


def _python(module: str) -> Program:
    """Return how to run a module of conformance/secure."""

    def command(_: Peer, path: Path, todo: list[Task]) -> tuple[Sequence[str], list[Task]]:
        return [sys.executable, "-m", f"conformance.secure.{module}", str(path)], _with_properties(todo)

    return command


def _with_properties(todo: list[Task]) -> list[Task]:
    return [replace(task, properties=librdkafka_properties(task)) for task in todo]


def _kcat(peer: Peer, path: Path, todo: list[Task]) -> tuple[Sequence[str], list[Task]]:
    checks.tool("kcat", "kcat")
    plugin = list(Path("/usr/lib").glob("*/sasl2/libgssapiv2.so*"))
    if not plugin:
        raise Missing("Cyrus SASL's GSSAPI is not installed (Debian: apt-get install libsasl2-modules-gssapi-mit)")
    return _python("kcat")(peer, path, todo)


def _java(peer: Peer, path: Path, todo: list[Task]) -> tuple[Sequence[str], list[Task]]:
    program = str(HERE / "java" / "SecureClient.java")
    command = [*java_command(peer), program, str(path)]
    return command, [replace(task, properties=java_properties(task)) for task in todo]


def java_command(peer: Peer) -> list[str]:
    """Return the start of a command of Java with what tokens and tickets need."""
    java = java_tools.java()
    files = [
        login.token_file for found in peer.logins.values() for login in (found.allowed, found.wrong, found.stranger)
    ]
    urls = ",".join(f"file://{name}" for name in files if name)
    options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}"]
    if peer.kerberos:
        options.append(f"-Djava.security.krb5.conf={peer.kerberos['KRB5_CONFIG']}")
    return [java[0], *options, *java[1:]]


def _go(_: Peer, path: Path, todo: list[Task]) -> tuple[Sequence[str], list[Task]]:
    return [go_clients.build(), "--tasks", str(path)], todo


def _node(_: Peer, path: Path, todo: list[Task]) -> tuple[Sequence[str], list[Task]]:
    return [kafkajs_client.install()[0], "secure.js", str(path)], todo


_PROGRAMS: Final[list[tuple[Client, Program]]] = [
    (LIBRDKAFKA, _python("librdkafka")),
    (KCAT, _kcat),
    (JAVA, _java),
    (FRANZ, _go),
    (KAFKA_PYTHON, _python("kafka_python")),
    (AIOKAFKA, _python("aio_kafka")),
    (KAFKAJS, _node),
]


def _with_tokens(peer: Peer, folder: Path) -> list[Check]:
    """Let Kafka's tool make a delegation token, and clients that can use it."""
    name = "Java, DelegationTokenCommand --create over SASL_SSL"
    owner = peer.logins["SCRAM-SHA-256"].allowed
    try:
        java = java_command(peer)
    except Missing as missing:
        return [Check(name, MISSING, str(missing))]
    base = token_task(JAVA, peer, owner.username, owner)
    config = folder / "owner.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in java_properties(base).items()))
    options = ["--bootstrap-server", peer.sasl, "--command-config", str(config), "--max-life-time-period", "-1"]
    done = checks.run([*java, f"{java_tools.TOOLS}DelegationTokenCommand", "--create", *options], seconds=60)
    token = _token(done.stdout)
    if token is None:
        return [Check(name, FAILED, checks.last_line(done.stderr or done.stdout))]
    found = [Check(name, checks.PASSED)]
    login = Login("SCRAM-SHA-256", token[0], token[1], token_auth=True)
    for client, program in ((JAVA, _java), (FRANZ, _go)):
        found += _run(client, program, peer, folder, [token_task(client, peer, owner.username, login)])
    return found


def _token(said: str) -> tuple[str, str] | None:
    """Return the id and the HMAC of the token that the tool printed."""
    found = re.search(r"^(\S{20,})\s+(\S{40,})\s+User:", said, re.MULTILINE)
    return (found[1], found[2]) if found else None
