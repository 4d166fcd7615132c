"""AlterUserScramCredentials (51), version 0: set and delete SCRAM credentials of users (KIP-554).

Behaviour: each user is changed or refused separately, with all of its changes or none. It is answered when this broker
accepts the new credential; other brokers accept it within a second. As in Kafka, a salted password may have another
length than the digest, since keys can be computed from it anyway. A client needs ALTER on the cluster.
Errors:
- DUPLICATE_RESOURCE: the request names a credential twice;
- RESOURCE_NOT_FOUND: a credential to delete does not exist;
- UNACCEPTABLE_CREDENTIAL: iterations outside 4,096 to 16,384, an empty name or salted password, or a salt of more than
  8,192 bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.broker.api.registry import handles
from pylogd.broker.api.slices import Pace
from pylogd.broker.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from pylogd.credentials.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_CODES,
    Algorithm,
    ScramCredential,
    credential_of,
)
from pylogd.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

_MOST_SALT_BYTES = 8192
_Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion


@handles(AlterUserScramCredentialsRequest, 0, 0)
def alter_user_scram_credentials(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> Deferred[AlterUserScramCredentialsResponse]:
    """Change the credentials of every user of the request."""
    return Deferred.fromCoroutine(_alter_all(context, request))


async def _alter_all(
    context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    wanted: dict[str, list[_Change]] = {}
    all_changes: list[_Change] = [*request.deletions, *request.upsertions]
    for change in all_changes:
        wanted.setdefault(change.name, []).append(change)
    allowed = context.may(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    results = []
    pace = Pace(context)
    for name, changes in wanted.items():
        await pace.step()
        try:
            if not allowed:
                raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            await context.broker.security.scram_users.alter(name, _credentials(name, changes))
        except PylogdError as error:
            results.append(AlterUserScramCredentialsResult(name, *explain(error)))
        else:
            results.append(AlterUserScramCredentialsResult(name, error_message=None))
    return AlterUserScramCredentialsResponse(results=results)


def _credentials(name: str, changes: list[_Change]) -> dict[str, ScramCredential | None]:
    """Return the new credentials of a user by mechanism; None stands for a credential to delete. Raises KafkaError."""
    if not name:
        raise _unacceptable("The user's name is empty.")
    count = Counter(change.mechanism for change in changes)
    found: dict[str, ScramCredential | None] = {}
    for change in changes:
        algorithm = SCRAM_CODES.get(change.mechanism)
        if algorithm is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"There is no mechanism {change.mechanism}.")
        if count[change.mechanism] > 1:
            raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, "The request names the user's credential more than once.")
        found[algorithm.mechanism] = (
            _credential(algorithm, change) if isinstance(change, ScramCredentialUpsertion) else None
        )
    return found


def _credential(algorithm: Algorithm, change: ScramCredentialUpsertion) -> ScramCredential:
    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        raise _unacceptable(f"The iterations have to be from {MIN_ITERATIONS} to {MAX_ITERATIONS}.")
    if len(change.salt) > _MOST_SALT_BYTES:
        raise _unacceptable(f"The salt has more than {_MOST_SALT_BYTES} bytes.")
    if not change.salted_password:
        raise _unacceptable("The salted password is empty.")
    return credential_of(algorithm, bytes(change.salted_password), bytes(change.salt), change.iterations)


def _unacceptable(text: str) -> KafkaError:
    return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
