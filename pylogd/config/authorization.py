"""The settings of authorization and of the audit log. Must not know: authorizers, whose names are only text here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pylogd.config.values import ConfigError, ConfigType, Mode, Setting

_GROUP: Final = "Authorization"

#: Kafka's names of the authorizer that decides by ACLs; they mean pylogd's authorizer.
KAFKA_AUTHORIZERS: Final = frozenset(
    {
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "kafka.security.authorizer.AclAuthorizer",
        "kafka.security.auth.SimpleAclAuthorizer",
    }
)

AUTHORIZATION_SETTINGS: Final = [
    Setting(
        "authorizer.class.name",
        ConfigType.STRING,
        "",
        "The authorizer, which decides what clients may do. Empty: everybody may do everything. "
        "`org.apache.kafka.metadata.authorizer.StandardAuthorizer`: ACLs decide; `pylogd acls` shows and changes "
        "them. Or the dotted name of your own Python class, such as `company.policies.Authorizer`; see "
        "docs/authorization.md.",
        _GROUP,
    ),
    Setting(
        "super.users",
        ConfigType.STRING,
        "",
        "Principals who may do everything, separated by semicolons: `User:admin;User:CN=broker1,O=Example`. The "
        "brokers of a cluster must be super users, or must be allowed CLUSTER_ACTION on the cluster.",
        _GROUP,
    ),
    Setting(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        False,
        "Whether everybody may use a resource for which no ACL exists.",
        _GROUP,
    ),
    Setting(
        "principal.builder.class",
        ConfigType.STRING,
        None,
        "The dotted name of a Python class that determines a client's principal from its certificate or its SASL "
        "user; see docs/authorization.md. Unset: the principal is the distinguished name or the user name.",
        _GROUP,
        nullable=True,
        mode=Mode.DYNAMIC,
        per_broker=True,
    ),
    Setting(
        "audit.log.path",
        ConfigType.STRING,
        None,
        "A file to which denied and administrative operations are appended, as lines of JSON. It is reopened on "
        "SIGHUP, for logrotate. Unset: no audit log. (Only in pylogd; Kafka has a logger.)",
        _GROUP,
        nullable=True,
    ),
    Setting(
        "audit.log.max.queued",
        ConfigType.INT,
        10_000,
        "Most events that wait to be written to the audit log. Of further events, those of the principal or address "
        "with most events are only counted; their number is written when the queue has space again. (Only in "
        "pylogd.)",
        _GROUP,
        minimum=1,
    ),
    Setting(
        "audit.log.denials.per.minute",
        ConfigType.INT,
        100,
        "Most denied operations of one principal from one address that are written in a minute. At the end of the "
        "minute the number of further ones is written. (Only in pylogd.)",
        _GROUP,
        minimum=1,
    ),
]


def super_users(text: str) -> tuple[str, ...]:
    """Return the members of `super.users`, each `Type:name`. Raises ConfigError."""
    found = tuple(member.strip() for member in text.split(";") if member.strip())
    for member in found:
        kind, colon, name = member.partition(":")
        if not (kind and colon and name):
            raise ConfigError(
                f'super.users: "{member[:200]}" is not a principal; write for example User:admin', "super.users"
            )
    return found


def check_authorization(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings that contradict each other."""
    super_users(values["super.users"])
    for name in ("authorizer.class.name", "principal.builder.class"):
        text = values[name]
        if text and text not in KAFKA_AUTHORIZERS and not all(part.isidentifier() for part in text.split(".")):
            raise ConfigError(f'{name} = "{text[:200]}" is not allowed: write the dotted name of a class', name)
