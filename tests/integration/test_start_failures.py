"""Failed starts print one line of error, exit with the right code and leave nothing behind.

The exit code is 1 for errors of the system, and 2 for a wrong command line or wrong settings.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pylogd.base.ports import free_ports
from pylogd.local.broker import START_SECONDS, BrokerProcess, pylogd_command
from tests.conftest import CHECKOUT, FROM_CHECKOUT
from tests.rawclient import check_serves, wait_until, wait_until_ended

TWISTD = [str(Path(sys.executable).with_name("twistd"))]


def run_to_its_end(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)} if FROM_CHECKOUT else dict(os.environ)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=START_SECONDS, check=False
    )


def start(folder: Path, *arguments: str) -> tuple[int, str]:
    """Start a broker that has to fail. Return its exit code and its error message, which has to be one line."""
    done = run_to_its_end([*pylogd_command(), "broker", *arguments], folder)
    assert done.stdout == "", "it reported that it listens"
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return done.returncode, lines[0]


# Errors of the system -------------------------------------------------------------------------------------------------


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which another socket listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield int(other.getsockname()[1])


def test_a_data_directory_in_use_is_refused(start_broker: Callable[[], BrokerProcess], tmp_path: Path) -> None:
    first = start_broker()
    code, why = start(tmp_path, "--listen", "127.0.0.1:0", "--data", str(first.data))
    assert code == 1
    assert str(first.data) in why
    assert "another" in why
    check_serves(first.address)
    first.kill()
    again = start_broker()  # the kernel releases the lock however its owner ended
    check_serves(again.address)


def test_a_port_in_use_is_an_error(tmp_path: Path, taken_port: int) -> None:
    code, why = start(tmp_path, "--listen", f"127.0.0.1:{taken_port}", "--data", "data")
    assert (code, why) == (1, f"pylogd: can't listen on 127.0.0.1:{taken_port}: Address already in use")


def test_a_failed_start_leaves_a_directory_that_can_be_used(
    tmp_path: Path, taken_port: int, start_broker: Callable[[], BrokerProcess]
) -> None:
    start(tmp_path, "--listen", f"127.0.0.1:{taken_port}", "--data", str(tmp_path / "broker"))
    assert (tmp_path / "broker" / ".kafka_cleanshutdown").exists()
    check_serves(start_broker().address)


def test_a_file_in_place_of_the_data_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, why = start(tmp_path, "--listen", "127.0.0.1:0", "--data", "file")
    assert code == 1
    assert f"{tmp_path}/file" in why
    assert why.endswith(("Not a directory", "File exists"))


def test_a_directory_without_write_permission_is_an_error(tmp_path: Path) -> None:
    """In /sys nobody can create directories, not even root."""
    code, why = start(tmp_path, "--listen", "127.0.0.1:0", "--data", "/sys/pylogd")
    assert code == 1
    assert why.startswith("pylogd: /sys/pylogd: ")


def test_a_read_only_volume_is_an_error(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", str(volume)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        volume.chmod(0o500)
        if os.geteuid() == 0:
            pytest.skip("tests run as root without the right to mount: no directory is read-only")
    try:
        code, why = start(tmp_path, "--listen", "127.0.0.1:0", "--data", str(volume))
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", volume], check=True)
    assert code == 1
    assert str(volume) in why
    assert why.endswith(("Read-only file system", "Permission denied"))


def test_the_data_directory_of_another_broker_is_refused(
    tmp_path: Path, start_broker: Callable[[], BrokerProcess]
) -> None:
    first = start_broker()
    assert first.stop() == 0
    code, why = start(tmp_path, "--listen", "127.0.0.1:0", "--data", str(first.data), "--node-id", "2")
    assert code == 1
    assert "broker 1" in why
    assert "broker 2" in why


@pytest.mark.parametrize("name", ["meta.properties", "metadata.sqlite"])
def test_garbage_in_files_of_the_data_directory_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(b"\xff\x00garbage" * 500)
    code, why = start(tmp_path, "--listen", "127.0.0.1:0", "--data", "data")
    assert code == 1
    assert f"data/{name}" in why


# Wrong usage ----------------------------------------------------------------------------------------------------------

BAD_SETTINGS: dict[str, tuple[list[str], list[str]]] = {
    "no such address": (["--listen", "nowhere"], ['"nowhere"']),
    "a port over 65535": (["--listen", "127.0.0.1:99999"], ['"127.0.0.1:99999"']),
    "a bad endpoint": (["--listen", "tcp:abc"], ['"tcp:abc"']),
    "an unknown setting": (["--set", "log.segment.byte=1"], ['"log.segment.byte"', "log.segment.bytes"]),
    "no value": (["--set", "log.segment.bytes"], ["NAME=VALUE"]),
    "not a number": (["--set", "log.segment.bytes=many"], ["log.segment.bytes", '"many"']),
    "out of range": (["--set", "log.segment.bytes=1"], ["log.segment.bytes", '"1"']),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings_are_an_error(tmp_path: Path, name: str) -> None:
    arguments, words = BAD_SETTINGS[name]
    code, why = start(tmp_path, "--listen", "127.0.0.1:0", "--data", "data", *arguments)
    assert code == 2
    assert [word for word in words if word not in why] == []
    assert not (tmp_path / "data").exists()


BAD_FILES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "No such file"),
    "of garbage": (b"\xff\x00\x9f" * 100, "not valid TOML"),
    "cut off": (b"listeners = [", "not valid TOML"),
    "with an unknown setting": (b'"no.such.setting" = 1\n', "no.such.setting"),
    "with a wrong type": (b'"log.segment.bytes" = "x"\n', "log.segment.bytes"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_settings_file_is_an_error(tmp_path: Path, name: str) -> None:
    content, word = BAD_FILES[name]
    if content is not None:
        (tmp_path / "bad.toml").write_bytes(content)
    code, why = start(tmp_path, "--listen", "127.0.0.1:0", "--data", "data", "--config", "bad.toml")
    assert code == 2
    assert word in why


def test_a_directory_in_place_of_the_settings_file_is_an_error(tmp_path: Path) -> None:
    code, why = start(tmp_path, "--data", "data", "--config", str(tmp_path))
    assert code == 2
    assert str(tmp_path) in why


def test_an_unknown_host_is_an_error(tmp_path: Path) -> None:
    code, why = start(tmp_path, "--listen", "no.such.host.invalid:0", "--data", "data")
    assert code == 1
    assert "no.such.host.invalid" in why
    assert "Unknown error" not in why


# twistd ---------------------------------------------------------------------------------------------------------------


def twistd(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `twistd pylogd`, in the foreground, to its end."""
    done = run_to_its_end([*TWISTD, "--nodaemon", "--pidfile=", "pylogd", *arguments], folder)
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done


def test_twistd_reports_a_port_in_use(tmp_path: Path, taken_port: int) -> None:
    done = twistd(tmp_path, "--listen", f"127.0.0.1:{taken_port}", "--data", "data")
    assert done.returncode == 1
    said = [line for line in done.stdout.splitlines() if "can't listen on" in line]
    assert len(said) == 1
    assert "Address already in use" in said[0]


def test_twistd_reports_a_data_directory_in_use(tmp_path: Path, start_broker: Callable[[], BrokerProcess]) -> None:
    first = start_broker()
    done = twistd(tmp_path, "--listen", "127.0.0.1:0", "--data", str(first.data))
    assert done.returncode == 1
    assert len([line for line in done.stdout.splitlines() if "another" in line and str(first.data) in line]) == 1


def test_twistd_reports_bad_settings(tmp_path: Path) -> None:
    done = twistd(tmp_path, "--listen", "127.0.0.1:0", "--set", "log.segment.byte=1")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == ('twistd pylogd: unknown setting "log.segment.byte"; did you mean log.segment.bytes?\n')


def test_a_twistd_daemon_that_can_not_start_logs_why_and_removes_its_pid_file(tmp_path: Path, taken_port: int) -> None:
    """The parent waits until the broker serves, or has failed."""
    arguments = ["--pidfile=pylogd.pid", "--logfile=pylogd.log", "pylogd", "--listen", f"127.0.0.1:{taken_port}"]
    log, pidfile = tmp_path / "pylogd.log", tmp_path / "pylogd.pid"
    done = run_to_its_end([*TWISTD, *arguments, "--data", "data"], tmp_path)
    assert done.returncode == 1 and "can't listen on" in done.stderr
    wait_until(lambda: log.exists() and "can't listen on" in log.read_text(), "the log says why")
    wait_until(lambda: not pidfile.exists(), "the pid file is gone")
    assert "Traceback" not in log.read_text()


def test_a_twistd_daemon_can_be_restarted_on_its_log_file(tmp_path: Path) -> None:
    """A stop by twistd's pid file is clean, and the next start appends to the same log file."""
    (port,) = free_ports(1)
    arguments = ["--pidfile=pylogd.pid", "--logfile=pylogd.log", "pylogd", "--listen", f"127.0.0.1:{port}"]
    log, pidfile = tmp_path / "pylogd.log", tmp_path / "pylogd.pid"
    for times in (1, 2):
        assert run_to_its_end([*TWISTD, *arguments, "--data", "data"], tmp_path).returncode == 0
        wait_for_text(log, f":{port} (node 1", times)
        pid = int(pidfile.read_text())
        try:
            check_serves(f"127.0.0.1:{port}")
        finally:
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not pidfile.exists(), "twistd has removed its pid file")
        wait_until_ended(pid)
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert "Traceback" not in log.read_text()


def wait_for_text(log: Path, text: str, times: int) -> None:
    """Wait until the log has the text `times` times."""
    wait_until(lambda: log.exists() and log.read_text().count(text) == times, f"{log} says {text!r}")
