"""The SASL mechanisms: each is registered once, for brokers, for clients, and for brokers that are clients of others.

A mechanism says how a listener offers it, which credentials its client side needs, where these stand in a login module
(`sasl.jaas.config`) and in properties, and how an authentication begins. To add a mechanism, write its conversations
(`conversation`), register it here, and add its name to the choices in `config/broker.toml`.

Rules: what only a broker needs is imported when it is used, because clients import this module. An error names the
setting to change, and has no credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from pylogd.credentials.conversation import ClientConversation, ServerMechanism
from pylogd.credentials.gssapi import GssapiMechanism, LazyGssapiClient
from pylogd.credentials.jaas import parse_jaas
from pylogd.credentials.kerberos import LocalNames
from pylogd.credentials.oauthbearer import OAuthBearerClient, OAuthBearerMechanism
from pylogd.credentials.passwords import KnownPasswords, PasswordCheck, UsersFile
from pylogd.credentials.plain import PlainClient, PlainMechanism
from pylogd.credentials.principal import USER, Principal
from pylogd.credentials.scram import SCRAM_MECHANISMS, Algorithm, ScramClient, ScramMechanism, ScramUsers

JAAS: Final = "sasl.jaas.config"
USERS_FILE: Final = "sasl.plain.users.file"
TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
SERVICE: Final = "sasl.kerberos.service.name"
_USER: Final = "user_"
_KEYS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"


class WrongSetting(ValueError):
    """A setting prevents that a mechanism is used.

    setting: its name.
    """

    def __init__(self, text: str, setting: str) -> None:
        super().__init__(text)
        self.setting = setting


class Settings(Protocol):
    """The settings of a mechanism on a listener."""

    def __getitem__(self, name: str) -> Any:
        """Return a value; None if it is not set and has no default."""


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials of a client. A mechanism uses some of them.

    password: the password, or a function that returns it and is called at each authentication.
    by_delegation_token: whether user and password are the id and the HMAC of a delegation token.
    token: returns an access token.
    service: the broker's service name in Kerberos.
    keytab, principal: the file with the client's keys, and its principal. Empty means the tickets of `kinit`.
    """

    user: str = ""
    password: str | Callable[[], str] = field(default="", repr=False)
    by_delegation_token: bool = False
    token: Callable[[], str] | None = field(default=None, repr=False)
    service: str = ""
    keytab: str = ""
    principal: str = ""


class Mechanism:
    """A SASL mechanism.

    name: the name in SaslHandshake.
    waits: whether a step of the client may compute for milliseconds, or wait for another server.
    broker_needs: the options of the login module with which a broker authenticates to other brokers.
    """

    name: str
    waits: ClassVar[bool] = True
    broker_needs: ClassVar[str] = "username and password"

    def offer(self, settings: Settings, users: ScramUsers) -> ServerMechanism:
        """Return the mechanism as a listener offers it. May read files.

        Raises WrongSetting, MechanismUnavailable.
        """
        raise NotImplementedError

    def login(self, options: Mapping[str, str], properties: Mapping[str, str]) -> Login:
        """Return the credentials in the options of a login module and in properties. Raises ValueError."""
        return Login(
            options.get("username", ""), options.get("password", ""), options.get("tokenauth", "").lower() == "true"
        )

    def missing(self, login: Login) -> str:
        """Return the options of `SecurityOptions` that are missing in a login; "" if it is complete."""
        return "" if login.user and login.password else "sasl_username and sasl_password"

    def is_complete_for_broker(self, login: Login) -> bool:
        """Return whether a broker can authenticate to other brokers with a login."""
        return not self.missing(login)

    def principal(self, login: Login, rules: list[str]) -> Principal | None:
        """Return the principal that a broker has at other brokers; None if only its token tells.

        rules: the rules for short names of Kerberos principals.

        Raises ValueError, AuthenticationFailed.
        """
        return Principal(USER, login.user)

    def begin(self, login: Login, host: str) -> ClientConversation:
        """Begin an authentication at the broker on `host`. Raises PylogdError if a package is missing."""
        raise NotImplementedError


class _Plain(Mechanism):
    name = "PLAIN"
    waits = False

    def offer(self, settings: Settings, users: ScramUsers) -> ServerMechanism:
        path, options = settings[USERS_FILE], _options(settings)  # these may also have the broker's own credentials
        passwords = {name[len(_USER) :]: password for name, password in options.items() if name.startswith(_USER)}
        if (path is None) == (not passwords):
            raise WrongSetting(f"PLAIN needs either {USERS_FILE} or {JAAS} with user_<name> options", USERS_FILE)
        check: PasswordCheck
        if path is not None:
            check = UsersFile(path)
            check.read()
        else:
            check = KnownPasswords(passwords)
        return PlainMechanism(check)

    def begin(self, login: Login, host: str) -> ClientConversation:
        return PlainClient(login.user, login.password)


class _Scram(Mechanism):
    def __init__(self, algorithm: Algorithm) -> None:
        self.name = algorithm.mechanism
        self._algorithm = algorithm

    def offer(self, settings: Settings, users: ScramUsers) -> ServerMechanism:
        return ScramMechanism(self._algorithm, users)

    def begin(self, login: Login, host: str) -> ClientConversation:
        return ScramClient(self._algorithm, login.user, login.password, token=login.by_delegation_token)


class _OAuthBearer(Mechanism):
    name = "OAUTHBEARER"

    def offer(self, settings: Settings, users: ScramUsers) -> ServerMechanism:
        from pylogd.credentials.access_tokens import (  # noqa: PLC0415 - only for brokers
            IssuerKeys,
            SignedTokens,
            TokenRules,
            UnsecuredTokens,
        )

        rules = TokenRules(
            audiences=settings["sasl.oauthbearer.expected.audience"],
            issuer=settings["sasl.oauthbearer.expected.issuer"],
            scopes=settings["sasl.oauthbearer.expected.scope"],
            subject_claim=settings["sasl.oauthbearer.sub.claim.name"],
            scope_claim=settings["sasl.oauthbearer.scope.claim.name"],
            skew_seconds=settings["sasl.oauthbearer.clock.skew.seconds"],
        )
        url, unsecured = settings[_KEYS_URL], settings["sasl.oauthbearer.unsecured.tokens.enable"]
        if unsecured == (url is not None):
            raise WrongSetting(
                f"OAUTHBEARER needs either {_KEYS_URL} or, for development only, "
                "sasl.oauthbearer.unsecured.tokens.enable=true",
                _KEYS_URL,
            )
        if url is None:
            return OAuthBearerMechanism(UnsecuredTokens(rules))
        keys = IssuerKeys(
            url,
            settings["sasl.oauthbearer.jwks.endpoint.refresh.ms"] / 1000,
            settings["sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"] / 1000,
        )
        return OAuthBearerMechanism(SignedTokens(keys, rules))

    def login(self, options: Mapping[str, str], properties: Mapping[str, str]) -> Login:
        from pylogd.credentials.token_sources import token_source  # noqa: PLC0415 - imports urllib

        def chosen(name: str, option: str) -> str:
            return properties.get(f"sasl.oauthbearer.{name}") or options.get(option, "")

        source = token_source(
            properties.get(TOKEN_ENDPOINT, ""), chosen("client.credentials.client.id", "clientId"),
            chosen("client.credentials.client.secret", "clientSecret"), chosen("scope", "scope"),
        )  # fmt: skip
        return Login(token=source)

    def missing(self, login: Login) -> str:
        return "" if login.token is not None else "sasl_token, a function that returns an access token"

    def principal(self, login: Login, rules: list[str]) -> None:
        return None

    def begin(self, login: Login, host: str) -> ClientConversation:
        assert login.token is not None
        return OAuthBearerClient(login.token)


class _Gssapi(Mechanism):
    name = "GSSAPI"
    broker_needs = 'keyTab="..." and principal="kafka/host@REALM"'

    def offer(self, settings: Settings, users: ScramUsers) -> ServerMechanism:
        options = _options(settings)
        principal = options.get("principal")
        service = settings[SERVICE] or options.get("serviceName")
        if principal and service and principal.partition("/")[0] != service:
            raise WrongSetting(f"{SERVICE} is {service}, but the principal is {principal}", SERVICE)
        rules = list(settings["sasl.kerberos.principal.to.local.rules"])
        return GssapiMechanism(options.get("keyTab"), principal, service, rules)

    def login(self, options: Mapping[str, str], properties: Mapping[str, str]) -> Login:
        service = properties.get(SERVICE) or options.get("serviceName", "")
        return Login(service=service, keytab=options.get("keyTab", ""), principal=options.get("principal", ""))

    def missing(self, login: Login) -> str:
        return ""

    def is_complete_for_broker(self, login: Login) -> bool:
        return bool(login.keytab and login.principal.partition("@")[2])

    def principal(self, login: Login, rules: list[str]) -> Principal:
        return Principal(USER, LocalNames(rules, login.principal.partition("@")[2]).short_name(login.principal))

    def begin(self, login: Login, host: str) -> ClientConversation:
        service = login.service or login.principal.partition("@")[0].partition("/")[0]
        return LazyGssapiClient(service, host, login.keytab or None, login.principal or None)


def _options(settings: Settings) -> dict[str, str]:
    """Return the options of the login module of a listener. Raises WrongSetting."""
    jaas = settings[JAAS]
    try:
        return {} if jaas is None else parse_jaas(jaas).options
    except ValueError as error:
        raise WrongSetting(f"{JAAS} is malformed: {error}", JAAS) from None


#: All mechanisms, by name.
MECHANISMS: Final[Mapping[str, Mechanism]] = {
    mechanism.name: mechanism
    for mechanism in (_Plain(), *map(_Scram, SCRAM_MECHANISMS.values()), _OAuthBearer(), _Gssapi())
}
