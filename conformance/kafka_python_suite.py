"""kafka-python's own integration suite, from its source distribution.

Two files of the suite are not in the distribution: `test/__init__.py`, and `test/service.py`, which starts brokers.
They are replaced by stubs, and its Kafka by an empty folder, since the broker runs already. It has an authorizer, as
the suite's own broker has. For SASL and TLS the suite starts brokers itself: `conformance.kafka_python_broker` lets it
start pylogd. With Apache Kafka those tests are not run.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance import brokers, checks
from conformance.checks import CACHE, FAILED, HERE, Check, Missing

VERSION = "3.0.12"
KAFKA_VERSION = "4.0.0"
#: As the suite's own broker has it.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}
_FOLDER = "test/integration"
_OWN = (f"{_FOLDER}/test_sasl_integration.py", f"{_FOLDER}/test_ssl_integration.py")
_SHARED = (_FOLDER, *(f"--ignore={name}" for name in _OWN))
SERVICE = '''"""Stands in for the file of this name that the source distribution leaves out."""


class ExternalService:
    def __init__(self, host, port):
        pass

    def open(self):
        pass

    def close(self):
        pass

    def stop(self):
        pass


class SpawnedService:
    pass
'''


def version() -> str:
    """The pinned version."""
    return VERSION


def _prepare() -> Path:
    folder = CACHE / f"kafka_python-{VERSION}"
    archive = CACHE / f"kafka_python-{VERSION}.tar.gz"
    CACHE.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip"]
    if not archive.exists():
        download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", str(CACHE)]
        checks.fetched([*pip, *download, f"kafka-python=={VERSION}"], "kafka-python's source distribution")
    checks.fetched([*pip, "install", "--quiet", "pytest-mock", "py"], "pytest-mock")
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(CACHE, filter="data")
    if not (folder / "test" / "integration").is_dir():
        raise Missing(f"kafka-python {VERSION}'s source distribution has no test/integration")
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(SERVICE)
    (folder / "servers" / KAFKA_VERSION / "kafka-bin").mkdir(parents=True)
    return folder


def suite(kind: str, folder: Path) -> list[Check]:
    """Each of its tests is a check."""
    source = _prepare()
    with brokers.running(kind, folder, AUTHORIZER) as address:
        found = _tests(source, "broker", _SHARED, {"KAFKA_URI": f"kafka://{address}"})
    if kind == "pylogd":
        shutil.copy(HERE / "kafka_python_broker.py", source)
        found += _tests(source, "own", ["-p", "kafka_python_broker", *_OWN], {})
    return found


def _tests(source: Path, title: str, words: Sequence[str], environment: Mapping[str, str]) -> list[Check]:
    results = source / f"{title}.xml"
    command = [sys.executable, "-m", "pytest", *words, "-q", "-p", "no:cacheprovider", "--timeout=60"]
    done = checks.run(
        [*command, "--timeout-method=signal", f"--junitxml={results}"],
        seconds=2400,
        folder=source,
        environment={"KAFKA_VERSION": KAFKA_VERSION, **environment},
    )
    if not results.exists():
        return [Check(f"{title}: runs to its end", FAILED, checks.last_line(done.stderr or done.stdout))]
    return checks.from_junit(results, _name)


def _name(module: str, test: str) -> str:
    module = module.removeprefix("test.integration.").removesuffix("_integration")
    return f"{module.removeprefix('test_')}: {test}"
