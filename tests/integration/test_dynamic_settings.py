"""Settings that are changed while a real broker runs: each has its effect at once, and after a restart."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.base.ports import free_ports
from pylogd.client import Admin, SecurityOptions
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.rawclient import wait_until

MAP = "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,MORE:PLAINTEXT,TLS:SSL"
ALICE = 'Module required user_alice="secret";'
BOB = 'Module required user_bob="other";'
BUILDER = """\
from pylogd.credentials.principal import Principal

class Teams:
    def __init__(self, settings): pass
    def build(self, authentication):
        return Principal("Team", authentication.listener.lower())
"""


class Dynamic:
    """A broker with a plain listener and one with SASL, whose settings are changed."""

    def __init__(self, start: StartBroker, folder: Path) -> None:
        self._start = start
        (folder / "dynamic_teams.py").write_text(BUILDER)
        ports = free_ports(3)
        self.plain, self.clients, self.more = (f"127.0.0.1:{port}" for port in ports)
        self._port = ports[0]
        self.broker = self.run()

    def run(self) -> BrokerProcess:
        self.broker = self._start(
            settings={
                "listener.security.protocol.map": MAP, "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.clients.plain.sasl.jaas.config": ALICE, "password.encoder.secret": "a secret",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS;User:alice;User:bob;Team:more",
            },
            arguments=["--listen", f"CLIENTS://{self.clients}"], port=self._port,
        )  # fmt: skip
        return self.broker

    def restart(self) -> None:
        assert self.broker.stop() == 0
        self.run()

    def alter(self, whose: str, **changes: str | None) -> None:
        named = {name.replace("_", "."): value for name, value in changes.items()}
        with Admin(self.plain) as admin:
            admin.alter_configs("broker", whose, named)

    def value(self, name: str) -> tuple[str | None, str]:
        with Admin(self.plain) as admin:
            (entry,) = admin.describe_configs("broker", "1", [name])
            return entry.value, entry.source

    def listeners(self, *names: str) -> str:
        found = {"PLAINTEXT": self.plain, "CLIENTS": self.clients, "MORE": self.more}
        return ",".join(f"{name}://{found[name]}" for name in names)


@pytest.fixture
def dynamic(start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dynamic:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return Dynamic(start_broker, tmp_path)


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return False
    return True


def may_log_in(address: str, mechanism: str, user: str, password: str) -> bool:
    security = SecurityOptions(
        protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_username=user, sasl_password=password
    )
    try:
        with Admin(address, security=security, request_timeout=10.0) as admin:
            admin.list_topics()
    except PylogdError:
        return False
    return True


def refused(change: Any, *arguments: Any, **changes: Any) -> str:
    with pytest.raises(KafkaError) as caught:
        change(*arguments, **changes)
    assert caught.value.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
    return str(caught.value)


def test_listeners_are_added_removed_and_kept_over_a_restart(dynamic: Dynamic) -> None:
    assert not listens(dynamic.more)
    with Admin(dynamic.clients, security=SecurityOptions(protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
               sasl_username="alice", sasl_password="secret")) as connected:  # fmt: skip
        connected.list_topics()
        dynamic.alter("1", listeners=dynamic.listeners("PLAINTEXT", "CLIENTS", "MORE"))
        wait_until(lambda: listens(dynamic.more), "the new listener")
        with Admin(dynamic.more) as admin:
            admin.list_topics()
            assert [(one.host, one.port) for one in admin.describe_cluster().brokers] == [
                ("127.0.0.1", int(dynamic.more.rpartition(":")[2]))
            ]
        connected.list_topics()  # other listeners and their connections stay
        taken = socket.create_server(("127.0.0.1", 0))
        with taken:
            text = f"{dynamic.listeners('PLAINTEXT')},MORE://127.0.0.1:{taken.getsockname()[1]}"
            assert "can't listen on MORE" in refused(dynamic.alter, "1", listeners=text)
        assert "between brokers" in refused(dynamic.alter, "1", listeners=dynamic.listeners("CLIENTS", "MORE"))
        assert "for all brokers" in refused(dynamic.alter, "", listeners=dynamic.listeners("PLAINTEXT"))
        dynamic.alter("1", listeners=dynamic.listeners("PLAINTEXT", "MORE"))
        wait_until(lambda: not listens(dynamic.clients), "the listener to be closed")
    dynamic.restart()
    assert listens(dynamic.more) and not listens(dynamic.clients)
    dynamic.alter("1", listeners=None)
    wait_until(lambda: listens(dynamic.clients) and not listens(dynamic.more), "the listeners of the start")


def test_a_listener_with_tls_is_added_to_a_broker_without(dynamic: Dynamic, tmp_path: Path) -> None:
    authority = Authority.open(tmp_path / "ca")
    keystore = tmp_path / "broker.pem"
    text = f"{dynamic.listeners('PLAINTEXT', 'CLIENTS')},TLS://{dynamic.more}"
    assert "ssl.keystore.location" in refused(dynamic.alter, "1", listeners=text)
    with_keystore = {"listeners": text, "listener_name_tls_ssl_keystore_location": str(keystore)}
    assert "broker.pem" in refused(dynamic.alter, "1", **with_keystore)  # which is not there yet
    write_secret(keystore, authority.issue("broker", ["localhost", "127.0.0.1"]).pem)
    dynamic.alter("1", **with_keystore)
    wait_until(lambda: listens(dynamic.more), "the new listener")
    security = SecurityOptions(protocol="SSL", ssl_ca=str(tmp_path / "ca" / "authority.pem"))
    with Admin(dynamic.more, security=security) as admin:
        admin.list_topics()


def test_mechanisms_and_credentials_of_a_listener_change(dynamic: Dynamic) -> None:
    assert may_log_in(dynamic.clients, "PLAIN", "alice", "secret")
    assert not may_log_in(dynamic.clients, "PLAIN", "bob", "other")
    dynamic.alter("1", listener_name_clients_plain_sasl_jaas_config=BOB)
    wait_until(lambda: may_log_in(dynamic.clients, "PLAIN", "bob", "other"), "the new password")
    assert not may_log_in(dynamic.clients, "PLAIN", "alice", "secret")
    assert dynamic.value("listener.name.clients.plain.sasl.jaas.config") == (None, "broker, at run time")
    assert "user_<name>" in refused(dynamic.alter, "1", listener_name_clients_plain_sasl_jaas_config="Module required;")
    dynamic.alter("1", sasl_enabled_mechanisms="SCRAM-SHA-256")
    wait_until(lambda: not may_log_in(dynamic.clients, "PLAIN", "bob", "other"), "PLAIN to be offered no more")
    dynamic.restart()
    assert not may_log_in(dynamic.clients, "PLAIN", "bob", "other")
    dynamic.alter("1", sasl_enabled_mechanisms=None)
    wait_until(lambda: may_log_in(dynamic.clients, "PLAIN", "bob", "other"), "PLAIN to be offered again")


def test_a_principal_builder_names_new_connections(dynamic: Dynamic) -> None:
    dynamic.alter("1", listeners=dynamic.listeners("PLAINTEXT", "CLIENTS", "MORE"))
    wait_until(lambda: listens(dynamic.more), "the new listener")
    assert "can't be used" in refused(dynamic.alter, "1", principal_builder_class="dynamic_teams.Missing")
    dynamic.alter("1", principal_builder_class="dynamic_teams.Teams")
    with pytest.raises(KafkaError) as caught, Admin(dynamic.plain) as admin:  # Team:plaintext, no longer ANONYMOUS
        admin.describe_configs("broker", "1")
    assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    dynamic.restart()
    with Admin(dynamic.more) as admin:  # Team:more
        admin.alter_configs("broker", "1", {"principal.builder.class": None})
    assert dynamic.value("principal.builder.class") == (None, "default")


def test_the_cleaner_of_all_brokers_and_of_one(dynamic: Dynamic) -> None:
    dynamic.alter("", log_cleaner_threads="3", log_cleaner_backoff_ms="50", background_threads="4")
    assert dynamic.value("log.cleaner.threads") == ("3", "all brokers, at run time")
    dynamic.alter("1", log_cleaner_threads="2")
    assert dynamic.value("log.cleaner.threads") == ("2", "broker, at run time")
    assert "at least 1" in refused(dynamic.alter, "1", log_cleaner_threads="0")
    dynamic.restart()
    assert dynamic.value("log.cleaner.threads") == ("2", "broker, at run time")
    assert dynamic.value("log.cleaner.backoff.ms") == ("50", "all brokers, at run time")
    assert dynamic.value("background.threads") == ("4", "all brokers, at run time")
