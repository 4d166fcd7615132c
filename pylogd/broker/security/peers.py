"""Prove to a broker that a connection comes from another broker of its cluster, without an authorizer or certificates.

A follower's fetch tells its leader which records the follower has, and answers to acks=all depend on this. So a fetch
with the node id of a broker counts only on a connection of that broker.
Strategy: each broker process makes a random secret. Its registration in the metadata store has the SHA-256 digest of
it, which is of no use to those who read it. A connection to another broker begins with an ApiVersions request whose
software version ends with the node id and the secret; the broker asked compares its digest with the registered one.

Rules:
- A broker whose registration has no digest has an earlier release. Its fetches count unproven, so that a cluster can be
  upgraded broker by broker. The gap is closed when the last broker is upgraded.
- For a broker that is not registered, the last registration that was seen here counts. A broker that was never seen
  proves nothing.
- Secrets are kept in memory only, and are in no log, error or repr.

On a plaintext network an attacker who can read packets between brokers can read the secret too. Listeners with TLS or
SASL, and an authorizer, protect against that (docs/limits.md).
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from pylogd.broker.metadata.image import Broker

#: The software name of brokers in ApiVersions requests.
SOFTWARE_NAME: Final = "pylogd-broker"
_SECRET_BYTES = 16
_PARTS = 3  # the parts of a broker's software version: pylogd's version, node id, secret
_MAX_DIGITS = 10


class PeerClaim(NamedTuple):
    """The broker that a connection claims to be: a node id, and the digest of the secret that it sent."""

    node_id: int
    digest: str


class BrokerSecret:
    """The secret of this broker's process.

    digest: the digest in its registration.
    """

    __slots__ = ("_secret", "digest")

    def __init__(self) -> None:
        self._secret = secrets.token_hex(_SECRET_BYTES)
        self.digest = _digest(self._secret)

    def software_version(self, version: str, node_id: int) -> str:
        """Return the software version of this broker's ApiVersions requests.

        version: pylogd's version.
        """
        return f"{version}-{node_id}-{self._secret}"


def read_claim(software_name: str, software_version: str) -> PeerClaim | None:
    """Return the claim in an ApiVersions request, None if it has none."""
    parts = software_version.rsplit("-", 2)
    if software_name != SOFTWARE_NAME or len(parts) != _PARTS:
        return None
    _, node_id, secret = parts
    if not (node_id.isascii() and node_id.isdigit() and len(node_id) <= _MAX_DIGITS):
        return None
    return PeerClaim(int(node_id), _digest(secret))


class Peers:
    """Knows the brokers of the cluster.

    known: returns the last registration of each broker, live or not, by its id.
    """

    __slots__ = ("_known",)

    def __init__(self, known: Callable[[], Mapping[int, Broker]]) -> None:
        self._known = known

    def proven(self, claim: PeerClaim | None, node_id: int) -> bool:
        """Return whether a connection with this claim belongs to broker `node_id`."""
        broker = self._known().get(node_id)
        if broker is None:
            return False
        if broker.proof is None:
            return True
        return claim is not None and claim.node_id == node_id and self.is_peer(claim)

    def is_peer(self, claim: PeerClaim) -> bool:
        """Return whether a claim has the secret of the broker that it names."""
        broker = self._known().get(claim.node_id)
        if broker is None or broker.proof is None:
            return False
        return hmac.compare_digest(claim.digest, broker.proof)


def _digest(secret: str) -> str:
    return sha256(secret.encode("ascii", "replace")).hexdigest()
