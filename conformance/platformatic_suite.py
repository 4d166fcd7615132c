"""@platformatic/kafka's own tests of its clients: a client in TypeScript that was written without another library.

The tests have the addresses of their brokers in their source: a broker at port 9001, a cluster at 9011 to 9013, and a
schema registry at 8004. pylogd listens there for as long as they run. They need a newer Node than most distributions
have, which npm has as a package. Tests of SASL are left out: they need users that their own containers bring.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from conformance import brokers, checks
from conformance.checkouts import checkout
from conformance.checks import CACHE, FAILED, Check, Missing
from pylogd.local.broker import BrokerProcess
from pylogd.local.cluster import LocalBrokers
from pylogd.local.zookeeper import LocalZooKeeper

VERSION = "2.9.0"
_NODE = "24.9.0"
_REPOSITORY = "platformatic/kafka"
_SINGLE, _CLUSTER, _REGISTRY = 9001, 9011, 8004
_PATTERNS = ("test/clients/*.test.ts", "test/clients/*/*.test.ts", "test/issues/*.test.ts")
_LEFT_OUT = "sasl"
_SECONDS = 1800.0
#: Each file of tests has an end of its own, so that one that hangs does not take the others with it.
_TEST_MS = 300_000
_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0", "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100", "transaction.partition.verification.enable": "false",
    "auto.create.topics.enable": "true",
}  # fmt: skip
_SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS", "min.insync.replicas": "1", "default.replication.factor": "1",
}  # fmt: skip


def version() -> str:
    """Return the pinned version."""
    return VERSION


def suite(_: str, folder: Path) -> list[Check]:
    """Run the tests of the clients. Each of them is a check."""
    node, source = _prepare()
    files = sorted(path for pattern in _PATTERNS for path in source.glob(pattern) if _LEFT_OUT not in path.name)
    results = folder / "results.xml"
    command = [
        node, "--test", "--test-concurrency=1", f"--test-timeout={_TEST_MS}", "--test-reporter=junit",
        f"--test-reporter-destination={results}", *(str(path.relative_to(source)) for path in files),
    ]  # fmt: skip
    with _running(folder):
        # The version of the container that the tests would have: what Kafka of it lacks is not tested.
        done = checks.run(command, seconds=_SECONDS, folder=source, environment={"KAFKA_VERSION": "8.2.0"})
    (CACHE / "platformatic.log").write_text(done.stdout + done.stderr)
    if not results.exists() or not results.stat().st_size:
        return [Check("runs to its end", FAILED, checks.last_line(done.stderr or done.stdout))]
    return checks.from_junit(results, lambda _, test: test)


@contextmanager
def _running(folder: Path) -> Iterator[None]:
    """Run a broker with a schema registry, and three brokers, at the ports that the tests have in their source."""
    for port in (_SINGLE, _REGISTRY, *range(_CLUSTER, _CLUSTER + 3)):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                raise Missing(f"port {port} is in use; the tests have it in their source")
    with ExitStack() as stack:
        options = ["--node-id", "1", "--advertised", f"localhost:{_SINGLE}"]
        single = BrokerProcess(folder / "single", folder / "single.log", _SETTINGS, options, port=_SINGLE)
        stack.enter_context(brokers.watched(single))
        stack.enter_context(brokers.registry(single.address, folder, _REGISTRY))
        store = stack.enter_context(LocalZooKeeper(folder / "zookeeper", sync=False))
        cluster = LocalBrokers(folder, store.hosts, 3, {**_SETTINGS, **_SECURED}, port=_CLUSTER)
        stack.callback(cluster.kill_all)
        for number in cluster.ports:
            cluster.start(number)
        yield


def _prepare() -> tuple[str, Path]:
    """Return Node's path, and a folder with the client's source, its tests, and what they import. Raises Missing."""
    npm = checks.tool("npm", "npm")
    source = checkout(_REPOSITORY, f"v{VERSION}")
    folder = CACHE / f"platformatic-{VERSION}"
    node = folder / "node_modules" / ".bin" / "node"
    if not (folder / ".ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".git", "node_modules", "pnpm-*"))
        # Without scripts: some packages for its benchmarks and for Kerberos would be built.
        install = [npm, "install", "--no-audit", "--no-fund", "--silent", "--ignore-scripts", "--legacy-peer-deps"]
        checks.fetched(install, "@platformatic/kafka's packages", seconds=900, folder=folder)
        # Its script puts the program there that is in a package for this kind of machine.
        checks.fetched([*install[:2], "--no-save", *install[2:5], f"node@{_NODE}"], f"Node {_NODE}", folder=folder)
        (folder / ".ready").touch()
    return str(node), folder
