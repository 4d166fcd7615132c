"""Local broker processes, with a small program in place of the broker: start, stop, kill, and errors."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pylogd.base.ports import free_ports
from pylogd.local import broker as local
from pylogd.local.broker import BrokerFailed, BrokerProcess
from pylogd.local.cluster import LocalBrokers
from tests.rawclient import wait_until

#: Prints that it listens, and stops when it is asked to; with "--stubborn" it ignores that.
PROGRAM = """
import signal, sys
if "--fails" in sys.argv:
    sys.exit("pylogd: no such disk")
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("nothing" if "--odd" in sys.argv else "pylogd listens on PLAINTEXT://127.0.0.1:4711 (node 1)", flush=True)
if "--traceback" in sys.argv:
    print("Traceback (most recent call last)", file=sys.stderr, flush=True)
while True:
    signal.pause()
"""
Start = Callable[..., BrokerProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(local, "pylogd_command", lambda: [sys.executable, "-I", "-S", "-c", PROGRAM])
    started: list[BrokerProcess] = []

    def start(*arguments: str, **options: Any) -> BrokerProcess:
        started.append(BrokerProcess(tmp_path / "data", tmp_path / "log", {"node.id": "7"}, arguments, **options))
        return started[-1]

    yield start
    for broker in started:
        broker.kill()


@pytest.mark.parametrize("bind_life", [True, False])
def test_it_is_waited_for_paused_resumed_and_stopped(start: Start, bind_life: bool) -> None:
    broker = start(bind_life=bind_life)
    assert (broker.address, broker.node_id, broker.exit_code) == ("127.0.0.1:4711", 7, None)
    broker.pause()
    assert broker.stop() == 0  # a paused one is resumed
    assert broker.exit_code == 0


def test_a_kill_is_told_by_the_exit_code(start: Start) -> None:
    broker = start(wait=False)
    broker.wait()
    broker.kill()
    broker.kill()
    assert broker.exit_code == -signal.SIGKILL


@pytest.mark.parametrize(("argument", "why"), [("--fails", "ended before it listened: pylogd: no such disk"),
                                               ("--odd", "wrote no address")])  # fmt: skip
def test_a_start_that_fails_says_why(start: Start, argument: str, why: str) -> None:
    with pytest.raises(BrokerFailed, match=why) as raised:
        start(argument)
    assert "The end of its log" in raised.value.__notes__[0]


def test_one_that_does_not_stop_is_killed(start: Start) -> None:
    broker = start("--stubborn")
    broker.ask_to_stop()
    with pytest.raises(BrokerFailed, match="did not stop within 0 s"):
        broker.join(0.05)
    assert broker.exit_code == -signal.SIGKILL


def test_ports_are_given_out_once() -> None:
    ports = [*free_ports(20), *free_ports(20)]
    assert len(set(ports)) == 40


class Brokers(LocalBrokers):
    """Brokers of which the second one dies, and the third one logs a traceback."""

    def launch(self, node: int, settings: object) -> BrokerProcess:
        arguments = ["--traceback"] if node == 3 else []
        log = self.folder / f"broker{node}.log"
        return BrokerProcess(self.folder / f"broker{node}", log, {"node.id": str(node)}, arguments, wait=False)


@pytest.mark.usefixtures("start")
def test_a_set_of_brokers_reports_what_went_wrong(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, "127.0.0.1:1/chroot", 4)
    for node in brokers.ports:
        brokers.start(node)
    assert brokers.settings["default.replication.factor"] == "3"
    assert brokers.bootstrap == ",".join(brokers.address(node) for node in (1, 2, 3, 4))
    assert brokers.stop(4) == 0
    brokers.pause(1)
    brokers.brokers[2].kill()
    wait_until(lambda: "Traceback" in brokers.log(3), "the traceback")
    died, traceback = brokers.close()
    assert died == f"broker 2 died with exit code {-signal.SIGKILL}"
    assert traceback.startswith("broker 3 logged a traceback")
    assert not brokers.brokers and not brokers.paused
