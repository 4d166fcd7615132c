"""A schema registry process with TLS, passwords and bearer tokens, with pylogd's client and Confluent's."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaRegistryClient as ConfluentClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from joserfc import jwk, jwt

from pylogd.client.registry.avro import SchemaRegistryClient, SchemaRegistryError
from pylogd.local.broker import BrokerProcess, pylogd_command
from tests.integration.conftest import StartBroker
from tests.registries import AT_ONCE, RegistryProcess

SECONDS = 120
BASIC = {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "ada:secret of ada"}
KEY = jwk.ECKey.generate_key("P-256", {"kid": "k"})


class Certificates(NamedTuple):
    """PEM files: an authority, and a certificate with its key for 127.0.0.1."""

    authority: str
    own: str


def make_certificates(folder: Path) -> Certificates:
    now = datetime.datetime.now(tz=datetime.UTC)

    def build(name: str, key: ec.EllipticCurvePrivateKey, issuer: str) -> x509.CertificateBuilder:
        subject, by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer))
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(by).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        return builder.not_valid_after(now + datetime.timedelta(days=1))

    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = build("authority", ca_key, "authority").add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = build("registry", key, "authority").add_extension(names, False)
    pem = serialization.Encoding.PEM
    paths = Certificates(str(folder / "ca.pem"), str(folder / "own.pem"))
    Path(paths.authority).write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    Path(paths.own).write_bytes(leaf.sign(ca_key, hashes.SHA256()).public_bytes(pem) + private)
    return paths


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(settings=AT_ONCE)


@pytest.fixture
def registry(broker: BrokerProcess, certificates: Certificates, tmp_path: Path) -> Iterator[RegistryProcess]:
    """A registry with TLS, one user, and the key of a token issuer."""
    users, keys = tmp_path / "users", tmp_path / "keys.json"
    subprocess.run(
        [*pylogd_command(), "schema-registry", "--users", str(users), "--add-user", "ada"],
        input=b"secret of ada\n", check=True, timeout=SECONDS,
    )  # fmt: skip
    assert "secret" not in users.read_text()
    keys.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
    process = RegistryProcess(
        broker.address, tmp_path / "registry.log", "--tls-certificate", certificates.own, "--users", str(users),
        "--jwks", str(keys), "--token-audience", "registry",
    )  # fmt: skip
    yield process
    assert process.stop() == 0
    assert "secret of ada" not in (tmp_path / "registry.log").read_text()


def status(url: str, certificates: Certificates, authorization: str | None = None) -> tuple[int, list[str]]:
    """Return the status of a request and the challenges in its response."""
    request = urllib.request.Request(url)
    if authorization is not None:
        request.add_header("Authorization", authorization)
    context = ssl.create_default_context(cafile=certificates.authority)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS, context=context) as reply:
            return reply.status, []
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get_all("WWW-Authenticate") or []


def test_only_known_users_are_served(registry: RegistryProcess, certificates: Certificates) -> None:
    assert registry.url.startswith("https://")
    code, challenges = status(f"{registry.url}/subjects", certificates)
    assert code == 401 and [each.split()[0] for each in challenges] == ["Basic", "Bearer"]
    bearer = "Bearer " + jwt.encode(
        {"alg": "ES256", "kid": "k"}, {"sub": "spark", "exp": int(time.time()) + 600, "aud": "registry"}, KEY
    )
    assert status(f"{registry.url}/subjects", certificates, bearer) == (200, [])
    assert status(f"{registry.url}/subjects", certificates, bearer[:-8])[0] == 401
    assert status(f"{registry.url}/subjects", certificates, "Basic YWRhOndyb25n")[0] == 401
    assert status(f"{registry.url}/nowhere", certificates)[0] == 401, "strangers learn of no path"


def test_clients_register_and_read_over_tls(registry: RegistryProcess, certificates: Certificates) -> None:
    ours = SchemaRegistryClient(registry.url, settings={**BASIC, "ssl.truststore.location": certificates.authority})
    assert ours.register("s", '"string"') == 1
    theirs = ConfluentClient(
        {"url": registry.url, "basic.auth.user.info": "ada:secret of ada", "ssl.ca.location": certificates.authority}
    )
    assert theirs.register_schema("s", ConfluentSchema('"string"', "AVRO")) == 1
    with pytest.raises(SchemaRegistryError, match="CERTIFICATE_VERIFY_FAILED"):
        SchemaRegistryClient(registry.url, settings=BASIC).register("t", '"string"')
    wrong = {**BASIC, "basic.auth.user.info": "ada:wrong", "ssl.truststore.location": certificates.authority}
    with pytest.raises(SchemaRegistryError, match="credentials are not valid") as caught:
        SchemaRegistryClient(registry.url, settings=wrong).register("t", '"string"')
    assert caught.value.code == 40101


def test_the_command_line_over_tls_with_a_password(
    registry: RegistryProcess, certificates: Certificates, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"basic.auth.user.info=ada:secret of ada\nssl.truststore.location={certificates.authority}\n")

    def run(*arguments: str, given: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [*pylogd_command(), "schemas", *arguments, "--schema-registry", registry.url], input=given,
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
        return done.stdout or done.stderr

    known = ["--command-config", str(config)]
    assert run("register", "s", "-", "--type", "avro", *known, given='"int"') == "1\n"
    assert run("check", "s", "-", "--type", "avro", *known, given='"long"') == "compatible\n"
    assert run("list", *known) == "s\t1\t1\tAVRO\t0\n"
    assert run("show", "s", *known) == '"int"\n'
    assert "CERTIFICATE_VERIFY_FAILED" in run("list", code=1)
    config.write_text(f"ssl.truststore.location={certificates.authority}\n")
    assert "credentials are required" in run("list", *known, code=1)


def test_certificates_of_clients_can_be_required(
    broker: BrokerProcess, certificates: Certificates, tmp_path: Path
) -> None:
    registry = RegistryProcess(
        broker.address, tmp_path / "log", "--tls-certificate", certificates.own, "--tls-client-ca",
        certificates.authority,
    )  # fmt: skip
    trusted = {"ssl.truststore.location": certificates.authority}
    ours = SchemaRegistryClient(registry.url, settings={**trusted, "ssl.keystore.location": certificates.own})
    assert ours.register("s", '"string"') == 1
    with pytest.raises(SchemaRegistryError, match="can't reach"):
        SchemaRegistryClient(registry.url, settings=trusted).register("s", '"string"')
    assert registry.stop() == 0


def test_changes_are_sent_to_the_leader_over_tls_with_the_credentials_of_the_client(
    registry: RegistryProcess, broker: BrokerProcess, certificates: Certificates, tmp_path: Path
) -> None:
    options = ["--tls-certificate", certificates.own, "--users", str(tmp_path / "users"), "--never-leader"]
    settings = {**BASIC, "ssl.truststore.location": certificates.authority}
    for number, more in enumerate(([], ["--leader-ca", certificates.authority])):
        log = tmp_path / f"follower{number}.log"
        follower = RegistryProcess(broker.address, log, *options, *more)
        client = SchemaRegistryClient(follower.url, 60.0, settings)
        try:
            if more:
                assert client.register("s", '"string"') == 1
                assert SchemaRegistryClient(registry.url, settings=settings).register("s", '"string"') == 1
            else:
                with pytest.raises(SchemaRegistryError, match="certificate verify failed") as refused:
                    client.register("s", '"string"')
                assert refused.value.code == 50003, "the leader's certificate is of an authority that nobody trusts"
        finally:
            assert follower.stop() == 0
        assert "secret of ada" not in log.read_text() and "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--tls-key", "OWN"], "need --tls-certificate"),
        (["--tls-certificate", "CA"], "can't use the certificate or its key"),
        (["--users", "none"], "can't read the users in"),
        (["--jwks", "none.json"], "can't get the keys"),
        (["--add-user", "ada"], "--add-user needs --users"),
    ],
)
def test_wrong_options_are_one_line_of_error(
    broker: BrokerProcess, certificates: Certificates, options: list[str], text: str
) -> None:
    words = [{"OWN": certificates.own, "CA": certificates.authority}.get(word, word) for word in options]
    done = subprocess.run(
        [*pylogd_command(), "schema-registry", "-b", broker.address, "-l", "127.0.0.1:0", *words],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2) and text in done.stderr and "Traceback" not in done.stderr
