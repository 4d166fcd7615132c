"""SCRAM credentials of users, in the metadata tree in Kafka's form: as settings of `/config/users/<user>`.

Strategy: they are read from `EntityConfigs`, which every broker keeps up to date, so a look-up is one dict access, and
all brokers see a change at once. Unknown names get decoys: salts that depend on the name and on a secret of the cluster
(`/scram_decoy_secret`), with the number of iterations and the length that most credentials have. So all brokers give
the same answer for an unknown name, which looks like the answer for a user.

Rules: credentials are never logged, described or sent.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.broker.metadata.entity_configs import Entity, EntityConfigs
from pylogd.credentials.principal import USER, Principal
from pylogd.credentials.scram import (
    MIN_ITERATIONS,
    SALT_BYTES,
    SCRAM_MECHANISMS,
    Algorithm,
    ScramCredential,
    ScramIdentity,
    decode_credential,
    encode_credential,
)
from pylogd.store.errors import NodeExists, NoNode
from pylogd.store.interfaces import IMetadataStore
from pylogd.store.paths import SCRAM_DECOY_SECRET

log = Logger()

_SECRET_BYTES: Final = 32
_DECOY_KEY_BYTES: Final = 64  # the number of bytes of the longest hash
#: The iterations and the length of the salt if there are no credentials.
_COMMON: Final = (MIN_ITERATIONS, SALT_BYTES)

#: (algorithm, token id, decoy) -> the owner of a delegation token. The decoy tells how the token's credential is
#: salted.
FindToken = Callable[[Algorithm, str, ScramCredential], ScramIdentity | None]


class StoredUsers:
    """The users with SCRAM credentials, and decoys for others.

    find_token: finds delegation tokens.
    """

    def __init__(self, configs: EntityConfigs, find_token: FindToken) -> None:
        self._configs = configs
        self._find_token = find_token
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._decoy_key = secrets.token_bytes(_DECOY_KEY_BYTES)
        self._users: dict[str, dict[str, ScramCredential]] = {}  # by name, then mechanism
        self._shapes: dict[str, Counter[tuple[int, int]]] = {mechanism: Counter() for mechanism in SCRAM_MECHANISMS}
        self._common: dict[str, tuple[int, int]] = {}
        configs.subscribe(self._changed)
        self._changed(configs.configs)

    async def start(self, store: IMetadataStore) -> None:
        """Read the cluster's secret for decoys. The first broker makes it."""
        for _ in range(2):
            try:
                self._secret = b64decode((await store.get(SCRAM_DECOY_SECRET)).data)
            except NoNode:
                try:
                    await store.create(SCRAM_DECOY_SECRET, b64encode(self._secret))
                except NodeExists:
                    continue
            return

    # -- look-ups

    @property
    def users(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """The credentials of all users: by the user's name, then by mechanism."""
        return self._users

    def user(self, algorithm: Algorithm, name: str) -> ScramIdentity | None:
        """Return a user who has a credential for `algorithm`."""
        credential = self._users.get(name, {}).get(algorithm.mechanism)
        return None if credential is None else ScramIdentity(Principal(USER, name), credential)

    def token(self, algorithm: Algorithm, token_id: str) -> ScramIdentity | None:
        """Return a delegation token that is valid now."""
        return self._find_token(algorithm, token_id, self.decoy(algorithm, token_id))

    def decoy(self, algorithm: Algorithm, name: str) -> ScramCredential:
        """Return a credential for an unknown name, which is the same each time and on each broker."""
        iterations, length = self._common.get(algorithm.mechanism, _COMMON)
        salt = hmac.digest(self._secret, f"salt\0{algorithm.mechanism}\0{name}".encode(), "sha512")
        if length > len(salt):
            salt *= 1 + length // len(salt)
        key = self._decoy_key[: algorithm.size]  # no client ever sees it, or values computed from it
        return ScramCredential(salt[:length], key, key, iterations)

    # -- changes

    def alter(self, name: str, changes: Mapping[str, ScramCredential | None]) -> Deferred[None]:
        """Set credentials of a user by mechanism; None deletes a credential.

        Fires when this broker has read the change back. Fails with KafkaError if a credential to delete does not exist.
        """
        known = self._users.get(name, {})
        for mechanism, credential in changes.items():
            if credential is None and mechanism not in known:
                raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"The user has no credential for {mechanism}.")
        encoded = {
            mechanism: None if credential is None else encode_credential(credential)
            for mechanism, credential in changes.items()
        }
        return self._configs.alter(Entity(user=name), encoded)

    def _changed(self, entities: Iterable[Entity]) -> None:
        for entity in entities:
            if not entity.user or entity.client_id is not None:
                continue
            found: dict[str, ScramCredential] = {}
            for mechanism, text in self._configs.configs.get(entity, {}).items():
                if mechanism in SCRAM_MECHANISMS:
                    try:
                        found[mechanism] = decode_credential(text)
                    except ValueError as error:
                        log.error("The credential of {user!r} for {mechanism} can't be used: {error}. Set it again",
                                  user=entity.user, mechanism=mechanism, error=str(error))  # fmt: skip
            self._replace(entity.user, found)
        for mechanism, shapes in self._shapes.items():
            self._common[mechanism] = min(shapes, key=lambda shape: (-shapes[shape], shape), default=_COMMON)

    def _replace(self, user: str, found: dict[str, ScramCredential]) -> None:
        """Replace the credentials of a user, and count them by their number of iterations and length of salt."""
        for count, credentials in ((-1, self._users.pop(user, {})), (1, found)):
            for mechanism, credential in credentials.items():
                shapes, shape = self._shapes[mechanism], (credential.iterations, len(credential.salt))
                shapes[shape] += count
                if not shapes[shape]:
                    del shapes[shape]
        if found:
            self._users[user] = found
