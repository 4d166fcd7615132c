"""Keys and values with registered schemas, as JSON: for `produce --value-schema`, `consume --decode` and the console.

A message begins with a zero byte and the id of its schema as a big-endian uint32; with Protobuf, the indexes of the
message's type follow. Values are plain JSON: a union is the value itself, without the name of its branch; bytes,
decimals and times are written as text, and can't be read back.
Source: Confluent's documentation, "Wire format".
"""

# ruff: noqa: PLC0415 - each type of schema needs packages of its own
from __future__ import annotations

import base64
import io
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from pylogd.client.registry.api_client import RegistryApi, path_of
from pylogd.client.registry.pattern_engines import Untranslatable
from pylogd.client.registry.patterns import for_python, in_schema
from pylogd.lake.typed.errors import NotDecoded, NotEncoded
from pylogd.lake.typed.registry import PROTOBUF, Registered, SchemaLookup

_HEAD: Final = struct.Struct(">bI")
_MOST_INDEXES: Final = 100


class Codec:
    """Reads and writes messages by the schemas of a registry. Several threads may use it."""

    def __init__(
        self, url: str, settings: Mapping[str, str], timeout: float = 10.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """settings: TLS and credentials (`pylogd.client.registry.access`). Raises ValueError.

        timeout: the seconds that one answer of the registry may take.
        sleep: called before a request is retried.
        """
        self._api = RegistryApi(url, timeout, settings)
        self._lookup = SchemaLookup(self._api, sleep)
        self._forms: dict[int, _Form] = {}
        self._one_at_a_time = threading.Lock()

    def encoder(self, subject: str, which: str) -> Callable[[Any], bytes]:
        """Return a function that makes messages from values.

        which: a schema id, or "latest" for the subject's last version.

        Raises SchemaRegistryError, and NotDecoded for a schema that can't be used. The encoder raises NotEncoded.
        """
        if which == "latest":
            schema_id = int(self._api.ask(path_of("subjects", subject, "versions", "latest"))["id"])
        elif which.isdecimal():
            schema_id = int(which)
        else:
            raise NotDecoded(f"{which!r} is neither latest nor the id of a schema")
        form = self._form(schema_id)

        def encode(value: Any) -> bytes:
            return _HEAD.pack(0, schema_id) + form.write(value)

        return encode

    def decode(self, message: bytes) -> Any:
        """Return the value of a message, with JSON's types. Raises NotDecoded, UnknownSchema, SchemaRegistryError."""
        return self._form(schema_id_of(message)).read(message[_HEAD.size :])

    def kind(self, schema_id: int) -> str:
        """Return the type of a schema: "AVRO", "JSON" or "PROTOBUF". Raises the errors of `decode`."""
        return self._form(schema_id).kind

    def _form(self, schema_id: int) -> _Form:
        found = self._forms.get(schema_id)
        if found is None:
            with self._one_at_a_time:
                schema = self._lookup.schema(schema_id)
                found = self._forms[schema_id] = _FORMS.get(schema.kind, _Json)(schema)
                found.kind = schema.kind
        return found


def schema_id_of(message: bytes) -> int:
    """Return the id of the schema that a message begins with. Raises NotDecoded."""
    if len(message) < _HEAD.size or message[0] != 0:
        raise NotDecoded("it does not begin with the id of a schema")
    return int(_HEAD.unpack_from(message)[1])


class _Form:
    """Reads and writes messages of one schema.

    kind: the schema's type.
    """

    kind = ""

    def __init__(self, schema: Registered) -> None:
        """Raises NotDecoded for a schema that can't be used."""

    def read(self, body: bytes) -> Any:
        """Return the value. Raises NotDecoded."""
        raise NotImplementedError

    def write(self, value: Any) -> bytes:
        """Return the body of a message. Raises NotEncoded."""
        raise NotImplementedError


class _Json(_Form):
    """JSON Schema: the body is the JSON itself, which is checked against the schema before it is written."""

    def __init__(self, schema: Registered) -> None:
        self._schema = schema

    @cached_property
    def _validator(self) -> Any:
        """The validator. Raises NotEncoded for a schema with a pattern that can't be checked."""
        from jsonschema.validators import validator_for
        from referencing import Registry
        from referencing.jsonschema import DRAFT7

        schema = self._schema
        try:
            document = in_schema(json.loads(schema.text), for_python)
            used = [(one.name, in_schema(json.loads(one.text), for_python)) for one in schema.references]
        except Untranslatable as error:
            raise NotEncoded(f"values can't be checked by the schema: {error}") from None
        resources = [(name, DRAFT7.create_resource(each)) for name, each in used]
        return validator_for(document)(document, registry=Registry().with_resources(resources))

    def read(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except ValueError as error:
            raise NotDecoded(f"it is not JSON: {error}") from None

    def write(self, value: Any) -> bytes:
        for error in self._validator.iter_errors(value):
            raise NotEncoded(f"it does not match its schema: {error.message} (at {error.json_path})")
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class _Avro(_Form):
    """Avro, by fastavro."""

    def __init__(self, schema: Registered) -> None:
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema

        named: dict[str, Any] = {}
        try:
            for used in schema.references:
                parse_schema(json.loads(used.text), named_schemas=named)
            self._schema = parse_schema(json.loads(schema.text), named_schemas=named)
        except (ValueError, SchemaParseException, UnknownType) as error:
            raise NotDecoded(f"its schema is not Avro: {error}") from None

    def read(self, body: bytes) -> Any:
        from fastavro import schemaless_reader

        stream = io.BytesIO(body)
        try:
            value = schemaless_reader(stream, self._schema, None)
        except (ValueError, TypeError, KeyError, IndexError, EOFError, StopIteration, OverflowError) as error:
            raise NotDecoded(f"it does not match its schema: {error!r}") from None
        if stream.tell() != len(body):
            raise NotDecoded(f"{len(body) - stream.tell()} bytes follow the value")
        return _plain(value)

    def write(self, value: Any) -> bytes:
        from fastavro import schemaless_writer

        stream = io.BytesIO()
        try:
            schemaless_writer(stream, self._schema, value, strict=True)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise NotEncoded(f"it does not match its schema: {error}") from None
        return stream.getvalue()


class _Protobuf(_Form):
    """Protobuf, by google.protobuf, with the registry's descriptors. Messages are written with a file's first type."""

    def __init__(self, schema: Registered) -> None:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError

        known: dict[str, Any] = {}
        pool = DescriptorPool()
        try:
            for name, text in [*((one.name, one.text) for one in schema.references), ("", schema.text)]:
                file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
                file.name = name or file.name or "schema.proto"
                known[file.name] = file
            _add(pool, file, known, set())
            self._file = pool.FindFileByName(file.name)
        except (ValueError, TypeError, KeyError, DecodeError) as error:
            raise NotDecoded(f"its schema is not a Protobuf descriptor: {error}") from None

    def read(self, body: bytes) -> Any:
        from google.protobuf import json_format, message_factory
        from google.protobuf.message import DecodeError

        indexes, length = _indexes(body)
        try:
            types: Any = list(self._file.message_types_by_name.values())
            found = types[indexes[0]]
            for index in indexes[1:]:
                found = found.nested_types[index]
            message = message_factory.GetMessageClass(found).FromString(body[length:])
            return json_format.MessageToDict(message, preserving_proto_field_name=True)
        except (IndexError, ValueError, TypeError, DecodeError, json_format.Error) as error:
            raise NotDecoded(f"it does not match its schema: {error}") from None

    def write(self, value: Any) -> bytes:
        from google.protobuf import json_format, message_factory

        first = next(iter(self._file.message_types_by_name.values()))
        message = message_factory.GetMessageClass(first)()
        try:
            json_format.ParseDict(value, message)
        except (json_format.Error, AttributeError, TypeError) as error:
            raise NotEncoded(f"it does not match its schema: {error}") from None
        serialized: bytes = message.SerializeToString()
        return b"\0" + serialized


_FORMS: Final[Mapping[str, type[_Form]]] = {"AVRO": _Avro, PROTOBUF: _Protobuf}


def _add(pool: Any, file: Any, known: Mapping[str, Any], done: set[str]) -> None:
    """Add a file to a pool, after all files that it imports. Raises KeyError for an import that is not found."""
    done.add(file.name)
    for name in file.dependency:
        if name not in done:
            _add(pool, known.get(name) or _well_known(name), known, done)
    pool.AddSerializedFile(file.SerializeToString())


def _well_known(name: str) -> Any:
    from importlib import import_module

    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    if name.startswith(("google/protobuf/", "google/type/")) and name.endswith(".proto"):
        try:
            module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        except ImportError:
            pass
        else:
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    raise KeyError(f"it imports {name}, which is not among its references")


def _indexes(body: bytes) -> tuple[list[int], int]:
    """Return the indexes at the start of a Protobuf message, and their length in bytes. Raises NotDecoded."""
    numbers = _zigzag(body)
    try:
        count, length = next(numbers)
        if count == 0:
            return [0], length
        if not 0 < count <= _MOST_INDEXES:
            raise NotDecoded("it names no message type of its schema")
        found = []
        for _ in range(count):
            index, length = next(numbers)
            found.append(index)
    except StopIteration:
        raise NotDecoded("it ends within the indexes of its message type") from None
    if min(found) < 0:
        raise NotDecoded("it names no message type of its schema")
    return found, length


def _zigzag(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the zigzag varints at the start of bytes, each with the position after it."""
    value = shift = 0
    for at, byte in enumerate(body[: 10 * _MOST_INDEXES]):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield (value >> 1) ^ -(value & 1), at + 1
            value = shift = 0


def _plain(value: Any) -> Any:
    """Return a value with JSON's types: bytes become base64; times, decimals and similar values become text."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
