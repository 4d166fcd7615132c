"""The base class of the generated messages, and special values.

Imports nothing of pylogd, so that messages are quick to import.
"""

from __future__ import annotations

from typing import Any, Self

#: the topic id that means no topic
ZERO_UUID = bytes(16)
#: the fields of any message that have secrets; their values are not shown
_SECRETS = frozenset({"auth_bytes", "hmac", "salted_password"})
#: the default of arguments that get a new list or struct
UNSET: Any = object()


class Message:
    """The base of all messages and structs. Two messages of the same class are equal if all of their fields are equal.

    The subclasses have generated slots and `__init__` methods, because `@dataclass` would make them at each start.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message) or type(other) is not type(self):
            return NotImplemented
        return self.field_values() == other.field_values()

    __hash__ = None  # type: ignore[assignment]  # messages are mutable

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}={'(hidden)' if name in _SECRETS else repr(value)}" for name, value in self.field_values().items()
        )
        return f"{type(self).__qualname__}({fields})"

    def replaced(self, **changes: Any) -> Self:
        """Return a copy in which these fields have other values."""
        return type(self)(**{**self.field_values(), **changes})

    def field_values(self) -> dict[str, Any]:
        """Return the values of the fields by name, in their order."""
        names: tuple[str, ...] = self.__slots__
        return {name: getattr(self, name) for name in names}
