"""confluent-kafka-python's own integration tests, with the librdkafka that its wheel has.

They are run against three brokers that hold a registry's topic too, and a schema registry of pylogd's, as the suite
allows with its variables BROKERS and SR_URL. Tests of share groups are left out: pylogd has none yet.
"""

from __future__ import annotations

import shutil
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance import brokers, checks
from conformance.checkouts import checkout
from conformance.checks import CACHE, Check

VERSION = "2.15.0"
_REPOSITORY = "confluentinc/confluent-kafka-python"
_FOLDERS = ("admin", "consumer", "producer", "schema_registry", "serialization")
_PACKAGES = (
    f"confluent-kafka[avro,json,protobuf,rules]=={VERSION}", "trivup", "pytest", "pytest-timeout", "pytest-asyncio",
    "requests-mock", "respx", "requests", "async-timeout",
)  # fmt: skip
#: The suite's fixture for brokers that run already has no client for asyncio, which the one with its own cluster has.
_PLUGIN = """
from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
from tests.integration.cluster_fixture import ByoFixture

ByoFixture.async_schema_registry = lambda self: AsyncSchemaRegistryClient({"url": self._sr_url})
"""
_SECONDS = 1800.0
_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "true", "num.partitions": "4",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS", "allow.everyone.if.no.acl.found": "true", "group.min.session.timeout.ms": "1000",
    "delegation.token.secret.key": "conformance",
}  # fmt: skip


def version() -> str:
    """Return the pinned version."""
    return VERSION


def suite(kind: str, folder: Path) -> list[Check]:
    """Run the tests of each folder against a fresh broker. Each of them is a check."""
    source = checkout(_REPOSITORY, f"v{VERSION}")
    python = _prepare()
    tests = folder / "source"  # without src/, which would hide the installed package
    shutil.copytree(source / "tests", tests / "tests")
    (tests / "async_registry.py").write_text(_PLUGIN)
    found: list[Check] = []
    for name in _FOLDERS:
        with _running(kind, folder / name) as variables:
            results = folder / f"{name}.xml"
            command = [
                str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "async_registry",
                "-o", "asyncio_mode=auto",
                "--timeout=180", f"--junitxml={results}",
                f"tests/integration/{name}",
            ]  # fmt: skip
            done = checks.run(command, seconds=_SECONDS, folder=tests, environment=variables)
        (CACHE / f"confluent-{name}.log").write_text(done.stdout + done.stderr)
        if results.exists():
            found += checks.from_junit(
                results, lambda module, test: f"{module.removeprefix('tests.integration.')}: {test}"
            )
        else:
            found.append(Check(f"{name} runs to its end", checks.FAILED, checks.last_line(done.stderr or done.stdout)))
    return found


@contextmanager
def _running(kind: str, folder: Path) -> Iterator[dict[str, str]]:
    """Run a broker and a registry, and yield the variables that tell the suite of them."""
    folder.mkdir()
    with brokers.running(kind, folder, _SETTINGS) as address, brokers.registry(address, folder) as url:
        yield {"BROKERS": address, "SR_URL": url, "TEST_CONSUMER_GROUP_PROTOCOL": "classic"}


def _prepare() -> Path:
    """Return the Python of an environment with the client and what its tests import. Raises Missing."""
    folder = CACHE / f"confluent-python-{VERSION}"
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *_PACKAGES]
        checks.fetched(install, f"confluent-kafka {VERSION}", seconds=900)
        (folder / ".ready").touch()
    return python
