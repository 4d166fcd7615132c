"""The ZooKeeper server that pylogd runs as a child process: it serves, restarts on its port, and ends cleanly."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pylogd.local import zookeeper as local
from pylogd.local.zookeeper import LocalZooKeeper, ZooKeeperFailed, ZooKeeperUnavailable


def ask(port: int, word: bytes) -> bytes:
    """Send one of ZooKeeper's four-letter words. Return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(word)
        return connection.recv(100)


def gone(pid: int) -> bool:
    """Return whether a process ends within 30 s."""
    for _ in range(600):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_restart_keeps_the_port(own_zookeeper: LocalZooKeeper) -> None:
    before = own_zookeeper.hosts, own_zookeeper.pid
    assert own_zookeeper.running
    own_zookeeper.restart()
    assert own_zookeeper.hosts == before[0] and own_zookeeper.pid != before[1]
    assert ask(own_zookeeper.port, b"ruok") == b"imok"
    own_zookeeper.kill()
    assert not own_zookeeper.running and own_zookeeper.pid == 0
    with pytest.raises(ConnectionRefusedError):
        ask(own_zookeeper.port, b"ruok")


def test_a_port_in_use_is_named_in_the_error(own_zookeeper: LocalZooKeeper, tmp_path: Path) -> None:
    with pytest.raises(ZooKeeperFailed, match=f"{own_zookeeper.hosts}: Address already in use"):
        LocalZooKeeper(tmp_path / "second", own_zookeeper.port).start()


def test_the_error_for_a_failed_start_names_the_log(tmp_path: Path) -> None:
    server = LocalZooKeeper(tmp_path, options={"tickTime": "often"})
    with pytest.raises(ZooKeeperFailed, match=r"ended at its start.*zookeeper\.log"):
        server.start()
    assert not server.running


def test_the_error_for_missing_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_javas", lambda: iter(()))
    with pytest.raises(ZooKeeperUnavailable, match="default-jre-headless"):
        LocalZooKeeper(tmp_path).start()


def test_a_wrong_zookeeper_home_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    with pytest.raises(ZooKeeperUnavailable, match=str(tmp_path)):
        LocalZooKeeper(tmp_path / "data").start()


def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from pylogd.local.zookeeper import LocalZooKeeper\n"
        "server = LocalZooKeeper(sys.argv[1])\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert gone(int(done.stdout))
