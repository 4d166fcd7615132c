"""What the generated messages share: their base, and values with a meaning of their own.

Imports nothing of pylogd, so that messages stay cheap to load.
"""

from __future__ import annotations

from typing import Any

#: the id that means "no topic id"
ZERO_UUID = bytes(16)
#: the default of an argument that stands for a new list, or a new struct
UNSET: Any = object()


class Message:
    """A dataclass of the protocol, but for `__init__`, which is written out in each: equal if all fields are."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__qualname__}({fields})"
