"""The administrator's operations on SCRAM credentials of users, for all faces (see `operations`).

The password stays in this process: a broker gets a salted hash of it. Hashing takes some milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pylogd.base.errors import KafkaError, error_for
from pylogd.client.core.admin.calls import Calls, ask, once
from pylogd.client.core.admin.visibility import Probe, tells, until_shown
from pylogd.client.core.metadata import check
from pylogd.credentials.scram import MIN_ITERATIONS, SCRAM_CODES, SCRAM_MECHANISMS, new_salt, salted_password
from pylogd.wire.messages import alter_user_scram_credentials as alter
from pylogd.wire.messages import describe_user_scram_credentials as describe

_RESOURCE_NOT_FOUND = 91


class UserCredential(NamedTuple):
    """A user's credential: the mechanism, such as SCRAM-SHA-512, and the number of iterations of the hash."""

    user: str
    mechanism: str
    iterations: int


class UserOperations:
    """Operations on SCRAM credentials of users."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list_users(self, names: Sequence[str] = ()) -> list[UserCredential]:
        """Return the SCRAM credentials of users, by default of all. Users without credentials are left out.

        Raises KafkaError."""
        wanted = [describe.UserName(name) for name in dict.fromkeys(names)] or None
        response = await ask(self._calls, describe.DescribeUserScramCredentialsRequest(wanted))
        check(response.error_code, response.error_message)
        found = []
        for result in response.results:
            if result.error_code != _RESOURCE_NOT_FOUND:
                check(result.error_code, result.error_message)
            for info in result.credential_infos:
                known = SCRAM_CODES.get(info.mechanism)
                name = str(info.mechanism) if known is None else known.mechanism
                found.append(UserCredential(result.user, name, info.iterations))
        return sorted(found)

    async def set_password(
        self,
        user: str,
        password: str,
        mechanisms: Sequence[str] = tuple(SCRAM_MECHANISMS),
        iterations: int = MIN_ITERATIONS,
    ) -> None:
        """Set a user's password for SCRAM mechanisms, by default for all of them. Raises KafkaError."""
        upsertions = []
        for mechanism in mechanisms:
            algorithm, salt = SCRAM_MECHANISMS[mechanism], new_salt()
            salted = salted_password(algorithm, password, salt, iterations)
            upsertions.append(alter.ScramCredentialUpsertion(user, algorithm.code, iterations, salt, salted))
        response = await ask(self._calls, alter.AlterUserScramCredentialsRequest(upsertions=upsertions))
        for result in response.results:
            check(result.error_code, result.error_message)
        given = {SCRAM_MECHANISMS[mechanism].code: iterations for mechanism in mechanisms}
        await until_shown(self._calls, _credentials([user], lambda found: given.items() <= found[user].items()))

    async def delete_credentials(self, credentials: Sequence[UserCredential]) -> Mapping[str, KafkaError | None]:
        """Delete SCRAM credentials of users. Return the outcome by user."""
        deletions = [
            alter.ScramCredentialDeletion(one.user, SCRAM_MECHANISMS[one.mechanism].code) for one in credentials
        ]
        response = await once(self._calls, alter.AlterUserScramCredentialsRequest(deletions=deletions))
        gone: dict[str, set[int]] = {result.user: set() for result in response.results if not result.error_code}
        for one in deletions:
            if one.name in gone:
                gone[one.name].add(one.mechanism)
        if gone:
            await until_shown(
                self._calls,
                _credentials(gone, lambda found: not any(gone[user] & found[user].keys() for user in gone)),
            )
        return {
            result.user: KafkaError(error_for(result.error_code), result.error_message) if result.error_code else None
            for result in response.results
        }


def _credentials(users: Iterable[str], expected: Callable[[dict[str, dict[int, int]]], bool]) -> Probe:
    """Return the probe that shows the credentials of users: the iterations by mechanism.

    It does not show a new password if mechanism and iterations stay the same.
    """
    names = list(users)
    request = describe.DescribeUserScramCredentialsRequest([describe.UserName(name) for name in names])

    def read(response: describe.DescribeUserScramCredentialsResponse) -> dict[str, dict[int, int]] | None:
        found: dict[str, dict[int, int]] = {name: {} for name in names}
        for code in (response.error_code, *(result.error_code for result in response.results)):
            if code != _RESOURCE_NOT_FOUND and not tells(code):
                return None
        for result in response.results:
            found[result.user] = {info.mechanism: info.iterations for info in result.credential_infos}
        return found

    return Probe(describe.DescribeUserScramCredentialsRequest, lambda _: request, read, expected)
