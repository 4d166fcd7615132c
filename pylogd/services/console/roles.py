"""The roles of users and their permissions. A role depends on the way of logging in.

A viewer may read. An operator may also change topics, groups, messages and the placement of replicas. An administrator
may also delete, and set quotas, users and ACLs. A configuration names the members of each role:

| in the file | means |
| --- | --- |
| `user:ada` | who logged in as `ada` with a password of the users file |
| `certificate:katherine` | who showed a certificate with this common name |
| `oidc:grace@example.com` | whom the OpenID provider names so (`user_claim`) |
| `claim:groups=platform` | whose id token has this text in the claim `groups`, alone or in a list |

Rules: a name is valid only for its way of logging in, since `ada` at the provider need not be the `ada` of the users
file. A user with several roles has the highest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple


class Role(IntEnum):
    """The permissions of a user; each role includes the earlier ones."""

    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


USER: Final = "user"
CERTIFICATE: Final = "certificate"
OIDC: Final = "oidc"
CLAIM: Final = "claim"
EMAIL: Final = "email"
WAYS: Final = (USER, CERTIFICATE, OIDC, CLAIM)


class Identity(NamedTuple):
    """A user.

    way: how the user was identified, one of `WAYS`.
    claims: the claims of an id token, as `name=value`.
    """

    user: str
    way: str
    claims: frozenset[str] = frozenset()


class Roles:
    """The roles of a configuration."""

    def __init__(self, members: Mapping[Role, Iterable[str]], others: Role = Role.NONE) -> None:
        """members: the members by role, written as in the module's table.
        others: the role of users that are not named.

        Raises ValueError for a member that is not written in this way.
        """
        self._role_of: dict[str, Role] = {}
        self._others = others
        for role, names in members.items():
            for name in names:
                way, _, rest = name.partition(":")
                if way not in WAYS or not rest or (way == CLAIM and not all(rest.partition("="))):
                    raise ValueError(
                        f"{name!r} is not a member of a role: write user:NAME, certificate:NAME, oidc:NAME or "
                        "claim:CLAIM=VALUE"
                    )
                self._role_of[name] = max(role, self._role_of.get(name, Role.NONE))

    def of(self, identity: Identity) -> Role:
        """Return the highest role of a user."""
        names = [f"{identity.way}:{identity.user}", *(f"{CLAIM}:{claim}" for claim in identity.claims)]
        return max((self._role_of[name] for name in names if name in self._role_of), default=self._others)

    def uses(self, way: str) -> bool:
        """Return whether a member with this way of logging in is named."""
        return any(name.startswith(way + ":") for name in self._role_of)


#: The roles without a configuration: all users of the console may do everything.
EVERYTHING: Final = Roles({}, Role.ADMIN)


def has_verified_email(document: Mapping[str, Any]) -> bool:
    """Return whether an id token has a verified email; some providers write the boolean as text."""
    return document.get("email_verified") in (True, "true")


def claims_of(document: Mapping[str, Any]) -> frozenset[str]:
    """Return the claims of an id token that are texts, or lists of texts, as `name=value`.

    An email that the provider has not verified is left out: at many providers users can enter any email.
    """
    found: set[str] = set()
    for name, value in document.items():
        if name == EMAIL and not has_verified_email(document):
            continue
        texts = value if isinstance(value, list) else [value]
        found.update(f"{name}={text}" for text in texts if isinstance(text, str))
    return frozenset(found)
