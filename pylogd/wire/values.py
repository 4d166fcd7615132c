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

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message) or type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._values().items())
        return f"{type(self).__qualname__}({fields})"

    def _values(self) -> dict[str, Any]:
        names: tuple[str, ...] = self.__slots__
        return {name: getattr(self, name) for name in names}
