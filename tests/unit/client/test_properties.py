"""Kafka's property files, and their settings of TLS and SASL."""

from __future__ import annotations

import io
import json
import pickle
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from pylogd.client.core.errors import AuthenticationFailed
from pylogd.client.core.security import SecurityOptions
from pylogd.client.properties import member_options, parse_properties, security_from
from pylogd.credentials.token_sources import ClientCredentials, TokenFile

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="s3cret";'
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="s3cret"'
PEM = "-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----"


def test_a_property_file() -> None:
    text = (
        "# a comment\n  ! another\n\nsecurity.protocol=SASL_SSL\nssl.truststore.location : /ca.pem\n"
        'sasl.jaas.config=some.Module required \\\n    username="a\\\\b" \\\n    password="\\u00e9=:";\n'
        "empty=\nalone\nwith\\ space value with = signs\n"
        f"ssl.truststore.certificates={PEM}\nlast=ends with a backslash\\"
    )
    assert parse_properties(text) == {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": "/ca.pem",
        "sasl.jaas.config": 'some.Module required username="a\\b" password="é=:";',
        "empty": "",
        "alone": "",
        "with space": "value with = signs",
        "ssl.truststore.certificates": PEM.replace("\\n", "\n"),
        "last": "ends with a backslash",
    }
    with pytest.raises(ValueError, match="no name"):
        parse_properties("=value")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, None),
        ({"client.id": "x"}, None),
        ({"security.protocol": "plaintext"}, {"protocol": "PLAINTEXT"}),
        ({"security.protocol": "SSL"}, {"protocol": "SSL"}),
        (
            {
                "security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem",
                "ssl.keystore.type": "PEM", "ssl.keystore.location": "/me.pem", "ssl.key.password": "pw",
                "ssl.endpoint.identification.algorithm": "", "ssl.enabled.protocols": "TLSv1.3",
                "ssl.cipher.suites": "TLS_RSA_WITH_AES_128_GCM_SHA256, B",
            },
            {
                "protocol": "SSL", "ssl_ca": "/ca.pem", "ssl_certificate": "/me.pem", "ssl_key_password": "pw",
                "ssl_check_hostname": False, "ssl_min_version": "TLSv1.3", "ssl_ciphers": "AES128-GCM-SHA256:B",
            },
        ),
        (
            {
                "security.protocol": "SSL", "ssl.truststore.certificates": "CA", "ssl.keystore.key": "KEY",
                "ssl.keystore.certificate.chain": "CHAIN",
            },
            {"protocol": "SSL", "ssl_ca": "CA", "ssl_certificate": "CHAIN", "ssl_key": "KEY"},
        ),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN},
            {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "alice",
             "sasl_password": "s3cret"},
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256",
             "sasl.jaas.config": SCRAM + ' tokenauth="true";'},
            {"protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "alice",
             "sasl_password": "s3cret", "sasl_delegation_token": True},
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.kerberos.service.name": "log",
             "sasl.jaas.config": 'x.Krb5LoginModule required useKeyTab=true keyTab="/k" principal="me@REALM";'},
            {"protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI", "sasl_kerberos_service": "log",
             "sasl_kerberos_keytab": "/k", "sasl_kerberos_principal": "me@REALM"},
        ),
    ],
)  # fmt: skip
def test_options(properties: dict[str, str], expected: dict[str, Any] | None) -> None:
    assert security_from(properties) == (None if expected is None else SecurityOptions(**expected))


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"ssl.truststore.location": "/ca.pem"}, "set security.protocol"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "ssl.truststore.type: only PEM.*keytool"),
        ({"security.protocol": "SSL", "ssl.keystore.password": "s3cret"}, "ssl.keystore.password"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "s3cret"}, "set both"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.1 is not"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"}, "https, or empty"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl_username"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN[:-1]},
            "sasl.jaas.config",
        ),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "DIGEST-MD5"}, "sasl_mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "token.endpoint.url"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
             "sasl.oauthbearer.token.endpoint.url": "https://idp/token"},
            "client.id",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
             "sasl.oauthbearer.token.endpoint.url": "gopher://idp/token",
             "sasl.jaas.config": 'x.OAuthBearerLoginModule required clientId="a" clientSecret="s3cret";'},
            "https, http or file",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(properties: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        security_from(properties)
    assert "s3cret" not in str(caught.value)


class Endpoint:
    """A token endpoint in place of `open_url`."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answer: Any = {"access_token": "t0", "expires_in": 100}

    def __call__(self, request: Any, timeout: float) -> io.BytesIO:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        data = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
        return io.BytesIO(data)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    endpoint = Endpoint()
    monkeypatch.setattr("pylogd.credentials.token_sources.open_url", endpoint)
    return endpoint


def test_a_token_is_used_for_most_of_its_lifetime(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    security = security_from(
        {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": "https://idp/token", "sasl.oauthbearer.scope": "logs",
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.client.credentials.client.secret": "s3 cret",
        }
    )  # fmt: skip
    assert security is not None and security.sasl_token is not None
    assert [security.sasl_token(), security.sasl_token()] == ["t0", "t0"]
    [request] = endpoint.requests
    assert request.full_url == "https://idp/token" and request.get_method() == "POST"
    assert request.data == b"grant_type=client_credentials&scope=logs"
    assert request.headers["Authorization"] == "Basic bWU6czMrY3JldA=="
    endpoint.answer = {"access_token": "t1"}
    now[0] += 81
    assert [security.sasl_token(), security.sasl_token()] == ["t1", "t1"]
    assert len(endpoint.requests) == 3, "one without a lifetime is used once"
    assert "s3" not in repr(security.sasl_token) and "s3" not in repr(security)
    copied = pickle.loads(pickle.dumps(security))
    endpoint.answer = {"access_token": "t2"}
    assert copied.sasl_token() == "t2"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (urllib.error.HTTPError("u", 401, "Unauthorized", None, None), "401 Unauthorized; check"),  # type: ignore[arg-type]
        (urllib.error.URLError("refused"), "refused"),
        (TimeoutError("timed out"), "timed out"),
        (b"<html>", "no access_token"),
        (b"[]", "no access_token"),
        ({"access_token": ""}, "no access_token"),
        ({"access_token": 5}, "no access_token"),
    ],
)
def test_an_endpoint_that_gives_none(endpoint: Endpoint, answer: Any, text: str) -> None:
    endpoint.answer = answer
    with pytest.raises(AuthenticationFailed, match=text):
        ClientCredentials("http://idp/token", "me", "s3cret")()


def test_a_token_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    source = TokenFile(path.as_uri())
    with pytest.raises(AuthenticationFailed, match="No such file"):
        source()
    path.write_text("  abc\n")
    assert source() == "abc"
    path.write_text("\n")
    with pytest.raises(AuthenticationFailed, match="empty"):
        source()


def test_members_of_groups() -> None:
    properties = {"group.protocol": "CONSUMER ", "group.remote.assignor": "range", "group.instance.id": "", "acks": "1"}
    assert member_options(properties) == {"group_protocol": "consumer", "group_remote_assignor": "range"}
    assert member_options({}) == {}
    with pytest.raises(ValueError, match=r"group\.protocol: classic or consumer, not 'streams'"):
        member_options({"group.protocol": "streams"})
