"""What every test shares: which pylogd is under test, and a guard that it is the installed one.

`make test` sets PYLOGD_TEST_INSTALLED: then a pylogd that came from the checkout stops the run, because a file that the
wheel forgets would go unseen.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import pylogd
from tests.clusters import start_cluster  # noqa: F401
from tests.zookeeper import own_zookeeper, zookeeper, zookeeper_server  # noqa: F401

CHECKOUT = Path(__file__).resolve().parent.parent
FROM_CHECKOUT = Path(pylogd.__file__).resolve().parent.parent == CHECKOUT

# Where a machine is slow, a test is slow: that is no fault. In CI each run tries the same examples.
settings.register_profile(
    "pylogd", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)  # fmt: skip
settings.load_profile("pylogd")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test the checkout where the installed package is meant."""
    if os.environ.get("PYLOGD_TEST_INSTALLED") and FROM_CHECKOUT:
        raise pytest.UsageError(f"these tests are for the installed package, but pylogd came from {pylogd.__file__}")


def pytest_report_header() -> str:
    """Say which pylogd is under test."""
    return f"pylogd {pylogd.__version__} from the {'checkout' if FROM_CHECKOUT else 'installed package'}"
