"""Modes of the registry, of contexts and of subjects, which say what may be changed, as in Confluent's registry."""

from __future__ import annotations

from enum import StrEnum

from pylogd.services.registry.errors import InvalidMode


class Mode(StrEnum):
    """The mode of the registry, of a context or of a subject. The narrowest mode applies."""

    READWRITE = "READWRITE"
    #: Schemas can't be registered or deleted, and compatibility levels can't be changed.
    READONLY = "READONLY"
    #: Only for the registry: READONLY for all subjects, whatever their own mode is.
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    #: The request names the id, and optionally the version, of a schema that it registers.
    IMPORT = "IMPORT"
    #: IMPORT for all contexts without their own mode: schemas from an exporter of another registry are accepted.
    FORWARD = "FORWARD"

    @property
    def writable(self) -> bool:
        """Whether the mode allows changes."""
        return self is Mode.READWRITE or self.imports

    @property
    def imports(self) -> bool:
        """Whether a registration names its id, and is not compared with earlier versions."""
        return self in (Mode.IMPORT, Mode.FORWARD)

    @classmethod
    def named(cls, name: object) -> Mode:
        """Return the mode of that name, in any case. Raises InvalidMode."""
        try:
            return cls(str(name).upper())
        except ValueError as error:
            raise InvalidMode("Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.") from error
