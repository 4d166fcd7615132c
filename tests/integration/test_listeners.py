"""Listeners of real brokers: TLS with unmodified clients, addresses by listener, changes at run time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from pylogd.client.properties import parse_properties, security_from
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import BrokerProcess, pylogd_command
from pylogd.wire.messages.metadata import MetadataRequest
from tests.integration.conftest import StartBroker
from tests.rawclient import PATIENCE, RawClient, wait_until

SSL_LISTENER = ["--listen", "SSL://127.0.0.1:0"]


class Secured:
    """A broker with a plain listener and one with TLS, and its certificate authority."""

    def __init__(self, folder: Path, start: StartBroker, settings: Mapping[str, str] | None = None) -> None:
        self.authority = Authority.open(folder / "ca")
        self.ca = str(folder / "ca" / "authority.pem")
        self.keystore = folder / "broker.pem"
        self.certify("first")
        more = {
            "ssl.keystore.location": str(self.keystore), "ssl.truststore.location": self.ca, **(settings or {}),
        }  # fmt: skip
        self.broker: BrokerProcess = start(settings=more, arguments=SSL_LISTENER)
        self.plain = self.broker.address
        found = re.search(r"SSL://(127\.0\.0\.1:\d+)", self.broker.log())
        assert found is not None
        self.tls = found[1]
        self.client_pem = folder / "client.pem"
        write_secret(self.client_pem, self.authority.issue("alice").pem)

    def certify(self, name: str, **more: Any) -> None:
        """Give the broker a new certificate."""
        write_secret(self.keystore, self.authority.issue(name, ["localhost", "127.0.0.1"], **more).pem)

    def options(self) -> dict[str, str]:
        """For librdkafka, with a client's certificate."""
        return {
            "bootstrap.servers": self.tls, "security.protocol": "ssl", "ssl.ca.location": self.ca,
            "ssl.certificate.location": str(self.client_pem), "ssl.key.location": str(self.client_pem),
        }  # fmt: skip

    def connect(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.client_pem)
        host, _, port = self.tls.rpartition(":")
        plain = socket.create_connection((host, int(port)), PATIENCE)
        try:
            return context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def shown(self) -> str:
        """The name in the certificate that the broker shows."""
        with self.connect() as connection:
            certificate: Any = connection.getpeercert()
            return str(dict(part[0] for part in certificate["subject"])["commonName"])

    def alter(self, name: str, value: str) -> None:
        """Change a setting of the broker by its plain listener."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.plain})
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(PATIENCE)


@pytest.fixture
def secured(tmp_path: Path, start_broker: StartBroker) -> Secured:
    return Secured(tmp_path, start_broker, {"ssl.client.auth": "required"})


def test_librdkafka_produces_and_consumes_with_certificates_on_both_sides(secured: Secured, topic: str) -> None:
    values = [os.urandom(50_000) for _ in range(200)]
    producer = Producer(secured.options())
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE) == 0
    consumer = Consumer({**secured.options(), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received: list[bytes | None] = []
    while len(received) < len(values):
        (message,) = consumer.consume(1, PATIENCE)
        assert message.error() is None
        received.append(message.value())
    consumer.close()
    assert received == values


def test_a_client_without_a_certificate_is_refused(secured: Secured) -> None:
    address = secured.tls
    asked = ["openssl", "s_client", "-connect", address, "-CAfile", secured.ca, "-tls1_2"]
    refused = subprocess.run(asked, input="", capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert refused.returncode != 0
    assert "alert" in refused.stderr
    shown = [*asked, "-cert", str(secured.client_pem), "-key", str(secured.client_pem), "-brief"]
    taken = subprocess.run(shown, input="", capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert taken.returncode == 0
    assert "Verification: OK" in taken.stderr
    wait_until(lambda: "The TLS handshake with 127.0.0.1 failed" in secured.broker.log(), "a line in the log")


def test_openssl_resumes_sessions(secured: Secured, tmp_path: Path) -> None:
    session = tmp_path / "session.pem"
    asked = [
        "openssl", "s_client", "-connect", secured.tls, "-CAfile", secured.ca, "-tls1_2",
        "-cert", str(secured.client_pem), "-key", str(secured.client_pem),
    ]  # fmt: skip
    first = subprocess.run([*asked, "-sess_out", str(session)], input="", capture_output=True, text=True,
                           timeout=PATIENCE, check=True)  # fmt: skip
    again = subprocess.run([*asked, "-sess_in", str(session)], input="", capture_output=True, text=True,
                           timeout=PATIENCE, check=True)  # fmt: skip
    assert "\nNew, " in first.stdout
    assert "\nReused, " in again.stdout


def test_each_listener_tells_its_own_addresses(secured: Secured) -> None:
    def told(client: RawClient) -> str:
        (found,) = client.request(MetadataRequest([]), 12).brokers
        return f"{found.host}:{found.port}"

    with RawClient(secured.plain) as client:
        assert told(client) == secured.plain
        with secured.connect() as connection:
            client.close()
            client.socket = connection
            assert told(client) == secured.tls


@pytest.mark.parametrize("how", ["the files change and SIGHUP", "AlterConfigs of the same value", "AlterConfigs"])
def test_certificates_are_read_again_while_connections_stay(secured: Secured, tmp_path: Path, how: str) -> None:
    name = "listener.name.ssl.ssl.keystore.location"
    with secured.connect() as before:
        secured.alter(name, str(secured.keystore))
        assert secured.shown() == "first"
        if how == "AlterConfigs":
            secured.keystore = tmp_path / "other.pem"
        secured.certify("second")
        if how.startswith("AlterConfigs"):
            secured.alter(name, str(secured.keystore))
        else:
            os.kill(secured.broker.pid, signal.SIGHUP)
        wait_until(lambda: secured.shown() == "second", "the new certificate")
        with RawClient(secured.plain) as client:
            client.close()
            client.socket = before
            assert client.request(MetadataRequest([]), 12).brokers


def test_a_broken_certificate_leaves_the_old_one_in_use(secured: Secured) -> None:
    good = secured.keystore.read_text()
    secured.keystore.write_text(good[:500])
    os.kill(secured.broker.pid, signal.SIGHUP)
    wait_until(lambda: "the certificates of listener SSL stay in use" in secured.broker.log(), "a line in the log")
    assert secured.shown() == "first"
    secured.certify("second")
    os.kill(secured.broker.pid, signal.SIGHUP)
    wait_until(lambda: secured.shown() == "second", "the new certificate")


def test_a_change_to_a_certificate_that_can_not_be_used_is_refused(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for name in ("missing.pem", "bad.pem"):
        with pytest.raises(KafkaException, match=name):
            secured.alter("listener.name.ssl.ssl.keystore.location", str(tmp_path / name))
    assert secured.shown() == "first"


def test_limits_hold_as_soon_as_they_are_changed(secured: Secured) -> None:
    secured.alter("listener.name.ssl.max.connections", "2")
    with secured.connect() as first, secured.connect(), ThreadPoolExecutor(2) as pool:
        third, fourth = pool.submit(secured.connect), pool.submit(secured.connect)
        said = "New connections to listener SSL wait until others end: listener.name.ssl.max.connections=2 is reached"
        wait_until(lambda: said in secured.broker.log(), "a line in the log")
        assert not third.done() and not fourth.done()
        first.close()
        wait_until(lambda: third.done() or fourth.done(), "one of those that wait")
        secured.alter("listener.name.ssl.max.connections", "100")
        for waited in (third, fourth):
            waited.result(PATIENCE).close()


def test_an_operator_gets_in_by_the_listener_between_brokers(secured: Secured) -> None:
    with secured.connect() as idle:
        secured.alter("max.connections", "1")
        with RawClient(secured.plain) as one, RawClient(secured.plain) as two, ThreadPoolExecutor(1) as pool:
            assert one.request(MetadataRequest([]), 12).brokers
            assert two.request(MetadataRequest([]), 12).brokers
            with contextlib.suppress(ConnectionError):
                assert idle.recv(1) == b"", "it was closed to make room"
            waiting = pool.submit(secured.shown)
            secured.alter("max.connections", "100")
            assert waiting.result(PATIENCE) == "first"


def test_handshakes_that_never_end_do_not_hold_up_others(tmp_path: Path, start_broker: StartBroker) -> None:
    settings = {"max.connections.handshaking": "20", "connection.handshake.timeout.ms": "600000"}
    secured = Secured(tmp_path, start_broker, settings)
    host, _, port = secured.tls.rpartition(":")
    idle = [socket.create_connection((host, int(port)), PATIENCE) for _ in range(100)]
    garbage = [socket.create_connection((host, int(port)), PATIENCE) for _ in range(100)]
    for connection in garbage:
        with contextlib.suppress(OSError):  # it has been closed already
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    assert secured.shown() == "first"
    assert secured.broker.log().count("max.connections.handshaking=20 is reached") <= 100
    for connection in idle + garbage:
        connection.close()


def test_a_plain_listener_for_everybody_is_warned_of(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=["--listen", "0.0.0.0:0"])
    (line,) = [line for line in broker.log().splitlines() if "does not encrypt" in line or "do not encrypt" in line]
    assert "ssl.keystore.location" in line
    assert "PLAINTEXT2" in line


def test_a_secure_cluster_to_try(tmp_path: Path, topic: str) -> None:
    folder = tmp_path / "cluster"
    command = [*pylogd_command(), "cluster", "up", "-n", "2", "-p", "0", "--secure", "--data", str(folder)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("client configurations: "):
            lines.append(process.stdout.readline())
            assert lines[-1], (tmp_path / "log").read_text()
        bootstrap = lines[-2].removeprefix("bootstrap servers: ").strip()
        with RawClient(bootstrap.partition(",")[0]) as client:
            client.send_request(MetadataRequest([]), 12)
            assert client.is_closed_by_broker(), "plain text"
        text = (folder / "tls" / "admin.properties").read_text()
        properties = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
        keystore = properties["ssl.keystore.location"]
        assert Path(keystore).stat().st_mode & 0o077 == 0
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "security.protocol": "ssl",
                "ssl.ca.location": properties["ssl.truststore.location"],
                "ssl.certificate.location": keystore,
                "ssl.key.location": keystore,
                "acks": "all",
            }
        )
        name = f"bob-{topic}"  # which bob owns, and carol may read
        producer.produce(name, b"value")
        assert producer.flush(PATIENCE) == 0
        prefix = "bootstrap servers with passwords (SASL_SSL): "
        (with_password,) = [line.removeprefix(prefix).strip() for line in lines if line.startswith(prefix)]
        for user in ("bob", "carol"):
            path = folder / "tls" / f"{user}.properties"
            assert path.stat().st_mode & 0o077 == 0
            assert security_from(parse_properties(path.read_text())) is not None
            command = [*pylogd_command(), "topics", "list", "-b", with_password, "--command-config", str(path)]
            shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
            assert (shown.returncode, name in shown.stdout) == (0, True), shown.stderr
    finally:
        process.terminate()
        process.wait(PATIENCE)
