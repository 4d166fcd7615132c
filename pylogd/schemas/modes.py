"""What may be changed: the modes of the registry and of single subjects, as Confluent's registry has them."""

from __future__ import annotations

from enum import StrEnum

from pylogd.schemas.errors import InvalidMode


class Mode(StrEnum):
    """The registry's mode, or a subject's own, which goes before it."""

    READWRITE = "READWRITE"
    #: Nothing may be registered, deleted or configured.
    READONLY = "READONLY"
    #: Of the registry only: the same, whatever mode subjects have.
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    #: Schemas are registered with the id, and if given the version, that the request names; nothing else may be.
    IMPORT = "IMPORT"

    @property
    def writable(self) -> bool:
        """Whether anything may be changed."""
        return self in (Mode.READWRITE, Mode.IMPORT)

    @classmethod
    def named(cls, name: object) -> Mode:
        """The mode of that name; raises InvalidMode."""
        try:
            return cls(str(name).upper())
        except ValueError as error:
            raise InvalidMode(f"Invalid mode. Valid values are {', '.join(cls)}") from error
