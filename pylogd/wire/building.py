"""Build the construct of each API and version from its schema in `protocol/apis/`. Only `schema` uses it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from pylogd.wire import types
from pylogd.wire.messages import ApiInfo
from pylogd.wire.structs import Field, MessageStruct, NullableStruct
from pylogd.wire.values import ZERO_UUID

Json = dict[str, Any]

_SCALAR_DEFAULTS: Json = {"bool": False, "string": "", "bytes": b"", "uuid": ZERO_UUID, "records": None}


def build_construct(info: ApiInfo, version: int, role: str, schema: Json) -> MessageStruct:
    """Return the uncompiled construct of an API's requests or responses at an existing version.

    `role` is "request" or "response"; `schema` is the API's schema file.
    """
    builder = _Builder(info, version)
    return builder.struct(info.name + role.capitalize(), info.name + role.capitalize(), schema[role])


class _Builder:
    """Builds the construct of one API at one version from its schema."""

    def __init__(self, info: ApiInfo, version: int) -> None:
        self._version = version
        self._flexible = version >= info.flexible_from
        self._module: ModuleType = importlib.import_module(f"pylogd.wire.messages.{info.module}")

    def struct(self, where: str, class_name: str, fields: list[Json]) -> MessageStruct:
        cls: type = getattr(self._module, class_name)
        return MessageStruct(where, cls, [self._field(where, field) for field in fields], self._flexible)

    def _field(self, where: str, field: Json) -> Field:
        exists = "versions" not in field or self._covers(field["versions"])
        kind = self._type(f"{where}.{field['name']}", field) if exists else None
        return Field(field["name"], kind, self._default(field), field.get("ignorable", False), field.get("tag"))

    def _type(self, where: str, field: Json) -> types.WireType:
        kind: str = field["type"]
        nullable = "nullable" in field and self._covers(field["nullable"])
        if kind.startswith("[]"):
            element = self._type(where, {**field, "type": kind[2:], "nullable": "none"})
            return types.Array(where, element, self._flexible, nullable)
        if kind in types.FIXED_FORMATS:
            return types.Fixed(where, kind)
        if kind == "string":
            return types.String(where, self._flexible, nullable)
        if kind in ("bytes", "records"):
            cls = types.Bytes if kind == "bytes" else types.Records
            return cls(where, self._flexible, nullable)
        struct_type = self.struct(where, kind, field["fields"])
        return NullableStruct(where, struct_type) if nullable else struct_type

    def _default(self, field: Json) -> Any:
        kind: str = field["type"]
        if "default" in field:
            return field["default"]
        if kind.startswith("[]"):
            return []
        if "fields" in field:
            return getattr(self._module, kind)()
        return _SCALAR_DEFAULTS.get(kind, 0)

    def _covers(self, versions: str) -> bool:
        """Return whether a range such as "3", "3-5", "3+" or "none" includes the version."""
        if versions == "none":
            return False
        if versions.endswith("+"):
            return self._version >= int(versions[:-1])
        low, _, high = versions.partition("-")
        return int(low) <= self._version <= int(high or low)
