"""SIGHUP on real brokers: dynamic settings change, others are reported as waiting for a restart, logs are reopened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.ports import free_ports
from pylogd.local.broker import START_SECONDS, STOP_SECONDS, BrokerProcess, pylogd_command
from tests.fakes.parts import batch
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, create_topic, has_ended, produce, wait_until, wait_until_ended

TWISTD = [str(Path(sys.executable).with_name("twistd"))]
TOO_LARGE, NONE = 10, 0


class Running:
    """A broker with a settings file and a log file."""

    def __init__(self, pid: int, address: str, config: Path, log: Path) -> None:
        self.pid, self.address, self.config, self.log = pid, address, config, log

    def set(self, text: str) -> None:
        """Rewrite the settings file and send SIGHUP."""
        self.config.write_text(text)
        self.hang_up()

    def hang_up(self) -> None:
        os.kill(self.pid, signal.SIGHUP)

    def wait_for(self, text: str) -> None:
        """Wait until the log file contains the text."""
        wait_until(lambda: self.log.exists() and text in self.log.read_text(), f"{text!r} in the log")

    def produced(self, size: int) -> int:
        """Produce a record of `size` bytes. Return the error code."""
        with RawClient(self.address) as client:
            return int(produce(client, "t", [batch(b"v" * size)])[0].error_code)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    config = tmp_path / "pylogd.toml"
    config.write_text('"message.max.bytes" = 100000\n')
    return config, tmp_path / "log" / "pylogd.log"


@pytest.fixture
def foreground(files: tuple[Path, Path], start_broker: StartBroker) -> Running:
    """`pylogd broker`."""
    config, log = files
    log.parent.mkdir()
    broker: BrokerProcess = start_broker(arguments=["--config", str(config), "--logfile", str(log)])
    return Running(broker.pid, broker.address, config, log)


@pytest.fixture
def daemon(files: tuple[Path, Path], tmp_path: Path) -> Iterator[Running]:
    """`twistd pylogd`, in the background."""
    config, log = files
    log.parent.mkdir()
    [port] = free_ports(1)
    pid_file = tmp_path / "pid"
    command = [*TWISTD, "--pidfile", str(pid_file), "--logfile", str(log), "pylogd", "--config", str(config)]
    command += ["--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data")]
    subprocess.run(command, check=True, timeout=START_SECONDS, cwd=tmp_path)
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the pid file")
    pid = int(pid_file.read_text())
    running = Running(pid, f"127.0.0.1:{port}", config, log)
    try:
        running.wait_for("listens on")
        yield running
        os.kill(pid, signal.SIGTERM)
        wait_until_ended(pid)
    finally:
        if not has_ended(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["foreground", "daemon"])
def test_the_settings_file_is_read_again(how: str, request: pytest.FixtureRequest) -> None:
    broker: Running = request.getfixturevalue(how)
    with RawClient(broker.address) as client:
        create_topic(client, "t")
    assert broker.produced(5000) == NONE

    broker.set('"message.max.bytes" = 1000\n"num.partitions" = 3\n')
    broker.wait_for("1 settings changed, 1 need a restart")
    text = broker.log.read_text()
    assert "SIGHUP: changed message.max.bytes from 100000 to 1000" in text
    assert "SIGHUP: num.partitions = 3 needs a restart" in text
    assert broker.produced(5000) == TOO_LARGE

    broker.set('"message.max.bytes" = "soon"\n')
    broker.wait_for("SIGHUP: no setting was changed")
    assert broker.produced(5000) == TOO_LARGE
    assert broker.produced(50) == NONE

    old = broker.log.rename(broker.log.with_suffix(".old"))
    broker.set('"message.max.bytes" = 200000\n')
    broker.wait_for("1 settings changed, 0 need a restart")
    assert broker.produced(5000) == NONE
    assert "to 200000" not in old.read_text()


def test_a_log_file_that_can_not_be_reopened_is_written_on(foreground: Running) -> None:
    folder = foreground.log.parent
    moved = folder.rename(folder.with_name("elsewhere"))
    foreground.log = moved / foreground.log.name
    foreground.hang_up()
    foreground.wait_for("SIGHUP: can't reopen the log file")


def test_sighup_without_a_settings_file_is_reported(start_broker: StartBroker) -> None:
    broker = start_broker()
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "SIGHUP: no settings file to reload" in broker.log(), "the message in the log")
    with RawClient(broker.address) as client:
        create_topic(client, "t")


def json_broker(data: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*pylogd_command(), "broker", "--listen", "127.0.0.1:0", "--data", str(data), "--log-format", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_json_log_has_an_object_on_each_line_and_nothing_else(tmp_path: Path) -> None:
    first = json_broker(tmp_path)
    try:
        assert first.stderr is not None
        lines = []
        for text in first.stderr:
            lines.append(json.loads(text))
            if "listens on" in lines[-1]["message"]:
                break
        first.send_signal(signal.SIGUSR1)
        lines.append(json.loads(first.stderr.readline()))
        # A second broker on the directory gives up; why is a line of its log as well.
        second = json_broker(tmp_path)
        out, err = second.communicate(timeout=START_SECONDS)
        assert (second.returncode, out) == (1, "")
        assert json.loads(err.splitlines()[-1])["level"] == "critical"
        assert all(json.loads(line) for line in err.splitlines())
        first.send_signal(signal.SIGTERM)
        out, err = first.communicate(timeout=STOP_SECONDS)
        assert (first.returncode, out) == (0, "")
        lines += [json.loads(line) for line in err.splitlines()]
    finally:
        first.kill()
        first.wait()
    assert any("SIGUSR1: no log file to reopen" in line["message"] for line in lines)
    epochs = [line["fields"]["epoch"] for line in lines if "epoch" in line.get("fields", {})]
    assert epochs == [1], "numbers are numbers"
    assert lines[-1]["message"] == "Stopped"


def test_sigusr1_reopens_the_log_file_only(foreground: Running) -> None:
    foreground.config.write_text('"message.max.bytes" = 1000\n')
    moved = foreground.log.rename(foreground.log.with_suffix(".1"))
    os.kill(foreground.pid, signal.SIGUSR1)
    foreground.wait_for("SIGUSR1: reopened the log file")
    assert "SIGUSR1" not in moved.read_text()
    with RawClient(foreground.address) as client:
        create_topic(client, "t")
    assert foreground.produced(5000) == NONE
