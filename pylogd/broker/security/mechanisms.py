"""Make the SASL mechanisms of a listener from its settings.

If a setting can be given for a mechanism on a listener (`listener.name.<listener>.<mechanism>.<setting>`), this value
comes first, then the listener's value, then the broker's.

Rules: a mechanism that can't be made ends the start with a ConfigError that names the setting, but no credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pylogd.broker.security.authentication import AuthenticationLimits
from pylogd.config import ConfigError
from pylogd.credentials.access_tokens import IssuerKeys, SignedTokens, TokenRules, UnsecuredTokens
from pylogd.credentials.conversation import MechanismUnavailable, ServerMechanism
from pylogd.credentials.gssapi import GssapiMechanism
from pylogd.credentials.jaas import parse_jaas
from pylogd.credentials.oauthbearer import OAuthBearerMechanism
from pylogd.credentials.passwords import KnownPasswords, PasswordCheck, UsersFile
from pylogd.credentials.plain import PlainMechanism
from pylogd.credentials.scram import SCRAM_MECHANISMS
from pylogd.credentials.scram_server import ScramMechanism, ScramUsers

ENABLED = "sasl.enabled.mechanisms"
JAAS = "sasl.jaas.config"
USERS_FILE = "sasl.plain.users.file"
_USER = "user_"
_KEYS_URL = "sasl.oauthbearer.jwks.endpoint.url"


class ListenerSettings(Protocol):
    """The settings, as seen by a listener."""

    def __getitem__(self, name: str) -> Any:
        """Return the listener's own value, or else the broker's value."""

    def own(self, name: str) -> Any:
        """Return the listener's own value; None if it has none."""


class MechanismSettings:
    """The settings of one mechanism on a listener."""

    def __init__(self, values: ListenerSettings, mechanism: str) -> None:
        self._values = values
        self._prefix = f"{mechanism.lower()}."

    def __getitem__(self, name: str) -> Any:
        own = self._values.own(self._prefix + name)
        return self._values[name] if own is None else own


def make_mechanisms(values: ListenerSettings, users: ScramUsers) -> dict[str, ServerMechanism]:
    """Return the mechanisms that a listener offers, by name. Raises ConfigError.

    users: the users with SCRAM credentials.

    May read files and take a while.
    """
    enabled: tuple[str, ...] = values[ENABLED]
    if not enabled:
        raise ConfigError(f"a SASL listener needs {ENABLED}, for example SCRAM-SHA-512", ENABLED)
    makers: Mapping[str, Callable[[MechanismSettings], ServerMechanism]] = {
        "PLAIN": _plain,
        "OAUTHBEARER": _oauthbearer,
        "GSSAPI": _gssapi,
    }
    found: dict[str, ServerMechanism] = {}
    for name in enabled:
        algorithm = SCRAM_MECHANISMS.get(name)
        try:
            if algorithm is not None:
                found[name] = ScramMechanism(algorithm, users)
            else:
                found[name] = makers[name](MechanismSettings(values, name))
        except MechanismUnavailable as error:
            raise ConfigError(f"{name} can't be offered: {error}", ENABLED) from error
    return found


def authentication_limits(values: ListenerSettings, mechanisms: Mapping[str, object]) -> AuthenticationLimits:
    """Return the limits of a listener that offers these mechanisms."""
    return AuthenticationLimits(
        {name: MechanismSettings(values, name)["connections.max.reauth.ms"] for name in mechanisms},
        values["connection.failed.authentication.delay.ms"],
    )


def _plain(values: MechanismSettings) -> ServerMechanism:
    path, jaas = values[USERS_FILE], values[JAAS]
    options = {} if jaas is None else _options(jaas)  # it may also have the broker's own credentials
    users = {name[len(_USER) :]: password for name, password in options.items() if name.startswith(_USER)}
    if (path is None) == (not users):
        raise ConfigError(f"PLAIN needs either {USERS_FILE} or {JAAS} with user_<name> options", USERS_FILE)
    check: PasswordCheck
    if path is not None:
        check = UsersFile(path)
        check.read()
    else:
        check = KnownPasswords(users)
    return PlainMechanism(check)


def _oauthbearer(values: MechanismSettings) -> ServerMechanism:
    rules = TokenRules(
        audiences=values["sasl.oauthbearer.expected.audience"],
        issuer=values["sasl.oauthbearer.expected.issuer"],
        scopes=values["sasl.oauthbearer.expected.scope"],
        subject_claim=values["sasl.oauthbearer.sub.claim.name"],
        scope_claim=values["sasl.oauthbearer.scope.claim.name"],
        skew_seconds=values["sasl.oauthbearer.clock.skew.seconds"],
    )
    url, unsecured = values[_KEYS_URL], values["sasl.oauthbearer.unsecured.tokens.enable"]
    if unsecured == (url is not None):
        raise ConfigError(
            f"OAUTHBEARER needs either {_KEYS_URL} or, for development only, "
            "sasl.oauthbearer.unsecured.tokens.enable=true",
            _KEYS_URL,
        )
    if url is None:
        return OAuthBearerMechanism(UnsecuredTokens(rules))
    keys = IssuerKeys(
        url,
        values["sasl.oauthbearer.jwks.endpoint.refresh.ms"] / 1000,
        values["sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"] / 1000,
    )
    return OAuthBearerMechanism(SignedTokens(keys, rules))


def _gssapi(values: MechanismSettings) -> ServerMechanism:
    options = {} if values[JAAS] is None else _options(values[JAAS])
    principal = options.get("principal")
    service = values["sasl.kerberos.service.name"] or options.get("serviceName")
    if principal and service and principal.partition("/")[0] != service:
        raise ConfigError(
            f"sasl.kerberos.service.name is {service}, but the principal is {principal}", "sasl.kerberos.service.name"
        )
    rules = list(values["sasl.kerberos.principal.to.local.rules"])
    return GssapiMechanism(options.get("keyTab"), principal, service, rules)


def _options(jaas: str) -> dict[str, str]:
    try:
        return parse_jaas(jaas).options
    except ValueError as error:
        raise ConfigError(f"{JAAS} is malformed: {error}", JAAS) from None
