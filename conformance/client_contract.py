"""The contract suite of pylogd's client, on its three faces, against pylogd or Apache Kafka."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from conformance import checks
from conformance.checks import FAILED, HERE, Check
from pylogd import __version__

_SUITE = "tests/contract/clients"


def version() -> str:
    """The checkout's."""
    return __version__


def suite(address: str) -> list[Check]:
    """Each test, on each face, is a check."""
    with tempfile.TemporaryDirectory(prefix="contract-") as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", _SUITE, "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        done = checks.run(command, seconds=1800, folder=HERE.parent, environment={"PYLOGD_TEST_BOOTSTRAP": address})
        if not results.exists():
            return [Check("runs to its end", FAILED, checks.last_line(done.stderr or done.stdout))]
        return checks.from_junit(results, lambda _, test: test.removeprefix("test_").replace("_", " "))
