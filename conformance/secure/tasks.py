"""What each client is asked to do over a secured listener: tasks, as JSON for its program.

A client's program (Python modules of this folder, `SecureClient.java`, `secure.go`, `secure.js`) is started once with
the name of a file of tasks. It prints `ok NAME` or `not ok NAME: REASON` for each, as `conformance.checks` reads it.

Actions of a task:

* `round trip`: create the topic, produce `records` records, read them in a group, compare.
* `refused`: connect with credentials that are wrong; expect the error that the client has for that.
* `forbidden`: create a topic, produce and join a group as a user without ACLs; expect the errors for that.
* `traffic over three sessions`: produce and read for `seconds`, longer than three sessions last, without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

RECORDS: Final = 60
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
#: What a client may have beside mechanisms: long traffic over short sessions, certificates, delegation tokens.
CERTIFICATE, TOKEN = "a certificate (mutual TLS)", "a delegation token"
ROUND_TRIP, REFUSED, FORBIDDEN = "round trip", "refused", "forbidden"
SESSIONS = "traffic over three sessions"
#: The topic that exists and that users without ACLs try to write to.
CLOSED: Final = "closed"
#: How long a session of the listener SESSIONS lasts, and how long there is traffic.
SESSION_MS: Final = 6000
TRAFFIC_SECONDS: Final = 20


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials of one user. Files are paths.

    token_file: has the token. token_auth: whether `username` is the id of a delegation token. cache: Kerberos tickets.
    keystore: the key and the certificate together.
    """

    mechanism: str = ""
    username: str = ""
    password: str = ""
    token: str = ""
    token_file: str = ""
    token_auth: bool = False
    principal: str = ""
    keytab: str = ""
    cache: str = ""
    service: str = "kafka"
    keystore: str = ""
    certificate: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Logins:
    """Who connects with a mechanism: a user with ACLs, the same with wrong credentials, and a user without ACLs."""

    allowed: Login
    wrong: Login
    stranger: Login


@dataclass(frozen=True, slots=True)
class Peer:
    """A secured broker, as a client needs it. Addresses are `host:port`.

    admin: plaintext, for whom everything is allowed. logins: by mechanism; without GSSAPI if Kerberos is missing.
    """

    admin: str
    sasl: str
    sessions: str
    certificates: str
    authority: str
    logins: Mapping[str, Logins]
    certificate: Login
    no_kerberos: str = ""
    kerberos: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """A task, as its program gets it. properties: for clients that are configured by Kafka's property names."""

    name: str
    action: str
    bootstrap: str
    protocol: str
    authority: str
    login: Login
    topic: str
    group: str
    records: int = RECORDS
    seconds: int = TRAFFIC_SECONDS
    properties: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> dict[str, object]:
        """Return it as a flat object, with the fields of the login beside the others."""
        fields: dict[str, object] = asdict(self)
        del fields["login"]
        return fields | asdict(self.login)


@dataclass(frozen=True, slots=True)
class Client:
    """A client and what it does not have.

    lacks: why, by mechanism, or for SESSIONS, CERTIFICATE or TOKEN.
    """

    name: str
    lacks: Mapping[str, str] = field(default_factory=dict)


def tasks(client: Client, peer: Peer) -> Iterator[Task]:
    """Yield the tasks of a client: three for each mechanism, then long traffic, then a certificate in place of SASL."""
    for mechanism in MECHANISMS:
        if mechanism in client.lacks or mechanism not in peer.logins:
            continue
        logins = peer.logins[mechanism]
        base = _task(client, peer, mechanism, logins.allowed)
        yield replace(base, name=f"{client.name}, {mechanism}, round trip", action=ROUND_TRIP)
        yield replace(base, name=f"{client.name}, {mechanism}, wrong credentials", action=REFUSED, login=logins.wrong)
        closed = replace(base, login=logins.stranger, topic=CLOSED)
        yield replace(closed, name=f"{client.name}, {mechanism}, without ACLs", action=FORBIDDEN)
    if SESSIONS not in client.lacks:
        base = _task(client, peer, "sessions", peer.logins["SCRAM-SHA-512"].allowed)
        name = f"{client.name}, {SESSIONS}"
        yield replace(base, name=name, action=SESSIONS, bootstrap=peer.sessions)
    if CERTIFICATE not in client.lacks:
        base = _task(client, peer, "certificate", peer.certificate)
        name = f"{client.name}, {CERTIFICATE}, round trip"
        yield replace(base, name=name, action=ROUND_TRIP, bootstrap=peer.certificates, protocol="SSL")


def _task(client: Client, peer: Peer, kind: str, login: Login) -> Task:
    """Return a task on the SASL listener. ACLs are for names that begin with the user's."""
    own = re.sub(r"[^a-z0-9-]+", "-", f"{login.username}-{client.name}-{kind}".lower())
    return Task("", "", peer.sasl, "SASL_SSL", peer.authority, login, own, own)


def token_task(client: Client, peer: Peer, owner: str, login: Login) -> Task:
    """Return the round trip of a worker with a delegation token of `owner`."""
    own = f"{owner}-{client.name}-token".lower()
    name = f"{client.name}, {TOKEN}, round trip"
    return Task(name, ROUND_TRIP, peer.sasl, "SASL_SSL", peer.authority, login, own, own)


# -- properties


def java_properties(task: Task) -> dict[str, str]:
    """Return the task's properties for Kafka's Java client and tools."""
    login = task.login
    found = {
        "bootstrap.servers": task.bootstrap,
        "security.protocol": task.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": task.authority,
    }
    if login.keystore:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": login.keystore}
    if not login.mechanism:
        return found
    found["sasl.mechanism"] = login.mechanism
    modules = "org.apache.kafka.common.security"
    if login.mechanism == "GSSAPI":
        found["sasl.kerberos.service.name"] = login.service
        found["sasl.jaas.config"] = (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
            f'keyTab="{login.keytab}" principal="{login.principal}";'
        )
    elif login.mechanism == "OAUTHBEARER":
        found["sasl.jaas.config"] = f"{modules}.oauthbearer.OAuthBearerLoginModule required;"
        found["sasl.login.callback.handler.class"] = f"{modules}.oauthbearer.OAuthBearerLoginCallbackHandler"
        found["sasl.oauthbearer.token.endpoint.url"] = f"file://{login.token_file}"
    else:
        module = "plain.PlainLoginModule" if login.mechanism == "PLAIN" else "scram.ScramLoginModule"
        token = " tokenauth=true" if login.token_auth else ""
        found["sasl.jaas.config"] = (
            f'{modules}.{module} required username="{login.username}" password="{login.password}"{token};'
        )
    return found


def librdkafka_properties(task: Task) -> dict[str, str]:
    """Return the task's properties for librdkafka."""
    login = task.login
    found = {
        "bootstrap.servers": task.bootstrap,
        "security.protocol": task.protocol,
        "ssl.ca.location": task.authority,
    }
    if login.keystore:
        found |= {"ssl.certificate.location": login.certificate, "ssl.key.location": login.key}
    if not login.mechanism:
        return found
    found["sasl.mechanism"] = login.mechanism
    if login.mechanism == "GSSAPI":
        found |= {
            "sasl.kerberos.service.name": login.service,
            "sasl.kerberos.keytab": login.keytab,
            "sasl.kerberos.principal": login.principal,
        }
    elif login.mechanism != "OAUTHBEARER":
        found |= {"sasl.username": login.username, "sasl.password": login.password}
    return found
