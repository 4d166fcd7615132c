"""The members of a group, and the indexes over them, which are kept in step.

Strategy: an index such as "member id by instance id" is never changed directly. `put`, `change` and `remove` take a
member's entries out of all indexes before it changes and enter them again afterwards, whichever of its fields changed.
A group that needs another index extends `_enter` and `_leave`.

Rules: readers use `members` and `instances`, which stay the same objects; only the methods change them. Only `change`
may change fields by which a member is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar


class Identified(Protocol):
    """The fields by which members of both protocols are found."""

    @property
    def member_id(self) -> str: ...

    @property
    def instance_id(self) -> str | None: ...


M = TypeVar("M", bound=Identified)


class MemberTable(Generic[M]):
    """The members of a group.

    members: the members by member id, in the order of their arrival.
    instances: the member id by instance id of static members.
    """

    __slots__ = ("_instances", "_members", "instances", "members")

    def __init__(self) -> None:
        self._members: dict[str, M] = {}
        self._instances: dict[str, str] = {}
        self.members: Mapping[str, M] = self._members
        self.instances: Mapping[str, str] = self._instances

    def put(self, member: M) -> None:
        """Add a member, or replace the member with the same id."""
        if member.member_id in self._members:
            self.change(member.member_id, lambda _: member)
        else:
            self._members[member.member_id] = member
            self._enter(member)

    def change(self, member_id: str, change: Callable[[M], M]) -> M:
        """Replace a member by the result of `change`: another member, or the same with other fields. Return the result.

        Its place in the order stays, even if it gets another id.
        """
        before = self._members[member_id]
        self._leave(before)
        after = change(before)
        if after.member_id == member_id:
            self._members[member_id] = after
        else:
            renamed = {after.member_id if key == member_id else key: one for key, one in self._members.items()}
            renamed[after.member_id] = after
            self._members.clear()
            self._members.update(renamed)
        self._enter(after)
        return after

    def remove(self, member_id: str) -> M | None:
        """Remove a member, and return it; None if there is none."""
        member = self._members.pop(member_id, None)
        if member is not None:
            self._leave(member)
        return member

    def clear(self) -> None:
        """Remove all members."""
        for member_id in list(self._members):
            self.remove(member_id)

    def copy_from(self, other: MemberTable[M]) -> None:
        """Copy the members of another table, with its indexes. This table must be empty."""
        self._members.update(other._members)
        self._instances.update(other._instances)

    def _enter(self, member: M) -> None:
        """Add a member to the indexes."""
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id

    def _leave(self, member: M) -> None:
        """Remove a member from the indexes, unless another one has replaced it there."""
        if member.instance_id is not None and self._instances.get(member.instance_id) == member.member_id:
            del self._instances[member.instance_id]
