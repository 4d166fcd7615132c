"""The golden frames of protocol/vectors/: pylogd, kio and kafka-python encode and decode them alike.

pylogd decodes each frame to the message beside it and encodes that to the frame again, compiled or not. Two independent
implementations must do the same with the same bytes, at every version that they know. What they do not know is listed
here, so a check that compares nothing fails.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib
import io
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest
from kafka.protocol.api_message import ApiMessage
from kio.serial import entity_reader, entity_writer

from pylogd.wire import headers, schema
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.messages import APIS, ApiInfo
from pylogd.wire.stream import Cursor, GatherWriter
from tests.tools import tool

CHECKOUT = Path(__file__).resolve().parents[3]
ROLES = ("request", "response")
KAFKA_PYTHON = (
    kafka.protocol.admin, kafka.protocol.consumer, kafka.protocol.metadata, kafka.protocol.producer,
    kafka.protocol.sasl,
)  # fmt: skip
UNKNOWN_TO_KAFKA_PYTHON = {
    f"{api}{role}"
    for api in (
        "ConsumerGroupDescribe", "ConsumerGroupHeartbeat",
        "CreateDelegationToken", "DescribeDelegationToken", "ExpireDelegationToken", "RenewDelegationToken",
        "GetTelemetrySubscriptions", "PushTelemetry",
    )
    for role in ("Request", "Response")
}  # fmt: skip

#: versions that Kafka 4 dropped, and kio too
UNKNOWN_TO_KIO = {
    ("CreateTopics", 0),
    ("CreateTopics", 1),
    ("DeleteTopics", 0),
    ("DescribeConfigs", 0),
    ("DescribeLogDirs", 0),
    ("OffsetForLeaderEpoch", 0),
    ("OffsetForLeaderEpoch", 1),
}
#: what the text of an error must contain, by the kind that the vectors name
ERROR_TEXTS = {
    "truncated": r"ends too soon|are announced|extends past the end",
    "trailing": r"left after",
    "bad length": r"not allowed here|are announced|over the limit",
    "bad varint": r"varint",
    "bad tags": r"tagged field",
    "not UTF-8": r"not UTF-8",
}


class Vector(NamedTuple):
    """One golden frame."""

    info: ApiInfo
    role: str
    version: int
    name: str
    header: bytes
    body: bytes
    message: Any
    decode_only: bool
    fields: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"{self.info.name}-{self.role}-v{self.version}-{self.name}"

    @property
    def codec(self) -> schema.Codec:
        make = schema.request_codec if self.role == "request" else schema.response_codec
        return make(self.info.key, self.version)


def _load(info: ApiInfo) -> dict[str, Any]:
    path = schema.protocol_directory().joinpath("vectors", f"{info.module}.json")
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


FILES = {key: _load(info) for key, info in APIS.items()}
SCHEMAS = {key: schema.load_schema(key) for key in APIS}


def _vectors() -> Iterator[Vector]:
    for key, info in APIS.items():
        for role in ROLES:
            for row in FILES[key][role]:
                yield Vector(
                    info,
                    role,
                    row["version"],
                    row["name"],
                    bytes.fromhex(row["header"]),
                    bytes.fromhex(row["body"]),
                    row["message"],
                    row.get("decode_only", False),
                    SCHEMAS[key][role],
                )


VECTORS = list(_vectors())
MALFORMED = [(info, row) for key, info in APIS.items() for row in FILES[key]["malformed"]]


def plain(value: Any) -> Any:
    """Return a field's value of any implementation in the form that the vectors use."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value


def flatten(message: Any, fields: list[dict[str, Any]], present: dict[str, Any]) -> dict[str, Any]:
    """Return a message as JSON, with the fields in `present`."""
    return {
        field["name"]: flatten_value(attribute(message, field["name"]), field, present[field["name"]])
        for field in fields
        if field["name"] in present
    }


def attribute(message: Any, name: str) -> Any:
    """Return a message's field by its name in the schema.

    kio drops the unit from the name of a field that it reads as a duration or a date. kafka-python reads a bit field as
    a set and drops the prefix of its name; None is the bit for "not requested".
    """
    bits = getattr(message, "authorized_operations", 0)
    if name.endswith("authorized_operations") and not isinstance(bits, int):
        return ctypes.c_int32(sum(1 << bit for bit in ({31} if bits is None else bits))).value
    if hasattr(message, name):
        return getattr(message, name)
    return getattr(message, name.removesuffix("_ms"))


def flatten_value(value: Any, field: dict[str, Any], present: Any) -> Any:
    """Return a field's value as JSON."""
    kind = field["type"]
    if value is None:
        return str(uuid.UUID(int=0)) if kind == "uuid" else None
    if kind.startswith("[]"):
        assert len(value) == len(present)
        inner = {**field, "type": kind[2:]}
        return [flatten_value(item, inner, there) for item, there in zip(value, present, strict=True)]
    if "fields" in field:
        return flatten(value, field["fields"], present)
    if kind == "uuid" and isinstance(value, bytes):
        return str(uuid.UUID(bytes=value))
    return plain(value)


def inflate(cls: type, module: ModuleType, fields: list[dict[str, Any]], message: dict[str, Any]) -> Any:
    """Return the pylogd message that a JSON document describes."""
    types = {field["name"]: field for field in fields}
    return cls(**{name: inflate_value(module, types[name], value) for name, value in message.items()})


def inflate_value(module: ModuleType, field: dict[str, Any], value: Any) -> Any:
    """Return the value of a pylogd message's field from JSON."""
    kind = field["type"]
    if value is None:
        return None
    if kind.startswith("[]"):
        return [inflate_value(module, {**field, "type": kind[2:]}, item) for item in value]
    if "fields" in field:
        return inflate(getattr(module, kind), module, field["fields"], value)
    if kind == "uuid":
        return uuid.UUID(value).bytes
    return bytes.fromhex(value) if kind in ("bytes", "records") else value


def make_message(vector: Vector) -> Any:
    """Return the vector's message as an instance of pylogd's class."""
    module = importlib.import_module(f"pylogd.wire.messages.{vector.info.module}")
    return inflate(vector.codec.construct.cls, module, vector.fields, vector.message)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("info", APIS.values(), ids=lambda info: info.name)
def test_pylogd_reads_and_writes(info: ApiInfo, role: str) -> None:
    """The codec, and the construct that it compiles."""
    for vector in (one for one in VECTORS if one.info is info and one.role == role):
        codec, construct = vector.codec, vector.codec.construct
        message = codec.decode(vector.body)
        cursor = Cursor(memoryview(vector.body))
        assert message == make_message(vector) == construct._parse(cursor, None, ""), vector
        assert flatten(message, vector.fields, vector.message) == vector.message, vector
        assert cursor.at == cursor.end, vector
        if not vector.decode_only:
            assert b"".join(codec.encode(make_message(vector))) == vector.body, vector  # type: ignore[arg-type]
            writer: Any = GatherWriter()
            construct._build(message, writer, None, "")
            assert b"".join(bytes(part) for part in writer.parts()) == vector.body, vector


def test_every_api_and_version_has_vectors() -> None:
    counts = Counter((vector.info.key, vector.role, vector.version) for vector in VECTORS)
    wanted = {
        (key, role, version)
        for key, info in APIS.items()
        for role in ROLES
        for version in range(info.min_version, info.max_version + 1)
    }
    assert set(counts) == wanted
    assert min(counts.values()) == 2
    assert {(row["role"], info.key) for info, row in MALFORMED} == {(role, key) for role in ROLES for key in APIS}


def test_headers() -> None:
    for vector in VECTORS:
        if vector.role == "request":
            *header, body_at = headers.read_request_header(memoryview(vector.header + vector.body))
            assert header == [vector.info.key, vector.version, 7, "vector"]
            tags = schema.request_header_version(vector.info.key, vector.version) == 2
            assert len(vector.header) == body_at + tags
        else:
            assert len(vector.header) == 4 + schema.response_header_version(vector.info.key, vector.version)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("info", APIS.values(), ids=lambda info: info.name)
def test_malformed(info: ApiInfo, role: str) -> None:
    make = schema.request_codec if role == "request" else schema.response_codec
    for row in (row for other, row in MALFORMED if other is info and row["role"] == role):
        with pytest.raises(RemoteProtocolError) as caught:
            make(info.key, row["version"]).decode(bytes.fromhex(row["body"]))
        assert re.search(ERROR_TEXTS[row["error"]], str(caught.value)), (
            row["version"],
            row["about"],
            str(caught.value),
        )


def test_kio_agrees() -> None:
    compared, unknown = 0, set()
    vectors = [vector for vector in VECTORS if not vector.decode_only]  # kio refuses unknown tags
    for vector in vectors:
        try:
            module = importlib.import_module(f"kio.schema.{vector.info.module}.v{vector.version}.{vector.role}")
        except ModuleNotFoundError:
            unknown.add((vector.info.name, vector.version))
            continue
        cls = getattr(module, vector.info.name + vector.role.capitalize())
        message, size = entity_reader(cls)(vector.body, 0)
        assert size == len(vector.body), vector
        assert flatten(message, vector.fields, vector.message) == vector.message, vector
        out = io.BytesIO()
        entity_writer(cls)(out, message)
        assert out.getvalue() == vector.body, vector
        compared += 1
    assert unknown == UNKNOWN_TO_KIO
    assert compared == sum((vector.info.name, vector.version) not in UNKNOWN_TO_KIO for vector in vectors) > 490


def test_kafka_python_agrees() -> None:
    compared = 0
    # call the base class, since some messages override this: ApiVersionsResponse reads every response with an error
    # as version 0, and DeleteTopicsRequest needs a header
    decode = ApiMessage.decode.__func__
    for vector in VECTORS:
        name = vector.info.name + vector.role.capitalize()
        if name in UNKNOWN_TO_KAFKA_PYTHON:
            continue
        cls = next(getattr(module, name) for module in KAFKA_PYTHON if hasattr(module, name))
        message = decode(cls, vector.body, version=vector.version)
        assert flatten(message, vector.fields, vector.message) == vector.message, vector
        if not vector.decode_only:
            assert ApiMessage.encode(message) == vector.body, vector
        compared += 1
    assert compared > 490


def test_the_checked_in_files_are_up_to_date() -> None:
    for name, directory in (("generate_messages", None), ("generate_vectors", "vectors")):
        generator = tool(name)
        if directory is None:
            package = Path(importlib.import_module("pylogd.wire.messages").__path__[0])
            for file_name, text in generator.render_all().items():
                assert (package / file_name).read_text("utf-8") == text, file_name
        else:
            for key, info in APIS.items():
                file = schema.protocol_directory().joinpath("vectors", f"{info.module}.json")
                assert file.read_text("utf-8") == generator.render(generator.vectors_of(SCHEMAS[key])), info.module
