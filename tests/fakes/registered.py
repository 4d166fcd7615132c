"""Registered schemas without a registry, and messages that name them."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import google.type  # type: ignore[import-untyped]
import grpc_tools.protoc
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pylogd.client.registry.api_client import RegistryApi, SchemaRegistryError
from pylogd.lake.typed.errors import UnknownSchema
from pylogd.lake.typed.registry import AVRO, JSON, PROTOBUF, Definition, Registered, SchemaId


class MemoryLookup:
    """`decoding.Lookup` on a dict. Counts what it is asked."""

    def __init__(self, schemas: Mapping[SchemaId, Registered]) -> None:
        self.schemas = dict(schemas)
        self.asked = 0

    def schema(self, schema_id: SchemaId) -> Registered:
        self.asked += 1
        if schema_id not in self.schemas:
            raise UnknownSchema(f"the registry has no schema with the id {schema_id}")
        return self.schemas[schema_id]


class MemoryRegistry(RegistryApi):
    """The API of a registry of Avro schemas in a list, whose ids count from 1: all are versions of one subject."""

    def __init__(self, *schemas: Any) -> None:
        self.schemas = list(schemas)

    def ask(self, path: str, body: Any = None, query: Any = None) -> Any:
        if path.endswith("/versions"):
            if not self.schemas:
                raise SchemaRegistryError("no such subject", 40401)
            return list(range(1, len(self.schemas) + 1))
        number = int(path.rpartition("/")[2])
        if number > len(self.schemas):
            raise SchemaRegistryError("no such schema", 40403)
        return {"id": number, "schema": json.dumps(self.schemas[number - 1])}


def avro(schema: Any, *references: Any) -> Registered:
    """Return a registered Avro schema; `references` are the schemas that it uses."""
    used = tuple(Definition(each["name"], json.dumps(each)) for each in references)
    return Registered(AVRO, json.dumps(schema), used)


def record(*fields: tuple[str, Any], name: str = "Event") -> dict[str, Any]:
    """Return an Avro record of (name, type) pairs."""
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def json_schema(schema: Any, **references: Any) -> Registered:
    """Return a registered JSON Schema; `references` are those it refers to, by name with `_` for a point."""
    used = tuple(Definition(name.replace("_", "."), json.dumps(each)) for name, each in references.items())
    return Registered(JSON, json.dumps(schema), used)


def protobuf(text: str, imports: Mapping[str, str] | None = None) -> Registered:
    """Return a registered Protobuf schema, compiled from the text of its file and of those that it imports."""
    files = {**(imports or {}), "main.proto": text}
    bundled = str(Path(grpc_tools.protoc.__file__).parent / "_proto")
    common = str(Path(google.type.__path__[0]).parents[1])
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        target = Path(folder, "descriptors")
        arguments = [
            "protoc",
            f"-I{folder}",
            f"-I{bundled}",
            f"-I{common}",
            "--include_imports",
            f"--descriptor_set_out={target}",
        ]
        if grpc_tools.protoc.main([*arguments, "main.proto"]):
            raise ValueError("the .proto file is not valid")
        found = {file.name: file for file in FileDescriptorSet.FromString(target.read_bytes()).file}
    texts = {name: base64.b64encode(file.SerializeToString()).decode() for name, file in found.items()}
    used = tuple(Definition(name, text) for name, text in texts.items() if name in files and name != "main.proto")
    return Registered(PROTOBUF, texts["main.proto"], used)


def framed(schema_id: int, body: bytes) -> bytes:
    """Return a message as Confluent's clients write it."""
    return b"\x00" + schema_id.to_bytes(4, "big") + body


def avro_body(schema: Any, value: Any, *references: Any) -> bytes:
    """Return a value in Avro's binary form."""
    named: dict[str, Any] = {}
    for each in references:
        fastavro.parse_schema(each, named_schemas=named)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema, named_schemas=named), value)
    return body.getvalue()
