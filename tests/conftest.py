"""What every test shares: which pylogd is under test, and a guard that it is the installed one.

`make test` sets PYLOGD_TEST_INSTALLED: then the run stops if pylogd was imported from the checkout, which would hide
files that are missing in the wheel.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

import pylogd
from tests.clusters import start_cluster  # noqa: F401
from tests.parts import PARTS, part_of
from tests.secured import secured  # noqa: F401
from tests.spark_java import LAUNCHER_OPTIONS, driver_options, spark_home
from tests.zookeeper import own_zookeeper, zookeeper, zookeeper_server  # noqa: F401

CHECKOUT = Path(__file__).resolve().parent.parent
FROM_CHECKOUT = Path(pylogd.__file__).resolve().parent.parent == CHECKOUT

#: The tests of the benchmarks, which run only when they are named: `make bench-test`.
BENCH_TESTS = CHECKOUT / "tests" / "bench"

# Parts of the benchmarks and of the conformance suites are used by tests. They are not installed, and a checkout on the
# path would hide the installed pylogd.
for name in ("bench", "conformance"):
    package = ModuleType(name)
    package.__path__ = [str(CHECKOUT / name)]
    sys.modules[name] = package

# Slow machines are not an error. In CI each run uses the same examples.
settings.register_profile(
    "pylogd", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)  # fmt: skip
settings.load_profile("pylogd")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make test` and `make test-long` run their parts side by side."""
    parser.addoption("--part", choices=PARTS, help="run the files of one part of a suite only: see tests/parts.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what belongs to other parts, and the tests of the benchmarks unless they are named."""
    if collection_path == BENCH_TESTS:
        named = [(config.invocation_params.dir / str(one).partition("::")[0]).resolve() for one in config.args]
        return None if any(path.is_relative_to(BENCH_TESTS) for path in named) else True
    part = config.getoption("--part")
    other = part is not None and collection_path.suffix == ".py" and part_of(collection_path) != part
    return True if other else None


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test the checkout where the installed package is meant."""
    if os.environ.get("PYLOGD_TEST_INSTALLED") and FROM_CHECKOUT:
        raise pytest.UsageError(f"these tests are for the installed package, but pylogd came from {pylogd.__file__}")


def pytest_runtest_setup() -> None:
    """Set the options and the home of every Spark that a test starts, also by a command."""
    os.environ["SPARK_LAUNCHER_OPTS"] = LAUNCHER_OPTIONS
    os.environ["SPARK_SUBMIT_OPTS"] = driver_options()
    if (home := spark_home()) is not None:
        os.environ["SPARK_HOME"] = home


def pytest_report_header() -> str:
    """Say which pylogd is under test."""
    return f"pylogd {pylogd.__version__} from the {'checkout' if FROM_CHECKOUT else 'installed package'}"
