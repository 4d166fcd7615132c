"""GSSAPI (RFC 4752): Kerberos. Needs the package `gssapi` (`pip install 'pylogd-broker[kerberos]'`).

When the security context is established, the broker offers no security layer (quality of protection `auth`), as in
Kafka; TLS can protect the connection. As in Kafka, an authorization id is ignored: a client always acts for itself, and
some clients send the broker's name there.

Every step may read files or ask the key distribution centre.
"""

from __future__ import annotations

from typing import Any, Final

from pylogd.credentials.conversation import (
    AuthenticationFailed,
    Challenge,
    MalformedMessage,
    MechanismUnavailable,
    ServerNotTrusted,
    Step,
    Success,
    encode_text,
)
from pylogd.credentials.kerberos import LocalNames
from pylogd.credentials.principal import USER, Principal

NAME: Final = "GSSAPI"
_NO_LAYER: Final = 1
#: No security layer, so no messages that could have a size.
_OFFER: Final = bytes([_NO_LAYER, 0, 0, 0])


def _package() -> Any:
    try:
        import gssapi  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MechanismUnavailable(
            f"GSSAPI needs the package gssapi (pip install 'pylogd-broker[kerberos]'): {error}"
        ) from None
    return gssapi


class GssapiMechanism:
    """GSSAPI with the keys of one service."""

    name = NAME

    def __init__(self, keytab: str | None, principal: str | None, service: str | None, rules: list[str]) -> None:
        """Read the keys. Waits for the disk. Raises MechanismUnavailable.

        keytab: the file with the keys; the system's file if None.
        principal: the broker's principal, such as `kafka/host@REALM`.
        service: the first part of the principal, if `principal` is None; the rest is the host's name. Without both, any
            key of the file can be used.
        """
        gssapi = _package()
        try:
            name = None
            if principal:
                name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
            elif service:
                name = gssapi.Name(service, gssapi.NameType.hostbased_service)
            store = {"keytab": keytab} if keytab else None
            kerberos = gssapi.MechType.kerberos
            self._credentials = gssapi.Credentials(name=name, usage="accept", mechs=[kerberos], store=store)
            own = str(name.canonicalize(kerberos)) if name is not None else ""
        except gssapi.exceptions.GSSError as error:
            where = keytab or "the system's keytab"
            raise MechanismUnavailable(f"GSSAPI can't use the keys in {where}: {_text(error)}") from None
        try:
            self._names = LocalNames(rules, own.rpartition("@")[2])
        except ValueError as error:
            raise MechanismUnavailable(f"sasl.kerberos.principal.to.local.rules: {error}") from None

    def start(self) -> GssapiServer:
        """Begin the conversation with one client."""
        return GssapiServer(_package(), self._credentials, self._names)


class GssapiServer:
    """The broker's side of GSSAPI."""

    def __init__(self, gssapi: Any, credentials: Any, names: LocalNames) -> None:
        self._gssapi = gssapi
        self._context = gssapi.SecurityContext(creds=credentials, usage="accept")
        # A failed step raises; it does not return an error token, which would look as if the conversation continued.
        self._context.__DEFER_STEP_ERRORS__ = False
        self._names = names
        self._offered = False

    def is_slow(self, message: bytes) -> bool:
        """Return True, since the replay cache is a file."""
        return True

    def is_remembered(self, message: bytes) -> bool:
        """Return False, since no credentials are remembered."""
        return False

    def step(self, message: bytes) -> Step:
        """Continue the security context. Then offer no security layer, and read the client's choice."""
        try:
            if self._offered:
                return self._finish(message)
            if not self._context.complete:
                if not message:
                    raise MalformedMessage("the client's token is empty")  # an empty token would begin a negotiation
                token = self._context.step(message)
                if token:
                    return Challenge(token)
                if not self._context.complete:
                    raise MalformedMessage("the security context is not complete, but there is no next token")
            elif message:
                raise MalformedMessage("the client sent a token to a complete security context")
            self._offered = True
            return Challenge(self._context.wrap(_OFFER, False).message)
        except self._gssapi.exceptions.GSSError as error:
            raise AuthenticationFailed(f"Kerberos refuses the client: {_text(error)}") from None

    def _finish(self, message: bytes) -> Success:
        choice = self._context.unwrap(message).message
        if len(choice) < len(_OFFER) or choice[0] != _NO_LAYER:
            raise AuthenticationFailed("the client wants a security layer, which is not offered")
        return Success(Principal(USER, self._names.short_name(str(self._context.initiator_name))))


class GssapiClient:
    """The client's side of GSSAPI. Every step may ask the key distribution centre."""

    mechanism = NAME

    def __init__(self, service: str, host: str, keytab: str | None = None, principal: str | None = None) -> None:
        """Arguments:

        service: the broker's service, `sasl.kerberos.service.name`.
        host: the broker's name.
        keytab, principal: the file with the client's keys, and its principal; None uses the tickets of `kinit`.

        Raises MechanismUnavailable.
        """
        gssapi = self._gssapi = _package()
        try:
            name = gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None
            store = {"client_keytab": keytab, "ccache": "MEMORY:pylogd"} if keytab else None
            credentials = gssapi.Credentials(name=name, usage="initiate", store=store)
            target = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
            flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
            self._context = gssapi.SecurityContext(name=target, creds=credentials, usage="initiate", flags=flags)
        except gssapi.exceptions.GSSError as error:
            raise MechanismUnavailable(f"GSSAPI has no usable ticket: {_text(error)}") from None
        self._chosen = False

    def first(self) -> bytes:
        """Return the client's first token (RFC 4752)."""
        try:
            return self._context.step() or b""
        except self._gssapi.exceptions.GSSError as error:
            raise MechanismUnavailable(f"no ticket for the broker: {_text(error)}") from None

    def step(self, challenge: bytes) -> bytes | None:
        """Continue the security context. Then choose no security layer."""
        if self._chosen:
            return None
        try:
            if not self._context.complete:
                return self._context.step(challenge) or b""
            offer = self._context.unwrap(challenge).message
            if len(offer) < len(_OFFER) or not offer[0] & _NO_LAYER:
                raise ServerNotTrusted("the broker demands a security layer; use TLS instead")
            self._chosen = True
            name = encode_text(str(self._context.initiator_name))
            message: bytes = self._context.wrap(_OFFER + name, False).message
        except self._gssapi.exceptions.GSSError as error:
            raise ServerNotTrusted(f"Kerberos does not accept the broker: {_text(error)}") from None
        return message


class LazyGssapiClient:
    """A `GssapiClient` that looks for its credentials at the first step, since the keys are in a file."""

    mechanism = NAME

    def __init__(self, service: str, host: str, keytab: str | None = None, principal: str | None = None) -> None:
        self._arguments = service, host, keytab, principal
        self._begun: GssapiClient | None = None

    def first(self) -> bytes:
        """Return the client's first token (RFC 4752). Raises SaslError."""
        self._begun = GssapiClient(*self._arguments)
        return self._begun.first()

    def step(self, challenge: bytes) -> bytes | None:
        """See `GssapiClient`."""
        assert self._begun is not None
        return self._begun.step(challenge)


def _text(error: Any) -> str:
    return str(error).partition("\n")[0][:300]
