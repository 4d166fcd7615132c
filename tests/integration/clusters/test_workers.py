"""`pylogd broker --workers`: brokers that share a port, a metadata store and a machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pylogd.base.errors import PylogdError
from pylogd.base.ports import free_row
from pylogd.client import Admin, Consumer, Producer
from pylogd.local.broker import BrokerProcess
from tests.rawclient import wait_until

WORKERS = 2
PARTITIONS = 4
PATIENCE_SECONDS = 60.0


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", tmp_path / "log", arguments=["--workers", str(WORKERS)])
    yield broker
    assert broker.stop() == 0


def children(parent: int) -> list[int]:
    """The metadata store's process, then the workers', in the order of their starts."""
    return sorted(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))


def send(address: str, values: list[str]) -> None:
    with Producer(address) as producer:
        for index, value in enumerate(values):
            producer.send("shared", value.encode(), partition=index % PARTITIONS)
        producer.flush()


def read(address: str, count: int) -> list[str]:
    found: list[str] = []
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("shared", index) for index in range(PARTITIONS)])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            found += [(record.value or b"").decode() for record in consumer.poll(1)]
    return sorted(found)


def test_workers_are_one_cluster_and_each_is_started_again_alone(workers: BrokerProcess) -> None:
    first = [f"first {index}" for index in range(8)]
    with Admin(workers.address) as admin:
        admin.create_topic("shared", PARTITIONS, 1)
        live = admin.describe_cluster().brokers
        nodes = {broker.node_id: broker.port for broker in live}
        assert len({broker.host_id for broker in live}) == 1 and live[0].host_id, "they share the machine"
        assert nodes == {1: workers.port + 1, 2: workers.port + 2}
        leaders = [one.leader for one in admin.describe_topic("shared").partitions]
        assert sorted(leaders) == [1, 1, 2, 2]
    send(workers.address, first)
    assert read(workers.address, 8) == first

    store, *brokers = before = children(workers.pid)
    for number, victim in enumerate((brokers[1], store), 1):
        os.kill(victim, signal.SIGKILL)
        wait_until(partial(replaced, workers.pid, victim), "another process in its place")
        wait_until(lambda: serves_all(workers.address), "all partitions have leaders again")
        send(workers.address, [f"again {number} {index}" for index in range(4)])
    assert len(set(before) & set(children(workers.pid))) == 1, "only those that were killed were started again"
    found = read(workers.address, 16)
    assert [value for value in found if value.startswith("first")] == first
    assert len(re.findall(r"has ended \(signal SIGKILL\): restarting it now", workers.log())) == 2


def replaced(parent: int, victim: int) -> bool:
    present = children(parent)
    return len(present) == WORKERS + 1 and victim not in present


def serves_all(address: str) -> bool:
    try:
        with Admin(address) as admin:
            described = admin.describe_topic("shared").partitions
            return len(admin.describe_cluster().brokers) == WORKERS and all(one.leader > 0 for one in described)
    except PylogdError:
        return False


def started(tmp_path: Path, *more: str, wait: bool = True) -> BrokerProcess:
    """Start two workers with further arguments, on the data directory of the last call."""
    return BrokerProcess(
        tmp_path / "data", tmp_path / "log", arguments=["--workers", str(WORKERS), *more], wait=wait
    )  # fmt: skip


def wait_for_log(broker: BrokerProcess, text: str, count: int = 1) -> None:
    wait_until(lambda: len(re.findall(text, broker.log())) >= count, f"{text!r} in the log")


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_log_names_the_process_in_both_formats(tmp_path: Path, style: str) -> None:
    broker = started(tmp_path, "--log-format", style, wait=style == "text")
    wait_for_log(broker, "2 workers .* listen on")
    os.kill(children(broker.pid)[-1], signal.SIGKILL)
    wait_for_log(broker, r"listens on .*node \d", 3)
    assert broker.stop() == 0
    names = {"text": r"\[supervisor, pylogd.broker.workers#error\] ", "json": '"process":"supervisor"'}
    (line,) = (line for line in broker.log().splitlines() if "has ended (signal SIGKILL): restarting it now" in line)
    assert re.search(names[style], line), line


def test_what_killed_workers_left_is_no_obstacle(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(data / "metadata.sock"))
    left.close()
    # As an earlier version wrote it: in a container, another process often has the number of the one that was killed.
    (data / "metadata.sock.lock").symlink_to(str(os.getpid()))
    broker = started(tmp_path)
    assert (data / "metadata.sock").stat().st_mode & 0o777 == 0o600
    assert broker.stop() == 0
    assert not (data / "metadata.sock").exists()


def test_other_users_cannot_read_the_directories(tmp_path: Path) -> None:
    broker = started(tmp_path)
    assert [path.stat().st_mode & 0o007 for path in (tmp_path / "data", tmp_path / "data" / "worker-1")] == [0, 0]
    assert broker.stop() == 0


def test_workers_whose_parent_is_killed_stop_cleanly(tmp_path: Path) -> None:
    broker = started(tmp_path)
    with Admin(broker.address) as admin:
        admin.create_topic("shared", PARTITIONS, 1)
    pids = children(broker.pid)
    broker.kill()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of the workers")
    assert "Stopping before all leaderships were handed over" not in broker.log()
    assert broker.log().count("#info] Stopped") == WORKERS + 1
    broker = started(tmp_path)
    assert broker.stop() == 0
    assert "was not closed cleanly" not in broker.log()


@pytest.mark.parametrize("forwarded", [signal.SIGHUP, signal.SIGUSR1])
def test_signals_while_workers_start(tmp_path: Path, forwarded: signal.Signals) -> None:
    broker = started(tmp_path, wait=False)
    wait_for_log(broker, "metadata store")
    broker.process.send_signal(forwarded)
    broker.wait()
    assert broker.stop() == 0


def test_a_stop_while_workers_start_is_no_failure(tmp_path: Path) -> None:
    broker = started(tmp_path, wait=False)
    wait_for_log(broker, "metadata store")
    assert broker.stop() == 0


def test_a_worker_that_starts_again_has_the_settings_of_the_last_reload(tmp_path: Path) -> None:
    config = tmp_path / "pylogd.toml"
    config.write_text('"message.max.bytes" = 100000\n')
    broker = started(tmp_path, "--config", str(config))
    config.write_text('"message.max.bytes" = 200000\n')
    broker.process.send_signal(signal.SIGHUP)
    wait_for_log(broker, "message.max.bytes", WORKERS)
    os.kill(children(broker.pid)[-1], signal.SIGKILL)
    wait_for_log(broker, "message.max.bytes", WORKERS + 1)
    assert broker.stop() == 0


def test_a_log_file_that_cannot_be_reopened_ends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    broker = started(tmp_path, "--logfile", str(folder / "pylogd.log"))
    folder.rename(tmp_path / "moved")
    broker.process.send_signal(signal.SIGUSR1)
    moved = tmp_path / "moved" / "pylogd.log"
    wait_until(lambda: moved.read_text().count("can't reopen the log file") == WORKERS + 2, "the errors of all")
    assert broker.stop() == 0
    assert "[supervisor, pylogd.broker.workers#error] can't reopen the log file" in moved.read_text()


def test_workers_that_are_left_out_are_named(tmp_path: Path) -> None:
    broker = started(tmp_path)
    with Admin(broker.address) as admin:
        admin.create_topic("shared", PARTITIONS, 1)
    assert broker.stop() == 0
    broker = BrokerProcess(tmp_path / "data", tmp_path / "log", arguments=["--workers", "1"])
    assert broker.stop() == 0
    assert "1 worker (node 1) listens on" in broker.log()
    assert "worker-2 holds partitions of a worker that --workers 1 does not start" in broker.log()


def test_workers_share_the_memory_of_what_metrics_need(tmp_path: Path) -> None:
    port = free_row(WORKERS)
    broker = started(tmp_path, "--set", f"metrics.listener=127.0.0.1:{port}")
    for pid in (broker.pid, *children(broker.pid)[1:]):
        assert "_upb/_message" in Path(f"/proc/{pid}/maps").read_text(), "loaded before the fork"
    assert broker.stop() == 0


def test_a_worker_that_ends_before_all_serve_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "worker-2").touch()
    broker = started(tmp_path, wait=False)
    assert broker.join() == 1
    assert re.search(r"^pylogd, worker 2: .*worker-2/.lock: Not a directory", broker.log(), re.MULTILINE)
    assert "worker 2 has ended (exit status 1) before all workers served: stopping" in broker.log()


def test_workers_end_if_one_cannot_start(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", tmp_path / "log", arguments=["--workers", "2"])
    other = BrokerProcess(
        tmp_path / "other", tmp_path / "other-log", port=broker.port, arguments=["--workers", "2"], wait=False
    )
    assert other.join() == 1
    assert "can't listen on 127.0.0.1" in other.log()
    assert broker.stop() == 0
