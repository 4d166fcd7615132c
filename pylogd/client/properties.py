"""Read Kafka's property files, and the properties of a client's connections and group membership.

The properties are `security.protocol`, `ssl.*`, `sasl.*`, `group.protocol`, `group.remote.assignor` and
`group.instance.id`.

The command line's `--command-config` and Spark's `kafka.*` options are read here. Certificates and keys must be PEM,
because Java's own formats need Java; the error says how to convert them. Other properties are ignored.

Source: Kafka documentation, "Security" and "Configuration".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pylogd.client.core.security import SecurityOptions
from pylogd.credentials.ciphers import split_ciphers
from pylogd.credentials.jaas import LoginModule, parse_jaas
from pylogd.credentials.mechanisms import MECHANISMS

_DEFAULT_MECHANISM = "GSSAPI"  # as in Kafka
_LINE = re.compile(r"(?P<key>(?:[^\\=:\s]|\\.)*)[ \t\f]*(?:[=:][ \t\f]*)?(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_VERSIONS = ("TLSv1.2", "TLSv1.3")
#: Properties of members of consumer groups, and the options of `ConsumerOptions` for them.
_OF_MEMBERS = {
    "group.protocol": "group_protocol",
    "group.remote.assignor": "group_remote_assignor",
    "group.instance.id": "group_instance_id",
}
#: Properties of stores in Java's formats, which have no PEM counterpart.
_JAVA_ONLY = ("ssl.truststore.password", "ssl.keystore.password")


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java property file. Raises ValueError for a line without a name."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        assert match is not None
        key = _unescape(match["key"])
        if not key:
            raise ValueError("a property has no name; write name=value")
        found[key] = _unescape(match["value"])
    return found


def _logical_lines(text: str) -> list[str]:
    """Return the lines without comments; a line that ends with a backslash continues on the next one."""
    lines: list[str] = []
    unfinished = ""
    for line in text.splitlines():
        stripped = line.lstrip(" \t\f")
        if not unfinished and (not stripped or stripped[0] in "#!"):
            continue
        joined = unfinished + stripped
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            unfinished = joined[:-1]
        else:
            lines.append(joined)
            unfinished = ""
    return [*lines, unfinished] if unfinished else lines


def _unescape(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _CONTROL.get(escape, escape)

    return _ESCAPE.sub(replaced, text)


def is_security(name: str) -> bool:
    """Return whether a property says how connections are secured."""
    return name == "security.protocol" or name.startswith(("ssl.", "sasl."))


def security_from(properties: Mapping[str, str]) -> SecurityOptions | None:
    """Return the security options that the properties set; None if they set none.

    Raises ValueError, whose text names the property and never repeats a secret.
    """
    given = {name: value.strip() for name, value in properties.items() if is_security(name)}
    if not given:
        return None
    if "security.protocol" not in given:
        raise ValueError(f"{min(given)}: set security.protocol too, such as SASL_SSL; without it nothing is secured")
    protocol: Any = given["security.protocol"].upper()
    options: dict[str, Any] = {"protocol": protocol}
    if protocol in ("SSL", "SASL_SSL"):
        options |= _tls(given)
    if protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        options |= _sasl(given)
    try:
        return SecurityOptions(**options)
    except ValueError as error:
        raise ValueError(f"security.protocol, ssl.* or sasl.*: {error}") from None


def member_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a group member that the properties set, by the names of `ConsumerOptions`.

    Raises ValueError for an unknown group protocol.
    """
    given = {option: properties.get(name, "").strip() for name, option in _OF_MEMBERS.items()}
    found = {option: value for option, value in given.items() if value}
    protocol = found.get("group_protocol")
    if protocol is not None:
        found["group_protocol"] = protocol.lower()
        if protocol.lower() not in ("classic", "consumer"):
            raise ValueError(f"group.protocol: classic or consumer, not {protocol!r}")
    return found


def _tls(given: Mapping[str, str]) -> dict[str, Any]:
    for name in _JAVA_ONLY:
        if given.get(name):
            raise ValueError(f"{name}: PEM stores have no password; set ssl.key.password for an encrypted key")
    for store in ("truststore", "keystore"):
        if given.get(f"ssl.{store}.type", "PEM").upper() != "PEM":
            raise ValueError(
                f"ssl.{store}.type: only PEM is supported; convert the store with keytool -importkeystore and "
                "openssl pkcs12"
            )
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", ""):
        raise ValueError("ssl.endpoint.identification.algorithm: https, or empty for no check of host names")
    key = given.get("ssl.keystore.key", "")
    chain = given.get("ssl.keystore.certificate.chain", "")
    if bool(key) != bool(chain):
        raise ValueError("ssl.keystore.key and ssl.keystore.certificate.chain: set both")
    return {
        "ssl_ca": given.get("ssl.truststore.certificates") or given.get("ssl.truststore.location", ""),
        "ssl_certificate": chain or given.get("ssl.keystore.location", ""),
        "ssl_key": key,
        "ssl_key_password": given.get("ssl.key.password", ""),
        "ssl_check_hostname": bool(algorithm),
        "ssl_min_version": _least_version(given.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3")),
        "ssl_ciphers": ":".join(split_ciphers(_words(given.get("ssl.cipher.suites", "")))[0]),
    }


def _least_version(text: str) -> str:
    names = _words(text)
    for name in names:
        if name not in _VERSIONS:
            raise ValueError(f"ssl.enabled.protocols: {' and '.join(_VERSIONS)} are supported, {name} is not")
    return min(names, default=_VERSIONS[0])


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text) if word]


def _sasl(given: Mapping[str, str]) -> dict[str, Any]:
    mechanism = given.get("sasl.mechanism", _DEFAULT_MECHANISM).upper()
    module = _login_module(given)
    registered = MECHANISMS.get(mechanism)
    if registered is None:
        return {"sasl_mechanism": mechanism}
    login = registered.login(module.options, given)
    credentials = {
        "sasl_username": login.user, "sasl_password": login.password,
        "sasl_delegation_token": login.by_delegation_token, "sasl_token": login.token,
        "sasl_kerberos_keytab": login.keytab, "sasl_kerberos_principal": login.principal,
    }  # fmt: skip
    service = {"sasl_kerberos_service": login.service} if login.service else {}
    return {"sasl_mechanism": mechanism, **credentials, **service}


def _login_module(given: Mapping[str, str]) -> LoginModule:
    text = given.get("sasl.jaas.config", "")
    if not text:
        return LoginModule("", {})
    try:
        return parse_jaas(text)
    except ValueError as error:
        raise ValueError(f"sasl.jaas.config: {error}") from None
