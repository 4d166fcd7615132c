"""Make the classes that settings name: the authorizer and the principal builder.

An operator's class gets the broker's settings as its only argument. The start of the broker checks whether the class
can be made and has the necessary methods.
"""

from __future__ import annotations

import importlib
from typing import Any

from twisted.logger import Logger

from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, Authorizer, ResourceType
from pylogd.broker.security.principal_builder import PrincipalBuilder
from pylogd.broker.security.rules import AclAuthorizer, AclIndex
from pylogd.config import ConfigError, Settings
from pylogd.config.checks import KAFKA_AUTHORIZERS, super_users
from pylogd.credentials.principal import Principal, parse_principal

log = Logger()


def make_authorizer(settings: Settings, broker: Principal | None = None) -> Authorizer | None:
    """Return the authorizer that `authorizer.class.name` names, None if everybody may do everything.

    broker: the principal of the brokers' own connections, which is a super user.

    Raises ConfigError.
    """
    name = settings.text("authorizer.class.name")
    if not name:
        return None
    if name in KAFKA_AUTHORIZERS:
        users = {parse_principal(text) for text in super_users(settings.text("super.users") or "")}
        if broker is not None:
            users.add(broker)
        return AclAuthorizer(AclIndex(), users, settings.flag("allow.everyone.if.no.acl.found"))
    made: Authorizer = _make("authorizer.class.name", name, settings, ("authorize", "authorize_any", "version"))
    return made


def warn_unless_brokers_may_follow(authorizer: Authorizer | None, broker: Principal, host: str) -> None:
    """Log a warning if an authorizer would not let the brokers of this cluster replicate from each other.

    broker: the principal of the brokers' own connections.
    host: the address from which they connect.
    """
    if authorizer is not None and not authorizer.authorize(
        broker, host, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
    ):
        log.warn(
            "The brokers' principal, {broker}, may not do CLUSTER_ACTION on the cluster: other brokers can't replicate "
            "from this one. Add it to super.users on all brokers, or allow it with `pylogd acls add "
            "--allow-principal {broker} --operation ClusterAction --cluster`",
            broker=broker,
        )


def make_principal_builder(settings: Settings, name: str | None) -> PrincipalBuilder | None:
    """Return the builder of this class (`principal.builder.class`), None without a name. Raises ConfigError."""
    if not name:
        return None
    made: PrincipalBuilder = _make("principal.builder.class", name, settings, ("build",))
    return made


def _make(setting: str, name: str, settings: Settings, methods: tuple[str, ...]) -> Any:
    module, dot, attribute = name.rpartition(".")
    try:
        if not dot:
            raise ImportError("the name of its module is missing")
        found = getattr(importlib.import_module(module), attribute)
        made = found(settings)
    except Exception as error:  # the operator's code may raise anything
        raise ConfigError(f"{setting} = {name} can't be used: {error!r}", setting) from error
    missing = [method for method in methods if not hasattr(made, method)]
    if missing:
        raise ConfigError(f"{setting} = {name} can't be used: it has no {', '.join(missing)}", setting)
    return made
