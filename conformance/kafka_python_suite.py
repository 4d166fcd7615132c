"""kafka-python's own integration suite, from its source distribution.

Two files of the suite are not in the distribution: `test/__init__.py`, and `test/service.py`, which starts brokers.
They are replaced by stubs, and its Kafka by an empty folder, since the broker runs already.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

from conformance import checks
from conformance.checks import CACHE, FAILED, Check, Missing

VERSION = "3.0.12"
KAFKA_VERSION = "4.0.0"
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


def suite(address: str) -> list[Check]:
    """Each of its tests is a check."""
    folder = _prepare()
    results = folder / "results.xml"
    command = [sys.executable, "-m", "pytest", "test/integration", "-q", "-p", "no:cacheprovider", "--timeout=60"]
    done = checks.run(
        [*command, "--timeout-method=signal", f"--junitxml={results}"],
        seconds=2400,
        folder=folder,
        environment={"KAFKA_VERSION": KAFKA_VERSION, "KAFKA_URI": f"kafka://{address}"},
    )
    if not results.exists():
        return [Check("runs to its end", FAILED, checks.last_line(done.stderr or done.stdout))]
    return checks.from_junit(results, _name)


def _name(module: str, test: str) -> str:
    module = module.removeprefix("test.integration.").removesuffix("_integration")
    return f"{module.removeprefix('test_')}: {test}"
