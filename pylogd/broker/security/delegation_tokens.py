"""Delegation tokens (KIP-48, KIP-373): short-lived credentials that a client hands to its workers.

Strategy: a token has an id and a secret, which is the HMAC of the id with `delegation.token.secret.key`, so that
brokers need to store no secret. Its holder authenticates by SCRAM with the id as user, the secret in base64 as
password, and the extension `tokenauth=true`. Then the holder has the principal of the token's owner. A token expires
unless it is renewed, and can be renewed up to a limit. Expired tokens are deleted after a while.

Must not know: requests. The caller checks who may do what.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.metadata.delegation_tokens import DelegationToken, DelegationTokens, encode_token
from pylogd.broker.metadata.image import id_to_text, new_id
from pylogd.config import Settings
from pylogd.credentials.principal import USER, Principal, parse_principal
from pylogd.credentials.scram import Algorithm, ScramCredential, ScramIdentity, make_credential

log = Logger()

_DIGEST: Final = "sha512"
_NO_TOKEN: Final = "no such token"
#: About the bytes of a token in the metadata store; its length depends on the renewers.
_MOST_BYTES: Final = 1 << 15


class TokenLimits(NamedTuple):
    """Times in milliseconds, and a number; the comment of each names its setting."""

    max_lifetime_ms: int  # delegation.token.max.lifetime.ms
    expiry_ms: int  # delegation.token.expiry.time.ms
    check_ms: int  # delegation.token.expiry.check.interval.ms
    per_requester: int  # delegation.token.max.per.requester


class TokenManager:
    """Makes, renews, ends and finds delegation tokens."""

    def __init__(
        self, tokens: DelegationTokens, key: str | None, limits: TokenLimits, now_ms: Callable[[], int]
    ) -> None:
        """key: `delegation.token.secret.key`; None turns delegation tokens off."""
        self._tokens = tokens
        self._key = None if key is None else key.encode("utf-8", "surrogatepass")
        self._limits = limits
        self._now_ms = now_ms
        self._ids: dict[str, bytes] = {}  # the ids of the tokens, by their secrets
        self._by_secret: dict[bytes, str] = {}
        self._timer: IDelayedCall | None = None

    # -- secrets

    def secret(self, token_id: str) -> bytes:
        """Return the secret of a token. Raises KafkaError without a key."""
        if self._key is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return hmac.digest(self._key, token_id.encode(), _DIGEST)

    def find(self, algorithm: Algorithm, token_id: str, decoy: ScramCredential) -> ScramIdentity | None:
        """Return the owner of a valid token, with the token's credential. Takes milliseconds, also for unknown tokens.

        decoy: tells how the credential is salted, so that known and unknown tokens look the same.
        """
        token = self._tokens.tokens.get(token_id)
        valid = token is not None and self._key is not None and token.expires_ms > self._now_ms()
        password = b64encode(self.secret(token_id)).decode() if valid else _NO_TOKEN
        credential = make_credential(algorithm, password, decoy.salt, decoy.iterations)
        if token is None or not valid:
            return None
        return ScramIdentity(parse_principal(token.owner), credential, token.expires_ms)

    def by_secret(self, secret: bytes) -> DelegationToken:
        """Return the token with this secret. Raises KafkaError."""
        if self._key is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        tokens = self._tokens.tokens
        if self._ids.keys() != tokens.keys():
            known = self._ids
            self._ids = {token_id: known.get(token_id) or self.secret(token_id) for token_id in tokens}
            self._by_secret = {secret: token_id for token_id, secret in self._ids.items()}
        token = tokens.get(self._by_secret.get(secret, ""))
        if token is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token

    # -- changes

    async def create(
        self, owner: Principal, requester: Principal, renewers: Sequence[Principal], lifetime_ms: int
    ) -> DelegationToken:
        """Make a token. Raises KafkaError.

        lifetime_ms: for how long it can be renewed. If it is 0 or negative, or longer than the broker's limit, the
            limit counts.
        """
        if self._key is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        if any(renewer.kind != USER for renewer in renewers):
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE, "Renewers have to be of the type User.")
        if not all(one.kind and one.name for one in (owner, requester, *renewers)):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The owner and each renewer of a token need a name.")
        now = self._now_ms()
        self._check_count(str(requester), now)
        longest = self._limits.max_lifetime_ms
        last = now + (min(lifetime_ms, longest) if lifetime_ms > 0 else longest)
        token = DelegationToken(
            id_to_text(new_id()), str(owner), str(requester), tuple(map(str, renewers)), now,
            min(last, now + self._limits.expiry_ms), last,
        )  # fmt: skip
        if len(encode_token(token)) > _MOST_BYTES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The token has too many renewers, or their names are too long.")
        await self._tokens.put(token)
        return token

    async def renew(self, principal: Principal, secret: bytes, period_ms: int) -> int:
        """Let a token expire `period_ms` from now (if negative, the default). Return when, in ms since 1970."""
        token = self._changeable(principal, secret)
        self._check_valid(token)
        period = self._limits.expiry_ms if period_ms < 0 else period_ms
        return await self._set_expiry(token, self._now_ms() + period)

    async def expire(self, principal: Principal, secret: bytes, period_ms: int) -> int:
        """Let a token expire `period_ms` from now (if negative, at once). Return when, in ms since 1970."""
        token = self._changeable(principal, secret)
        if period_ms < 0:
            await self._tokens.delete(token.token_id)
            return self._now_ms()
        self._check_valid(token)
        return await self._set_expiry(token, self._now_ms() + period_ms)

    def all(self) -> list[DelegationToken]:
        """Return the valid tokens, by their ids. Raises KafkaError without a key."""
        if self._key is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        now = self._now_ms()
        return [token for _, token in sorted(self._tokens.tokens.items()) if token.expires_ms > now]

    def _check_count(self, requester: str, now: int) -> None:
        """Raise KafkaError if a user has asked for as many tokens as it may have."""
        tokens = self._tokens.tokens.values()
        if sum(one.requester == requester and one.expires_ms > now for one in tokens) >= self._limits.per_requester:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "The user has too many delegation tokens.")

    def _changeable(self, principal: Principal, secret: bytes) -> DelegationToken:
        token = self.by_secret(secret)
        if str(principal) not in (token.owner, *token.renewers):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        return token

    def _check_valid(self, token: DelegationToken) -> None:
        if min(token.max_ms, token.expires_ms) <= self._now_ms():
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)

    async def _set_expiry(self, token: DelegationToken, expires_ms: int) -> int:
        changed = token._replace(expires_ms=min(token.max_ms, expires_ms))
        await self._tokens.put(changed)
        return changed.expires_ms

    # -- expired tokens

    def start(self, clock: IReactorTime) -> None:
        """Delete expired tokens periodically."""
        if self._key is not None:
            self._timer = clock.callLater(self._limits.check_ms / 1000, self._sweep, clock)

    def stop(self) -> None:
        """Stop deleting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self, clock: IReactorTime) -> None:
        now = self._now_ms()
        for token in list(self._tokens.tokens.values()):
            if token.expires_ms <= now:
                self._tokens.delete(token.token_id).addErrback(self._not_deleted)
        self._timer = clock.callLater(self._limits.check_ms / 1000, self._sweep, clock)

    def _not_deleted(self, failure: Failure) -> None:
        log.warn("Expired delegation tokens were not deleted, a later attempt will follow: {error}",
                 error=failure.getErrorMessage())  # fmt: skip


def make_tokens(settings: Settings, tokens: DelegationTokens, now_ms: Callable[[], int]) -> TokenManager:
    """Return the manager of delegation tokens that the settings describe."""
    limits = TokenLimits(
        settings.integer("delegation.token.max.lifetime.ms"),
        settings.integer("delegation.token.expiry.time.ms"),
        settings.integer("delegation.token.expiry.check.interval.ms"),
        settings.integer("delegation.token.max.per.requester"),
    )
    return TokenManager(tokens, settings.text("delegation.token.secret.key"), limits, now_ms)
