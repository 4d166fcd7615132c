"""Codecs for every API and version, built from the schemas in `protocol/apis/`.

Strategy: nothing is read or compiled before it is needed. The first message of an API at a version reads the API's
schema, builds a construct from it and caches the codec, which compiles its reader or its writer when it is first used.
After that a message costs one call of a function that was generated for this API, version and direction.
`pylogd.wire.messages.APIS` has the versions without reading a schema, and construct itself is imported with the first
codec (`building`). At its start a broker builds the codecs of clients' first requests (`api.first_requests`).

Rules: for any bytes `decode` returns a message or raises RemoteProtocolError; for any message `encode` returns parts or
raises LocalProtocolError. Codecs have no state, apart from what they have compiled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sized
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from pylogd.base.limits.elements import MAX_ELEMENTS
from pylogd.wire.exceptions import (
    InvalidValue,
    LocalProtocolError,
    RemoteProtocolError,
    TooManyElements,
    UnknownApi,
    UnsupportedVersion,
)
from pylogd.wire.messages import APIS, ApiInfo, ApiKey
from pylogd.wire.stream import Cursor, GatherWriter

if TYPE_CHECKING:
    from pylogd.wire.building import Json
    from pylogd.wire.structs import MessageStruct

#: bytes, or the object that was passed in for a field of records
Part = Sized

_REQUEST, _RESPONSE = "request", "response"


class Codec:
    """Decodes and encodes the bodies of frames, without headers, for one API, version and direction."""

    __slots__ = ("_build", "_parse", "construct", "version")

    def __init__(self, version: int, construct: MessageStruct) -> None:
        self.version = version
        self.construct = construct
        self._parse: Callable[[Cursor, None], Any] | None = None
        self._build: Callable[[Any, GatherWriter, None], None] | None = None

    def compile_reader(self) -> Callable[[Cursor, None], Any]:
        """Compile the reader now. Otherwise the first call of `decode` does it."""
        self._parse = self._parse or self.construct.compile_reader()
        return self._parse

    def compile_writer(self) -> Callable[[Any, GatherWriter, None], None]:
        """Compile the writer now. Otherwise the first call of `encode` does it."""
        self._build = self._build or self.construct.compile_writer()
        return self._build

    def decode(self, frame: bytes | memoryview, most_elements: int = MAX_ELEMENTS) -> Any:
        """Decode the message of at most `most_elements` that fills `frame`. Records in it are views of the frame.

        Raises RemoteProtocolError unless the frame is exactly one well-formed message.
        """
        message, rest = self._decode(frame, most_elements)
        if rest:
            raise RemoteProtocolError(f"{self}: {rest} bytes are left after the message")
        return message

    def decode_leniently(self, frame: bytes | memoryview, most_elements: int = MAX_ELEMENTS) -> Any:
        """Decode a message of at most `most_elements`, ignoring bytes that follow it.

        Kafka's brokers ignore them too: librdkafka 2.16 sends three extra bytes with Metadata 13 for all topics.
        """
        return self._decode(frame, most_elements)[0]

    def _decode(self, frame: bytes | memoryview, most_elements: int) -> tuple[Any, int]:
        cursor = Cursor(memoryview(frame), most_elements)
        parse = self._parse or self.compile_reader()
        try:
            message = parse(cursor, None)
        except TooManyElements as error:
            raise TooManyElements(f"{self}: {error}", error.total) from None
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{self}: {error}") from None
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"{self}: a string is not UTF-8") from error
        except (struct.error, IndexError) as error:
            raise RemoteProtocolError(f"{self}: the message ends too soon, after {cursor.end} bytes") from error
        return message, cursor.end - cursor.at

    def encode(self, message: Any) -> list[Part]:
        """Return the parts of the message in order. Fields of records become separate parts: the objects passed in.

        Raises UnsupportedVersion if a field is set that does not exist at this version and is not ignorable, and
        InvalidValue if a value does not fit its type.
        """
        writer = GatherWriter()
        build = self._build or self.compile_writer()
        try:
            build(message, writer, None)
        except LocalProtocolError as error:
            raise type(error)(f"{self}: {error}") from None
        except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
            raise InvalidValue(f"{self}: a value does not fit its type: {error}") from error
        return writer.parts()

    def __repr__(self) -> str:
        return f"{self.construct.where} version {self.version}"


def request_codec(api_key: int, version: int) -> Codec:
    """Return the codec of an API's requests. Raises UnknownApi or UnsupportedVersion."""
    return _codec(api_key, version, _REQUEST)


def response_codec(api_key: int, version: int) -> Codec:
    """Return the codec of an API's responses. Raises UnknownApi or UnsupportedVersion."""
    return _codec(api_key, version, _RESPONSE)


def schema_versions(api_key: int) -> tuple[int, int]:
    """Return the lowest and the highest version that has a schema. Raises UnknownApi."""
    info = api_info(api_key)
    return info.min_version, info.max_version


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of the request header: 2 for flexible requests, else 1. Raises UnknownApi."""
    return 2 if version >= api_info(api_key).flexible_from else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return the version of the response header: 1 for flexible responses, else 0. Raises UnknownApi.

    It is always 0 for ApiVersions, since its client does not know yet whether the broker has flexible versions
    (KIP-511).
    """
    return 1 if version >= api_info(api_key).flexible_from and api_key != ApiKey.API_VERSIONS else 0


@lru_cache(maxsize=1)  # one schema is enough: callers build all codecs of an API in a row
def load_schema(api_key: int) -> Json:
    """Read the schema file of an API, which callers must not change. Raises UnknownApi."""
    path = protocol_directory().joinpath("apis", f"{api_info(api_key).module}.json")
    schema: Json = json.loads(path.read_text("utf-8"))
    return schema


def protocol_directory() -> Traversable:
    """Return the directory of the schemas: `pylogd/protocol` when installed, `protocol` in a checkout."""
    package = resources.files("pylogd")
    inside = package.joinpath("protocol")
    return inside if inside.is_dir() else package.joinpath("..", "protocol")


@cache
def _codec(api_key: int, version: int, role: str) -> Codec:
    from pylogd.wire.building import build_construct  # noqa: PLC0415 - see above

    info = api_info(api_key)
    if not info.min_version <= version <= info.max_version:
        raise UnsupportedVersion(f"{info.name} has versions {info.min_version} to {info.max_version}, not {version}")
    return Codec(version, build_construct(info, version, role, load_schema(api_key)))


def api_info(api_key: int) -> ApiInfo:
    """Return the name, module and versions of an API. Raises UnknownApi."""
    try:
        return APIS[api_key]
    except KeyError:
        raise UnknownApi(f"there is no API with key {api_key}") from None
