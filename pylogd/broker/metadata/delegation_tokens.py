"""Delegation tokens in the metadata tree, where Kafka has them: a node of `/delegation_token/tokens` for each.

Strategy: every broker keeps all tokens in memory and learns of writes through the change feed. A token's secret is not
stored: it is computed from the token's id (`security.delegation_tokens`).

Must not know: secrets, who may do what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.broker.metadata.change_notes import Change
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.store.errors import BadVersion, CorruptMetadata, NodeExists, NoNode
from pylogd.store.interfaces import Create, Delete, IMetadataStore, SetData
from pylogd.store.paths import DELEGATION_TOKENS

log = Logger()

_VERSION: Final = 3


class DelegationToken(NamedTuple):
    """A delegation token (KIP-48). Principals are texts, `User:alice`; times are in milliseconds since 1970.

    owner: the principal for which the token is used.
    requester: the principal that asked for the token.
    renewers: the principals that may renew it besides the owner.
    max_ms: the time up to which it can be renewed.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int


class DelegationTokens:
    """The delegation tokens of the cluster, kept up to date."""

    def __init__(self, store: IMetadataStore, feed: ChangeFeed) -> None:
        self._store = store
        self._feed = feed
        self._tokens: dict[str, DelegationToken] = {}
        feed.add(self)

    @property
    def tokens(self) -> Mapping[str, DelegationToken]:
        """All tokens by their ids, including expired tokens that are not deleted yet."""
        return MappingProxyType(self._tokens)

    def put(self, token: DelegationToken) -> Deferred[None]:
        """Create or replace a token. Fires when this broker has read it back."""
        return Deferred.fromCoroutine(self._put(token))

    def delete(self, token_id: str) -> Deferred[None]:
        """Delete a token, if it exists."""
        return Deferred.fromCoroutine(self._delete(token_id))

    async def _put(self, token: DelegationToken) -> None:
        path = f"{DELEGATION_TOKENS}/{token.token_id}"
        data = encode_token(token)
        if token.token_id in self._tokens:
            await self._feed.write([SetData(path, data)], [path])
        else:
            await self._store.ensure(DELEGATION_TOKENS)
            await self._feed.write([Create(path, data)], [path])

    async def _delete(self, token_id: str) -> None:
        path = f"{DELEGATION_TOKENS}/{token_id}"
        try:
            await self._feed.write([Delete(path)], [path])
        except (NoNode, BadVersion, NodeExists):
            return

    async def reload(self, store: IMetadataStore) -> None:
        """Read all tokens."""
        try:
            nodes = await store.children_data(DELEGATION_TOKENS)
        except NoNode:
            nodes = {}
        found = {name: self._decode(name, node.data) for name, node in nodes.items()}
        self._tokens = {name: token for name, token in found.items() if token is not None}

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read again the tokens that a write has changed."""
        for path in change.paths:
            parent, _, name = path.rpartition("/")
            if parent != DELEGATION_TOKENS:
                continue
            try:
                token = self._decode(name, (await store.get(path)).data)
            except NoNode:
                token = None
            if token is None:
                self._tokens.pop(name, None)
            else:
                self._tokens[name] = token

    def _decode(self, name: str, data: bytes) -> DelegationToken | None:
        try:
            return decode_token(name, data)
        except CorruptMetadata as error:
            log.error("{error}. The delegation token can't be used; delete the node", error=str(error))
            return None


def encode_token(token: DelegationToken) -> bytes:
    """Encode the node of a token, with Kafka's names."""
    document = {
        "version": _VERSION,
        "owner": token.owner,
        "tokenRequester": token.requester,
        "renewers": token.renewers,
        "issueTimestamp": str(token.issued_ms),
        "maxTimestamp": str(token.max_ms),
        "expiryTimestamp": str(token.expires_ms),
        "tokenId": token.token_id,
    }
    return json.dumps(document, separators=(",", ":")).encode("utf-8")


def decode_token(name: str, data: bytes) -> DelegationToken:
    """Decode the node of a token, whose name is its id. Raises `CorruptMetadata`."""
    try:
        document = json.loads(data)
        owner = document["owner"]
        renewers = document.get("renewers") or ()
        requester = document.get("tokenRequester") or owner
        for text in (owner, requester, *renewers):
            kind, _, principal = text.partition(":")
            if not kind or not principal:
                raise ValueError("a principal is Type:name")
        return DelegationToken(
            name, owner, requester, tuple(renewers), int(document["issueTimestamp"]), int(document["expiryTimestamp"]),
            int(document["maxTimestamp"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptMetadata(f"{DELEGATION_TOKENS}/{name}", repr(error)) from error
