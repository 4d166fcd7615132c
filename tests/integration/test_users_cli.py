"""`pylogd users`: the first user of a broker that lets nobody in without one, further ones, and hashed passwords."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pylogd.base.ports import free_ports
from pylogd.credentials.passwords import UsersFile
from pylogd.local.broker import pylogd_command
from tests.commands import Outcome, run_command
from tests.integration.conftest import StartBroker
from tests.integration.test_sasl import SECONDS, SaslBroker, refusal, round_trip

SECURE = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
}


def run(*arguments: str, password: str = "", fails: bool = False) -> str:
    """Run `pylogd users`; what it printed, or its error."""
    if arguments[0] == "bootstrap":  # it runs the reactor, which a process can do once
        done: Outcome | subprocess.CompletedProcess[str] = subprocess.run(
            [*pylogd_command(), "users", *arguments], input=password, capture_output=True, text=True, timeout=SECONDS,
            check=False,
        )  # fmt: skip
    else:
        done = run_command("users", *arguments, stdin=password)
    assert (done.returncode != 0) == fails, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if fails else done.stdout


@pytest.fixture
def broker(start_broker: StartBroker) -> SaslBroker:
    return SaslBroker(start_broker)


def test_users_come_and_go(broker: SaslBroker) -> None:
    where = ("-b", broker.process.address)
    run("add", "alice", *where, password="secret\n")
    run("add", "bob", "-m", "SCRAM-SHA-512", "-i", "8192", *where, password="b")
    round_trip(broker.settings("SCRAM-SHA-256"), "t")
    assert run("list", *where) == "alice\tSCRAM-SHA-256\t4096\nalice\tSCRAM-SHA-512\t4096\nbob\tSCRAM-SHA-512\t8192\n"
    assert json.loads(run("list", "bob", "nobody", "--json", *where)) == [
        {"user": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 8192}
    ]
    run("add", "alice", *where, password="changed")
    refusal(broker.settings("SCRAM-SHA-256"))
    round_trip(broker.settings("SCRAM-SHA-256", password="changed"), "t")
    run("remove", "alice", "-m", "SCRAM-SHA-256", *where)
    assert "nobody: no such user" in run("remove", "bob", "nobody", *where, fails=True)
    assert run("list", *where) == "alice\tSCRAM-SHA-512\t4096\n"
    assert "empty" in run("add", "carol", *where, fails=True)


def test_the_first_user(start_broker: StartBroker, tmp_path: Path) -> None:
    data = tmp_path / "secure"
    named = [argument for name, value in SECURE.items() for argument in ("--set", f"{name}={value}")]
    run("bootstrap", "admin", "-d", str(data), *named, password="first")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    broker = start_broker("secure", SECURE, ["--listen", f"CLIENTS://{address}"])
    assert "in use by another process" in run("bootstrap", "eve", "-d", str(data), *named, password="x", fails=True)
    assert "unknown setting" in run("bootstrap", "eve", "--set", "nonsense=1", password="x", fails=True)
    listed = run("list", "-b", broker.address)
    assert listed == "admin\tSCRAM-SHA-256\t4096\nadmin\tSCRAM-SHA-512\t4096\n"
    settings = {"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
    round_trip(settings | {"sasl.username": "admin", "sasl.password": "first"}, "t")


def test_hashed_passwords(tmp_path: Path) -> None:
    printed = run("hash", password="secret")
    assert "secret" not in printed
    (tmp_path / "users").write_text(f"alice:{printed}")
    users = UsersFile(str(tmp_path / "users"))
    assert users.is_right("alice", "secret") and not users.is_right("alice", "wrong")
