"""Principals: the identities of connections. Kafka writes them `User:alice`."""

from __future__ import annotations

from typing import Final, NamedTuple

#: The type of every principal that pylogd makes itself. A principal builder may make other types.
USER: Final = "User"


class Principal(NamedTuple):
    """The identity of a connection: a type, and a name that may have any character."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


#: The principal of clients that do not authenticate: all on PLAINTEXT listeners, and those without a certificate on
#: SSL.
ANONYMOUS: Final = Principal(USER, "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """Return the principal that `text` names as `Type:name`. Raises ValueError for other texts."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ValueError(f'"{text[:100]}" is not a principal; write its type and its name, for example User:alice')
    return Principal(kind, name)
