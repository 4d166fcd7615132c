"""The types of schemas: validation, canonical text, and compatibility of changes.

Each module here is a `Format`: `avro`, `json_schema`, `protobuf`. They run in the processes of
`services.registry.checking`, because a schema of a few kilobytes can take exponential time. Must not know: subjects,
how schemas are stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final, Protocol, cast

from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.model import AVRO, JSON, KINDS, PROTOBUF, Comparison, Definitions


class Changes:
    """The changes that a comparison has found so far, and its present place."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._path: list[str] = []

    @contextmanager
    def at(self, *names: object) -> Iterator[None]:
        """Set a place below the present one for the `with` block."""
        self._path += map(str, names)
        try:
            yield
        finally:
            del self._path[len(self._path) - len(names) :]

    def report(self, change: str, *names: object) -> None:
        """Add a change at the present place, or at a place below it."""
        self.found.append(f"{change} at #/{'/'.join([*self._path, *map(str, names)])}")

    def once(self) -> list[str]:
        """Return each change once, in the order in which they were found."""
        return list(dict.fromkeys(self.found))


_MODULES: Final = {AVRO: "avro", JSON: "json_schema", PROTOBUF: "protobuf"}


class Format(Protocol):
    """The functions of a module for a schema type. All raise InvalidSchema for a schema that is not valid."""

    def canonical(self, definitions: Definitions, *, normalize: bool) -> str:
        """Return the last of these definitions in the form that the registry keeps.

        normalize: whether to write equivalent schemas alike: with full names, and with sorted attributes and fields.
        """

    def rendered(self, definitions: Definitions, form: str) -> str:
        """Return the last of these definitions in the form that the API's parameter `format` requests."""

    def conflicts(self, reader: Definitions, writer: Definitions) -> list[str]:
        """Return why data written with `writer` can't be read with `reader`; empty if it can."""


def format_of(kind: str) -> Format:
    """Return the module for a schema type.

    Raises InvalidSchema if the type is unknown, or its libraries are missing.
    """
    if kind not in _MODULES:
        raise InvalidSchema(f"Invalid schema type {kind}: use one of {', '.join(KINDS)}")
    try:
        return cast(Format, import_module(f"{__name__}.{_MODULES[kind]}"))
    except ImportError as error:
        raise InvalidSchema(
            f"schemas of type {kind} need a library that the registry's server has not ({error}): "
            "install the extra, pip install 'pylogd-broker[schemas]'"
        ) from error


def compare(comparison: Comparison) -> list[str]:
    """Return why a new schema is incompatible with earlier ones; empty if it is compatible. Raises InvalidSchema."""
    used, level, reasons = format_of(comparison.kind), comparison.level, list[str]()
    for version, earlier in comparison.earlier:
        if level.backward:
            found = used.conflicts(comparison.new, earlier)
            reasons += [f"it can't read data of version {version}: {why}" for why in found]
        if level.forward:
            found = used.conflicts(earlier, comparison.new)
            reasons += [f"version {version} can't read its data: {why}" for why in found]
    return reasons
