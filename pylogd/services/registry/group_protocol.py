"""Choose the leader of a group of registries, with the formats and the rule of Confluent's registries.

Strategy: each member has its address in its group metadata. The member that the coordinator asks to assign names the
leader, and every member gets this as its assignment. A leader stays the leader as long as it is in the group; otherwise
the eligible member with the smallest URL becomes the leader. Must not know: connections, time.
Source: Confluent Schema Registry (group protocol type `sr`, protocol `v0`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pylogd.base.errors import PylogdError

PROTOCOL_TYPE: Final = "sr"
PROTOCOL: Final = "v0"
_VERSION: Final = 1
_NO_ERROR, _SAME_URLS = 0, 1


class BadAssignment(PylogdError):
    """The name of the leader can't be read, or members of the group have the same URL."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The address at which other registries reach a registry.

    eligible: whether it may lead.
    leads: whether it leads already.
    """

    host: str
    port: int
    scheme: str = "http"
    eligible: bool = True
    leads: bool = False

    @property
    def url(self) -> str:
        """The registry's URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def as_json(self) -> dict[str, object]:
        """Return the identity as JSON."""
        return {
            "version": _VERSION, "host": self.host, "port": self.port, "master_eligibility": self.eligible,
            "scheme": self.scheme, "leader": self.leads,
        }  # fmt: skip

    def encoded(self) -> bytes:
        """Return the metadata of a member."""
        return json.dumps(self.as_json()).encode()

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Identity:
        """Return the identity in a JSON object. Raises KeyError, TypeError or ValueError."""
        return cls(
            str(document["host"]), int(str(document["port"])), str(document.get("scheme") or "http"),
            bool(document.get("master_eligibility", True)), bool(document.get("leader", False)),
        )  # fmt: skip


def assignment(members: Mapping[str, bytes]) -> bytes:
    """Return the assignment of all members.

    members: the members' metadata by member id.
    """
    known = {name: _identity(metadata) for name, metadata in members.items()}
    able = sorted((each.url, name) for name, each in known.items() if each is not None and each.eligible)
    leading = [name for _, name in able if (each := known[name]) is not None and each.leads]
    chosen = leading[0] if len(leading) == 1 else able[0][1] if able else None
    urls = [each.url for each in known.values() if each is not None]
    document: dict[str, object] = {
        "version": _VERSION,
        "error": _NO_ERROR if len(set(urls)) == len(urls) else _SAME_URLS,
    }
    leader = None if chosen is None else known[chosen]
    if leader is not None:
        document |= {"master": chosen, "master_identity": leader.as_json()}
    return json.dumps(document).encode()


def leader_of(encoded: bytes) -> tuple[str, Identity] | None:
    """Return the member id and the identity of the leader in an assignment; None if no member is eligible.

    Raises BadAssignment.
    """
    try:
        document = json.loads(encoded)
        if document.get("error", _NO_ERROR) == _SAME_URLS:
            raise BadAssignment(
                "two registries of the group have the same URL: give each its own with --advertise HOST:PORT"
            )
        name, identity = document.get("master"), document.get("master_identity")
        return None if name is None or identity is None else (str(name), replace(Identity.of(identity), leads=True))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadAssignment(f"the registry group's leader can't be read from {encoded!r:.200}") from error


def _identity(metadata: bytes) -> Identity | None:
    try:
        return Identity.of(json.loads(metadata))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
