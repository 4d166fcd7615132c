"""Run a secured broker, pylogd or Apache Kafka, with users of each mechanism.

Listeners: PLAINTEXT (for the run itself; everything is allowed there), SASL_SSL, SESSIONS (SASL_SSL with short
sessions) and CERTIFICATES (TLS with certificates of clients). The authority is the one of `pylogd cluster up --secure`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from conformance import kafka_peer
from conformance.brokers import watched
from conformance.checks import Missing
from conformance.secure import kerberos
from conformance.secure.tasks import CLOSED, MECHANISMS, SESSION_MS, Login, Logins, Peer
from conformance.secure.tokens import AUDIENCE, ISSUER, Issuer
from pylogd.base.ports import free_ports
from pylogd.local.authority import Authority, write_secret
from pylogd.local.broker import BrokerProcess

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
HOST: Final = kerberos.HOST
_SASL_LISTENERS: Final = ("SASL_SSL", "SESSIONS")
_SECONDS: Final = 60.0
_USERS: Final = {
    "PLAIN": "paul", "SCRAM-SHA-256": "sam", "SCRAM-SHA-512": "sue", "OAUTHBEARER": "otto", "GSSAPI": "greta",
}  # fmt: skip
_WITH_CERTIFICATE: Final = "tess"
_MODULES: Final = "org.apache.kafka.common.security"


@contextmanager
def running(kind: str, folder: Path) -> Iterator[Peer]:
    """Run a broker of either kind. Raises Missing."""
    with ExitStack() as stack:
        realm, why = None, ""
        try:
            realm = stack.enter_context(kerberos.running(folder))
        except Missing as missing:
            why = str(missing)
        issuer = Issuer(folder)
        logins = _logins(issuer, realm)
        certificate = _certificates(folder)
        ports = dict(zip((*_SASL_LISTENERS, "CERTIFICATES"), free_ports(3), strict=True))
        settings = _settings(folder, issuer, realm, logins)
        if kind == "kafka":
            options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{issuer.keys}"]
            if realm is not None:
                options.append(f"-Djava.security.krb5.conf={realm.environment['KRB5_CONFIG']}")
            more = settings | _of_kafka_only()
            listeners = {name: f"{HOST}:{port}" for name, port in ports.items()}
            admin = stack.enter_context(kafka_peer.running(folder, more, listeners, options))
        else:
            admin = stack.enter_context(watched(_pylogd(folder, settings, ports))).address
        _make_users(admin, logins, certificate)
        addresses = {name: f"{HOST}:{port}" for name, port in ports.items()}
        yield Peer(
            admin, addresses["SASL_SSL"], addresses["SESSIONS"], addresses["CERTIFICATES"],
            str(folder / "authority.pem"), logins, certificate, why, {} if realm is None else realm.environment,
        )  # fmt: skip


def _pylogd(folder: Path, settings: Mapping[str, str], ports: Mapping[str, int]) -> BrokerProcess:
    listeners = [word for name, port in ports.items() for word in ("--listen", f"{name}://{HOST}:{port}")]
    return BrokerProcess(folder / "data", folder / "log", settings, listeners)


def _logins(issuer: Issuer, realm: kerberos.Realm | None) -> dict[str, Logins]:
    """Return who connects with each mechanism. Passwords are as random as they should be."""
    found = {}
    for mechanism, user in _USERS.items():
        stranger = f"stranger-{user}"
        if mechanism == "OAUTHBEARER":
            found[mechanism] = issuer.logins(user, stranger)
        elif mechanism != "GSSAPI":
            found[mechanism] = Logins(
                Login(mechanism, user, secrets.token_urlsafe()),
                Login(mechanism, user, "wrong"),
                Login(mechanism, stranger, secrets.token_urlsafe()),
            )
        elif realm is not None:
            found[mechanism] = realm.logins(user, stranger)
    return found


def _certificates(folder: Path) -> Login:
    """Make the authority, the broker's certificate and a client's; return the client's login."""
    authority = Authority.open(folder)
    write_secret(folder / "broker.pem", authority.issue("broker", (HOST, "127.0.0.1")).pem)
    issued = authority.issue(_WITH_CERTIFICATE)
    files = {name: folder / f"client.{name}" for name in ("pem", "crt", "key")}
    write_secret(files["pem"], issued.pem)
    write_secret(files["key"], issued.key)
    files["crt"].write_text(issued.chain)
    return Login(
        username=_WITH_CERTIFICATE, keystore=str(files["pem"]), certificate=str(files["crt"]), key=str(files["key"])
    )


def _settings(
    folder: Path, issuer: Issuer, realm: kerberos.Realm | None, logins: Mapping[str, Logins]
) -> dict[str, str]:
    """Return the settings, which have the same names for both kinds of broker."""
    plain = [logins["PLAIN"].allowed, logins["PLAIN"].stranger]
    users = " ".join(f'user_{login.username}="{login.password}"' for login in plain)
    found = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,"
        "SESSIONS:SASL_SSL,CERTIFICATES:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "authority.pem"),
        "listener.name.certificates.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/,DEFAULT",
        "sasl.enabled.mechanisms": ",".join(name for name in MECHANISMS if name in logins),
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{issuer.keys}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "delegation.token.secret.key": secrets.token_urlsafe(),
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }
    for listener in _SASL_LISTENERS:
        prefix = f"listener.name.{listener.lower()}"
        found[f"{prefix}.plain.sasl.jaas.config"] = f"{_MODULES}.plain.PlainLoginModule required {users};"
        if realm is not None:
            found[f"{prefix}.gssapi.sasl.jaas.config"] = (
                "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
                f'keyTab="{realm.keytab}" principal="{realm.principal}";'
            )
            found["sasl.kerberos.service.name"] = kerberos.SERVICE
    for mechanism in logins:
        found[f"listener.name.sessions.{mechanism.lower()}.connections.max.reauth.ms"] = str(SESSION_MS)
    return found


def _of_kafka_only() -> dict[str, str]:
    """Return what only Apache Kafka has to be told."""
    found = {}
    for listener in _SASL_LISTENERS:
        prefix = f"listener.name.{listener.lower()}"
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            found[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{_MODULES}.scram.ScramLoginModule required;"
        token = f"{prefix}.oauthbearer.sasl"
        found[f"{token}.jaas.config"] = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
        found[f"{token}.server.callback.handler.class"] = f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
    return found


def _make_users(admin: str, logins: Mapping[str, Logins], certificate: Login) -> None:
    """Give users of SCRAM their passwords, and those who may something their ACLs."""
    client = AdminClient({"bootstrap.servers": admin})
    changes: list[UserScramCredentialAlteration] = []
    for mechanism, kind in (
        ("SCRAM-SHA-256", ScramMechanism.SCRAM_SHA_256), ("SCRAM-SHA-512", ScramMechanism.SCRAM_SHA_512)
    ):  # fmt: skip
        info = ScramCredentialInfo(kind, 4096)
        changes += [
            UserScramCredentialUpsertion(login.username, info, login.password.encode())
            for login in (logins[mechanism].allowed, logins[mechanism].stranger)
        ]
    acls = [
        AclBinding(kind, f"{login.username}-", ResourcePatternType.PREFIXED, f"User:{login.username}", "*",
                   AclOperation.ALL, AclPermissionType.ALLOW)
        for login in (*(found.allowed for found in logins.values()), certificate)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]  # fmt: skip
    answers: list[Mapping[Any, Any]] = [
        client.alter_user_scram_credentials(changes),
        client.create_acls(acls),
        client.create_topics([NewTopic(CLOSED, 1, 1)]),
    ]
    for answer in answers:
        for future in answer.values():
            future.result(_SECONDS)
