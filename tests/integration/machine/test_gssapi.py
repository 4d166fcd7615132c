"""GSSAPI with a real key distribution centre: MIT Kerberos of the system, run by k5test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import Permissions

from pylogd.base.ports import free_ports
from pylogd.config.zookeeper import ZooKeeperSecurity
from pylogd.credentials.conversation import AuthenticationFailed, Challenge, MechanismUnavailable, SaslError, Success
from pylogd.credentials.gssapi import GssapiClient, GssapiMechanism
from pylogd.credentials.principal import USER, Principal
from pylogd.local.broker import BrokerFailed
from pylogd.local.zookeeper import LocalZooKeeper
from tests.integration.clusters.test_secure_replication import replicates
from tests.integration.conftest import StartBroker
from tests.integration.sasl_clients import round_trip_with_aiokafka, round_trip_with_kafka_python
from tests.rawclient import RawClient, create_topic
from tests.zookeeper import ZooKeeper

k5test = pytest.importorskip("k5test")
gssapi = pytest.importorskip("gssapi")
pytestmark = pytest.mark.skipif(
    shutil.which("krb5kdc", path=f"{os.environ.get('PATH')}:/usr/sbin") is None, reason="needs krb5-kdc"
)

HOST = "localhost"
SECONDS = 60.0


@pytest.fixture(scope="module")
def realm() -> Iterator[Any]:
    """A realm with the service kafka/localhost, whose user has a ticket. The process's environment points to it."""
    before = dict(os.environ)
    os.environ["PATH"] += ":/usr/sbin"
    made = k5test.K5Realm(start_kadmind=False)
    made.addprinc(f"kafka/{HOST}")
    made.extract_keytab(f"kafka/{HOST}", made.keytab)
    made.addprinc(f"other/{HOST}")
    made.addprinc("mallory", "password")
    os.environ.update(made.env)
    yield made
    made.stop()
    os.environ.clear()
    os.environ.update(before)


def converse(client: GssapiClient, mechanism: GssapiMechanism) -> Success:
    """Let both sides talk to the end."""
    server = mechanism.start()
    message = client.first()
    for _ in range(10):
        assert server.is_slow(message)
        step = server.step(message)
        if isinstance(step, Success):
            assert client.step(step.message) is None
            return step
        assert isinstance(step, Challenge)
        message = client.step(step.message) or b""
    raise AssertionError("the conversation does not end")


def mechanism_of(realm: Any, *rules: str) -> GssapiMechanism:
    return GssapiMechanism(realm.keytab, f"kafka/{HOST}@{realm.realm}", None, list(rules))


def test_the_conversation(realm: Any) -> None:
    user = realm.user_princ.partition("@")[0]
    success = converse(GssapiClient("kafka", HOST), mechanism_of(realm))
    assert success == Success(Principal(USER, user))
    rules = (rf"RULE:[1:$1@$0](.*@{realm.realm})s/@.*/.local/U", "DEFAULT")
    assert converse(GssapiClient("kafka", HOST), mechanism_of(realm, *rules)).principal.name == f"{user}.LOCAL".upper()
    by_service = GssapiMechanism(realm.keytab, None, "kafka", [rf"RULE:[1:$1@$0](.*@{realm.realm})s/@.*//"])
    assert converse(GssapiClient("kafka", HOST), by_service) == Success(Principal(USER, user))


def test_a_client_with_a_keytab(realm: Any, tmp_path: Any) -> None:
    keytab = str(tmp_path / "mallory.keytab")
    realm.extract_keytab("mallory", keytab)
    client = GssapiClient("kafka", HOST, keytab, f"mallory@{realm.realm}")
    assert converse(client, mechanism_of(realm)).principal == Principal(USER, "mallory")


@pytest.mark.parametrize(("choice", "user"), [(b"\x01\0\0\0admin", "user"), (b"\x02\0\0\0", None), (b"\x01", None)])
def test_the_last_message(realm: Any, choice: bytes, user: str | None) -> None:
    """A client can't act as another, and can't have a security layer."""
    server, client = mechanism_of(realm).start(), GssapiClient("kafka", HOST)
    message = client.first()
    while not client._context.complete:
        step = server.step(message)
        message = client.step(step.message) or b""
    server.step(message)
    last = client._context.wrap(choice, False).message
    if user is None:
        with pytest.raises(SaslError, match="security layer"):
            server.step(last)
    else:
        assert server.step(last) == Success(Principal(USER, user))


@pytest.mark.parametrize("message", [b"", b"garbage", b"\x60\x82" + bytes(100)])
def test_garbage_is_refused(realm: Any, message: bytes) -> None:
    with pytest.raises(SaslError):
        mechanism_of(realm).start().step(message)
    client = GssapiClient("kafka", HOST)
    client.first()
    with pytest.raises(SaslError):
        client.step(b"garbage")


def test_a_ticket_for_another_service_is_refused(realm: Any) -> None:
    """The client is told that authentication failed, and the failure is counted; Kerberos's own error is not sent."""
    with pytest.raises(AuthenticationFailed, match="Kerberos refuses"):
        mechanism_of(realm).start().step(GssapiClient("other", HOST).first())


def test_what_is_missing_is_said(realm: Any, tmp_path: Any) -> None:
    with pytest.raises(MechanismUnavailable, match="keys in"):
        GssapiMechanism(str(tmp_path / "nothing"), f"kafka/{HOST}@{realm.realm}", None, [])
    with pytest.raises(MechanismUnavailable, match=r"to\.local\.rules"):
        mechanism_of(realm, "nonsense")
    with pytest.raises(SaslError):
        GssapiClient("unknown", HOST).first()


@pytest.fixture
def settings(realm: Any, start_broker: StartBroker) -> dict[str, Any]:
    """The settings of a client of a broker that wants GSSAPI."""
    address = f"{HOST}:{free_ports(1)[0]}"
    jaas = f'Krb5LoginModule required keyTab="{realm.keytab}" principal="kafka/{HOST}@{realm.realm}";'
    start_broker(
        settings={
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "listener.name.clients.sasl.enabled.mechanisms": "GSSAPI",
            "listener.name.clients.gssapi.sasl.jaas.config": jaas,
            "sasl.kerberos.service.name": "kafka",
        },
        arguments=["--listen", f"CLIENTS://{address}"],
    )
    return {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
        "sasl_kerberos_domain_name": HOST,
    }


def test_kafka_python(settings: dict[str, Any]) -> None:
    round_trip_with_kafka_python(settings)


def test_aiokafka(settings: dict[str, Any]) -> None:
    round_trip_with_aiokafka(settings)


@pytest.fixture
def zookeeper_with_tickets(realm: Any, tmp_path: Path) -> Iterator[LocalZooKeeper]:
    """A ZooKeeper server that accepts clients with tickets only."""
    principal, keytab = f"zookeeper/{HOST}@{realm.realm}", tmp_path / "zookeeper.keytab"
    realm.addprinc(f"zookeeper/{HOST}")
    realm.extract_keytab(f"zookeeper/{HOST}", str(keytab))
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        "Server {\n  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'useTicketCache=false keyTab="{keytab}" principal="{principal}";\n}};\n'
    )
    options = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled": "true", "enforce.auth.schemes": "sasl",
    }  # fmt: skip
    java = [f"-Djava.security.auth.login.config={jaas}", f"-Djava.security.krb5.conf={realm.env['KRB5_CONFIG']}"]
    with LocalZooKeeper(tmp_path / "zookeeper", sync=False, options=options, java_options=java) as server:
        yield server


def test_a_broker_authenticates_at_zookeeper(
    realm: Any, zookeeper_with_tickets: LocalZooKeeper, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes belong to the principal of the ticket; without a ticket it does not start."""
    pytest.importorskip("kerberos", reason="pure-sasl has GSSAPI with pykerberos only")
    port = zookeeper_with_tickets.hosts.rpartition(":")[2]
    settings = {
        "zookeeper.connect": f"{HOST}:{port}/tickets", "zookeeper.sasl.mechanism": "GSSAPI",
        "zookeeper.set.acl": "true", "zookeeper.connection.timeout.ms": "10000",
    }  # fmt: skip
    broker = start_broker("one", settings)
    with RawClient(broker.address) as client:
        create_topic(client, "t")
    security = ZooKeeperSecurity(sasl_mechanism="GSSAPI")
    client = KazooClient(f"{HOST}:{port}/tickets", **security.kazoo_arguments())
    client.start(SECONDS)
    owners = {(acl.id.scheme, acl.id.id, acl.perms) for acl in client.get_acls("/brokers/topics/t")[0]}
    client.stop()
    client.close()
    assert ("sasl", realm.user_princ, Permissions.ALL) in owners
    monkeypatch.setenv("KRB5CCNAME", "/nowhere")
    with pytest.raises(BrokerFailed):
        start_broker("two", settings | {"node.id": "2"})


def test_brokers_replicate_with_tickets(realm: Any, zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """Each broker has the keys of kafka/localhost, and is `kafka` for the others. Sessions last two seconds."""
    jaas = f'Krb5LoginModule required keyTab="{realm.keytab}" principal="kafka/{HOST}@{realm.realm}";'
    replicates(
        zookeeper.connect, tmp_path, "GSSAPI",
        {"gssapi.sasl.jaas.config": jaas, "sasl.kerberos.service.name": "kafka"},
        host=HOST, user="kafka",
    )  # fmt: skip
