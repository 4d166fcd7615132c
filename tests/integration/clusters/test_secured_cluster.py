"""A cluster with TLS, users and ACLs, as `pylogd cluster up --secure` makes it: clients, commands, and ZooKeeper."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import click
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from pylogd.cli.main import COMMANDS, pylogd
from pylogd.client import Admin, AuditedProducer, Cluster, Consumer, KafkaError, NewTopic, Producer
from pylogd.client.registry.avro import AvroDeserializer, AvroSerializer, SchemaRegistryClient
from pylogd.local.broker import pylogd_command
from pylogd.local.secure import ADMIN, SecureCluster
from tests.audits import ServedAudit
from tests.commands import Outcome, run_command
from tests.consoles import ConsoleProcess, Visitor
from tests.faces import FACES, Face, poll_until
from tests.registries import FLIGHT, RegistryProcess
from tests.secured import WAYS, Secured

pytestmark = pytest.mark.timeout(600)
SECONDS = 180.0


# -- the three faces of the client


@pytest.fixture(params=list(FACES))
def open_face(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Face]]:
    opened: list[Face] = []

    def open_face(address: str) -> Face:
        opened.append(FACES[request.param](address))
        return opened[-1]

    yield open_face
    for face in opened:
        face.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_client_on_a_replicated_topic(secured: Secured, open_face: Callable[[str], Face], way: str) -> None:
    user, servers, security = secured.client(way)
    face = open_face(servers)
    topic = f"{user}-{type(face).__name__}-{way}"
    admin = face.admin(security=security)
    admin.create_topic(topic, 3, 3)
    producer = face.producer(security=security, acks="all")
    for number in range(300):
        producer.send(topic, b"%d" % number, partition=number % 3)
    producer.flush()
    consumer = face.consumer(security=security, group_id=topic)
    consumer.subscribe(topic)
    records = poll_until([consumer], lambda records: len(records) >= 300)
    assert sorted(int(record.value or b"") for record in records) == list(range(300))
    with pytest.raises(KafkaError):
        admin.create_topic("alice-not-mine" if user == "bob" else "bob-not-mine", 1, 1)


# -- the command line


@pytest.fixture(scope="module")
def command(secured: Secured) -> Callable[..., str]:
    """Return a function that runs `pylogd ...` as a user, and returns its output.

    The first command of each group runs in a process of its own, the others in this one, which is quicker.
    """
    seen: set[str] = set()

    def run(*arguments: str, user: str = ADMIN, code: int = 0, given: str = "") -> str:
        variables = {
            "PYLOGD_BOOTSTRAP_SERVER": secured.servers(user),
            "PYLOGD_COMMAND_CONFIG": str(secured.properties(user)),
            "VISUAL": "true",  # an editor that changes nothing, for `config edit`
        }
        done: Outcome | subprocess.CompletedProcess[str]
        if arguments[0] in seen:
            done = run_command(*arguments, stdin=given, **variables)
        else:
            seen.add(arguments[0])
            done = subprocess.run(
                [*pylogd_command(), *arguments], input=given, capture_output=True, text=True, timeout=SECONDS,
                check=False, env=os.environ | variables,
            )  # fmt: skip
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert not [secret for secret in secured.secrets if secret in done.stdout + done.stderr]
        return done.stdout + done.stderr

    return run


def leaves(name: str, found: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield each command that does something, by its whole name."""
    if isinstance(found, click.Group):
        for below, each in found.commands.items():
            yield from leaves(f"{name} {below}", each)
    if not isinstance(found, click.Group) or found.invoke_without_command:
        yield name, found


#: Of administrators, on settings of groups and on features.
ADMIN_COMMANDS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("groups alter", ["of-anybody", "--config", "consumer.session.timeout.ms=50000"], {}),
    ("groups settings", ["of-anybody"], {}),
    ("features list", [], {}),
    ("features upgrade", [], {}),
    ("features downgrade", ["transaction.version=1", "--yes"], {}),
]


def newer_commands(topic: str, group: str, plan: Path) -> list[tuple[str, list[str], dict[str, Any]]]:
    """Return a part of `commands`: settings, measurements, a group that moves, and brokers out of service."""
    return [
        ("offsets", [topic], {"user": "bob"}),
        ("topics delete-records", [topic, "--before", "1", "--yes"], {"user": "bob"}),
        ("config get", ["topic", topic], {"user": "bob"}),
        ("config set", ["topic", topic, "retention.ms=100000"], {"user": "bob"}),
        ("config diff", ["topic", topic], {"user": "bob"}),
        ("config edit", ["topic", topic, "--yes"], {"user": "bob"}),
        ("bench produce", [topic, "--records", "10"], {"user": "bob"}),
        ("bench consume", [topic, "--records", "5"], {"user": "bob"}),
        ("bench latency", [topic, "--records", "5"], {"user": "bob"}),
        ("top", ["--once", "--interval", "0.2"], {}),
        ("logdirs", [topic, "--by", "topic"], {}),
        ("brokers list", [], {}),
        ("brokers maintenance enable", ["2"], {}),
        ("brokers maintenance disable", ["2"], {}),
        ("brokers decommission", ["2", "--plan"], {"code": 1}),
        ("groups seek", [group, "--to", "end"], {"user": "bob"}),
        ("debug bundle", ["--to", str(plan.with_suffix(".zip"))], {}),
    ]  # fmt: skip


def commands(topic: str, group: str, plan: Path, directory: Path) -> list[tuple[str, list[str], dict[str, Any]]]:
    """Return (command, arguments, how to run it), in an order in which each has something to do."""
    return [
        ("topics create", [topic, "-p", "2", "-r", "2"], {"user": "bob"}),
        ("topics list", [], {"user": "bob"}),
        ("topics describe", [topic], {"user": "bob"}),
        ("topics alter", [topic, "--config", "retention.ms=-1"], {"user": "bob"}),
        ("produce", [topic, "-q"], {"user": "bob", "given": "a\nb\n"}),
        ("consume", [topic, "--until-end", "-g", group], {"user": "bob"}),
        *newer_commands(topic, group, plan),
        ("topics producers", [topic], {"user": "bob"}),
        ("transactions list", [], {}),
        ("transactions describe", ["nobody's"], {"code": 1}),
        ("transactions find-hanging", ["--topic", topic], {}),
        ("transactions abort", [topic, "0", "--start-offset", "0", "--yes"], {"code": 1}),
        ("groups list", [], {"user": "bob"}),
        ("groups describe", [group], {"user": "bob"}),
        ("groups reset-offsets", [group, "--topic", topic, "--to-earliest", "--execute"], {"user": "bob"}),
        ("groups delete", [group, "--yes"], {"user": "bob"}),
        *ADMIN_COMMANDS,
        ("acls list", [], {}),
        ("acls add", ["--allow-principal", "User:dave", "--operation", "Read", "--topic", topic], {}),
        ("acls remove", ["--topic", topic, "--allow-principal", "User:dave", "--yes"], {}),
        ("cluster", [], {}),
        ("cluster describe", [], {}),
        ("cluster health", [], {}),
        ("cluster elect", [], {}),
        ("cluster reopen", ["1", str(directory)], {}),
        ("cluster cordon", ["1"], {}),
        ("cluster uncordon", ["1"], {}),
        ("quotas list", [], {}),
        ("quotas set", ["--user", "dave", "--producer-byte-rate", "1MB"], {}),
        ("quotas remove", ["--user", "dave", "--producer-byte-rate"], {}),
        ("users list", [], {}),
        ("users add", ["dave"], {"given": "a password of dave\n"}),
        ("users remove", ["dave"], {}),
        ("reassign plan", [topic, "--brokers", "1,2"], {}),
        ("reassign execute", [str(plan)], {}),
        ("reassign verify", [str(plan)], {}),
        ("reassign cancel", [], {}),
        ("cluster label", ["1", "online"], {}),
        ("cluster label", ["2", "online"], {}),
        ("topics relabel", [topic, "online"], {}),
        ("topics delete", [topic, "--yes"], {"user": "bob"}),
    ]  # fmt: skip


def test_every_command_reaches_a_secured_cluster(secured: Secured, command: Callable[..., str], tmp_path: Path) -> None:
    """Run each with `--command-config`; those that Spark and the schema registry need have tests of their own."""
    plan = tmp_path / "plan.json"
    topic, group = "bob-commands", "bob-readers"
    steps = commands(topic, group, plan, secured.folder / "broker1")
    for name, arguments, more in steps:
        printed = command(*name.split(), *arguments, **more)
        if name == "reassign plan":
            plan.write_text(json.dumps(json.JSONDecoder().raw_decode(printed)[0]))  # a note follows
        if name == "consume":
            assert set(printed.split()) >= {"a", "b"}
    covered = {name for name, _, _ in steps} | {
        "load",
        "audit",
        *(f"audit {name}" for name in ("check", "serve", "report", "wait")),
        "console",
        "schema-registry",
        *(f"schemas {name}" for name in ("list", "show", "register", "check", "delete")),
        *(f"schemas {kind} {name}" for kind in ("config", "mode") for name in ("get", "set", "reset")),
    }
    takes_config = {
        name
        for first in COMMANDS
        for name, found in leaves(first, pylogd.get_command(click.Context(pylogd), first))  # type: ignore[arg-type]
        if any("--command-config" in option.opts for option in found.params)
    }
    assert takes_config <= covered, f"no test runs {sorted(takes_config - covered)}"


def test_the_audit_as_a_service(secured: Secured, command: Callable[..., str], tmp_path: Path) -> None:
    topic = "bob-served"
    begin = int(time.time()) // 3600 * 3600 - 7200
    with (
        Producer(secured.servers("bob"), security=secured.security("bob")) as producer,
        Admin(secured.servers("bob"), security=secured.security("bob")) as admin,
    ):
        kept = {"retention.ms": "-1"}
        made = admin.create_topics([NewTopic(name, 2, 2, kept) for name in (topic, f"{topic}-audit")])
        assert set(made.values()) == {None}
        times = count(begin * 1000, 2000)
        with AuditedProducer(
            producer, topic=f"{topic}-audit", window_ms=60_000, server="here", now_ms=lambda: next(times)
        ) as audited:
            for number in range(60):
                audited.send(topic, b"%d" % number, partition=number % 2)
    options = ("--command-config", str(secured.properties("bob")), "--since", "beginning", "--grace", "0")
    with ServedAudit(secured.servers("bob"), topic, tmp_path, *options):
        markers = ("--markers", f"{topic}-complete", "--timeout", "60")
        command("audit", "wait", topic, time.strftime("%Y-%m-%dT%H", time.gmtime(begin)), *markers, user="bob")
        printed = command("audit", "report", "--state", f"{topic}-state", "--since", f"@{begin}", "--all", user="bob")
        assert topic in printed


def test_the_console(secured: Secured, tmp_path: Path) -> None:
    process = ConsoleProcess(
        tmp_path / "log", "-b", secured.servers(ADMIN), "--command-config", str(secured.properties(ADMIN))
    )
    try:
        assert "healthy" in Visitor(process.url).until("/c/cluster", "Sample 1")
        assert not [secret for secret in secured.secrets if secret in process.log()]
    finally:
        process.stop()


def test_users_may_do_what_is_theirs_only(command: Callable[..., str]) -> None:
    command("produce", "bob-shared", "-q", "--create", user="bob", given="of bob\n")
    assert "of bob" in command("consume", "bob-shared", "--until-end", user="carol")
    for arguments in (("produce", "bob-shared", "-q"), ("produce", "alice-own", "-q")):
        command(*arguments, user="carol", given="x\n", code=1)
    command("acls", "list", user="bob", code=1)
    command("users", "add", "mallory", user="bob", given="x\n", code=1)


# -- trying it, as `cluster up --secure` tells


def test_the_printed_commands_work_as_they_are(tmp_path: Path) -> None:
    """What a new user does: start the cluster, and copy the commands that it prints."""
    folder = tmp_path / "cluster"
    up = [*pylogd_command(), "cluster", "up", "--secure", "-n", "1", "--port", "0", "--data", str(folder)]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(up, stdout=subprocess.PIPE, stderr=log, text=True)
    assert running.stdout is not None
    hints: list[str] = []
    try:
        for line in running.stdout:
            hints += [line.removeprefix("try: ").rstrip()] if line.startswith("try: ") else []
            if len(hints) == 6:
                break
        assert len(hints) == 6, (tmp_path / "log").read_text()
        outputs = [run_as_printed(hint, tmp_path) for hint in hints if "kcat" not in hint or shutil.which("kcat")]
    finally:
        running.send_signal(signal.SIGTERM)
        code = running.wait(SECONDS)
        running.stdout.close()
    assert code == 0 and outputs[1] == "hello\n"
    assert "hello from Python\n" in outputs[-1] and "hello\n" in outputs[-1]
    password = (folder / "tls" / "bob.librdkafka").read_text().split("sasl.password=")[1].strip()
    assert not [hint for hint in hints if password in hint]


def run_as_printed(command: str, folder: Path) -> str:
    """Run a command line in a shell, and return its output."""
    scripts = Path(pylogd_command()[0]).parent
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=SECONDS, check=False, cwd=folder,
        env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


# -- ZooKeeper


@pytest.fixture
def stranger(secured: Secured) -> Iterator[KazooClient]:
    """Someone who can connect to ZooKeeper, without credentials."""
    client = KazooClient(secured.connect, timeout=60)
    client.start(SECONDS)
    yield client
    client.stop()
    client.close()


def test_strangers_neither_change_nor_read_secrets_in_zookeeper(secured: Secured, stranger: KazooClient) -> None:
    for path in (
        "/config/users/bob",
        "/config/topics",
        "/config/brokers",
        "/kafka-acl-extended",
        "/scram_decoy_secret",
        "/changes/log",
    ):
        with pytest.raises(NoAuthError):
            stranger.get(path)
    seen = [*visit(stranger, "")]
    assert {path for path, _ in seen} >= {"/brokers/ids/1", "/brokers/topics", "/controller", "/cluster/id", "/changes"}
    assert not [path for path, data in seen if b"SCRAM" in data or b"stored_key" in data]
    hidden = ("/config", "/kafka-acl", "/delegation_token", "/changes/log")
    assert not [path for path, _ in seen if path.startswith(hidden)]


def visit(stranger: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    """Try to change a node of the cluster and all below it. Yield what can be read, with the data."""
    try:
        data, _ = stranger.get(path or "/")
        names = stranger.get_children(path or "/")
    except NoAuthError:
        return
    yield path, data
    if path == "/consumers":
        return  # consumers without credentials make the nodes of their groups there
    for name in names:
        if name != "zookeeper":
            yield from visit(stranger, f"{path}/{name}")
    if path:  # the root of the server is not the cluster's
        with pytest.raises(NoAuthError):
            stranger.create(f"{path}/x", b"")
        with pytest.raises(NoAuthError):
            stranger.set(path, b"")


def test_the_command_shows_zookeeper_s_registries(secured: Secured) -> None:
    run = [*pylogd_command(), "zookeeper", "-z", secured.connect, "--config", str(secured.tls / "brokers.toml")]
    done = subprocess.run([*run, "--json"], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert [broker["broker"] for broker in json.loads(done.stdout)["brokers"]] == ["1", "2", "3"]
    done = subprocess.run([*run, "--protect"], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert re.match(r"\d+ nodes are protected", done.stderr)
    secret = secured.secrets[3]
    assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["blocking", "deferred"])
def test_consumers_protect_their_group_in_zookeeper(secured: Secured, stranger: KazooClient, kind: str) -> None:
    user, servers, security = secured.client("SCRAM-SHA-512")
    topic = group = f"bob-zookeeper-{kind}"
    with Cluster(servers, security=security) as connection, Admin(connection) as admin:
        admin.create_topic(topic, 1, 3)
    with Producer(servers, security=security) as producer:
        producer.send(topic, b"value").result()
    face = FACES[kind](servers)
    consumer = face.consumer(
        security=security, group_id=group, coordinator="zookeeper", zookeeper=secured.connect,
        zookeeper_settings={"zookeeper.auth.digest": f"{user}:of the group", "zookeeper.set.acl": "true"},
    )  # fmt: skip
    consumer.subscribe([topic])
    assert [record.value for record in poll_until([consumer], bool)] == [b"value"]
    with pytest.raises(NoAuthError):
        stranger.create(f"/consumers/{group}/offsets/{topic}", b"")
    with pytest.raises(NoAuthError):
        stranger.set(f"/consumers/{group}", b"")
    face.close()


# -- the schema registry


def test_the_registry_is_a_user_of_the_brokers(secured: Secured, tmp_path: Path) -> None:
    """It has a topic of its own; clients reach it with TLS and a password."""
    users = tmp_path / "users"
    subprocess.run(
        [*pylogd_command(), "schema-registry", "--users", str(users), "--add-user", "ada"],
        input=b"secret of ada\n", check=True, timeout=SECONDS,
    )  # fmt: skip
    registry = RegistryProcess(
        secured.sasl_bootstrap, tmp_path / "registry.log", "--command-config", str(secured.properties("bob")),
        "--topic", "bob-schemas", "--group-id", "bob-registries", "--users", str(users),
        "--tls-certificate", str(secured.tls / "broker1.pem"),
    )  # fmt: skip
    client = SchemaRegistryClient(
        registry.url,
        settings={
            "schema.registry.basic.auth.credentials.source": "USER_INFO",
            "schema.registry.basic.auth.user.info": "ada:secret of ada",
            "schema.registry.ssl.truststore.type": "PEM",
            "schema.registry.ssl.truststore.location": str(secured.authority),
        },
    )
    value = {"carrier": "LH", "delay": 3}
    message = AvroSerializer(client, FLIGHT)("bob-flights", value)
    assert AvroDeserializer(client)(message) == value
    assert registry.stop() == 0
    with Consumer(secured.bootstrap, security=secured.security(ADMIN)) as consumer:
        consumer.assign([("bob-schemas", 0)])
        assert any(b"carrier" in (record.value or b"") for record in poll_until([consumer], bool))
    log = (tmp_path / "registry.log").read_text()
    assert not [secret for secret in [*secured.secrets, "secret of ada"] if secret in log]


# -- restarts


def test_a_second_run_keeps_authority_users_and_acls(tmp_path: Path) -> None:
    first, second = (one_run(tmp_path / "cluster", number) for number in range(2))
    assert first == second


def one_run(folder: Path, number: int) -> list[str]:
    """Run the cluster in `folder`, write a record, and read those of all runs. Return what has to stay the same."""
    with SecureCluster(folder, 1, settings={"zookeeper.session.timeout.ms": "30000"}) as cluster:
        security = cluster.security("bob")
        with Producer(cluster.sasl_bootstrap, security=security) as producer:
            producer.send("bob-kept", b"%d" % number).result()
        with Consumer(cluster.sasl_bootstrap, security=security) as consumer:
            consumer.assign({("bob-kept", 0): 0})
            records = poll_until([consumer], lambda found: len(found) > number)
        assert [record.value for record in records] == [b"%d" % each for each in range(number + 1)]
        with Cluster(cluster.bootstrap, security=cluster.security(ADMIN)) as connection:
            acls = sorted(map(str, Admin(connection).list_acls()))
        assert len(acls) == 7
        assert not cluster.close()
        files = [cluster.authority, cluster.properties("bob"), cluster.tls / "broker1.pem"]
        return [*acls, *(path.read_text() for path in files)]
