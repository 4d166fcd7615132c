"""Codecs for every API and version, built from the schemas in `protocol/apis/`.

Strategy: nothing is read or compiled before it is used. The first message of an API at a version reads that API's
schema, builds a construct from it, compiles it, and keeps the codec; after that a message costs one call of a function
that was generated for exactly this API, version and direction. `pylogd.wire.messages.APIS` answers questions about
versions without reading anything, and construct itself is imported with the first codec (`building`): a broker listens
before it has one.

Rules: whatever the bytes, `decode` returns a message or raises RemoteProtocolError; whatever the message, `encode`
returns parts or raises LocalProtocolError. Neither keeps anything.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sized
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from pylogd.wire.exceptions import InvalidValue, LocalProtocolError, RemoteProtocolError, UnknownApi, UnsupportedVersion
from pylogd.wire.messages import APIS, ApiInfo, ApiKey
from pylogd.wire.stream import Cursor, GatherWriter

if TYPE_CHECKING:
    from pylogd.wire.building import Json
    from pylogd.wire.structs import MessageStruct

#: bytes, or the records that a message was given, as they are
Part = Sized

_REQUEST, _RESPONSE = "request", "response"


class Codec:
    """Turns the body of one frame, behind its header, into a message and back: one API, version and direction."""

    __slots__ = ("_build", "_parse", "api_name", "construct", "source", "version")

    def __init__(self, api_name: str, version: int, construct: MessageStruct) -> None:
        self.api_name = api_name
        self.version = version
        self.construct = construct
        compiled = construct.compile()
        self.source: str = compiled.source
        self._parse: Callable[[Cursor, None], Any] = compiled.parsefunc
        self._build: Callable[[Any, GatherWriter, None], None] = compiled.buildfunc

    def decode(self, frame: bytes | memoryview) -> Any:
        """The message in `frame`, all of it. Records in the message are views of the frame.

        Raises RemoteProtocolError for anything else than one well-formed message.
        """
        message, rest = self._decode(frame)
        if rest:
            raise RemoteProtocolError(f"{self}: {rest} bytes are left behind the message")
        return message

    def decode_leniently(self, frame: bytes | memoryview) -> Any:
        """The same, but bytes behind the message are passed over, as brokers have always done: librdkafka 2.16 sends
        three too many in Metadata 13 for all topics.
        """
        return self._decode(frame)[0]

    def _decode(self, frame: bytes | memoryview) -> tuple[Any, int]:
        cursor = Cursor(memoryview(frame))
        try:
            message = self._parse(cursor, None)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{self}: {error}") from None
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"{self}: a string is not UTF-8") from error
        except (struct.error, IndexError) as error:
            raise RemoteProtocolError(f"{self}: the message ends too soon, after {cursor.end} bytes") from error
        return message, cursor.end - cursor.at

    def encode(self, message: Any) -> list[Part]:
        """The parts of the message in order. Records are parts of their own: the objects given, untouched.

        Raises UnsupportedVersion if a field is set that does not exist at this version and may not be left out, and
        InvalidValue if a value does not fit its type.
        """
        writer = GatherWriter()
        try:
            self._build(message, writer, None)
        except LocalProtocolError as error:
            raise type(error)(f"{self}: {error}") from None
        except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
            raise InvalidValue(f"{self}: a value does not fit its type: {error}") from error
        return writer.parts()

    def __repr__(self) -> str:
        return f"{self.construct.where} version {self.version}"


def request_codec(api_key: int, version: int) -> Codec:
    """The codec for an API's requests. Raises UnknownApi or UnsupportedVersion."""
    return _codec(api_key, version, _REQUEST)


def response_codec(api_key: int, version: int) -> Codec:
    """The codec for an API's responses. Raises UnknownApi or UnsupportedVersion."""
    return _codec(api_key, version, _RESPONSE)


def schema_versions(api_key: int) -> tuple[int, int]:
    """The lowest and the highest version that has a schema. Raises UnknownApi."""
    info = api_info(api_key)
    return info.min_version, info.max_version


def request_header_version(api_key: int, version: int) -> int:
    """1, or 2 where the request is flexible. Raises UnknownApi."""
    return 2 if version >= api_info(api_key).flexible_from else 1


def response_header_version(api_key: int, version: int) -> int:
    """0, or 1 where the response is flexible, but always 0 for ApiVersions (KIP-511). Raises UnknownApi.

    The client that asks for ApiVersions does not know yet whether the broker knows flexible versions.
    """
    return 1 if version >= api_info(api_key).flexible_from and api_key != ApiKey.API_VERSIONS else 0


def load_schema(api_key: int) -> Json:
    """The schema file of an API, read anew. Raises UnknownApi."""
    path = protocol_directory().joinpath("apis", f"{api_info(api_key).module}.json")
    schema: Json = json.loads(path.read_text("utf-8"))
    return schema


def protocol_directory() -> Traversable:
    """Where the schemas are: `pylogd/protocol` when installed, `protocol` beside the package in a checkout."""
    package = resources.files("pylogd")
    inside = package.joinpath("protocol")
    return inside if inside.is_dir() else package.joinpath("..", "protocol")


@cache
def _codec(api_key: int, version: int, role: str) -> Codec:
    from pylogd.wire.building import build_construct  # noqa: PLC0415 - see above

    info = api_info(api_key)
    if not info.min_version <= version <= info.max_version:
        raise UnsupportedVersion(f"{info.name} has versions {info.min_version} to {info.max_version}, not {version}")
    return Codec(info.name, version, build_construct(info, version, role, load_schema(api_key)))


def api_info(api_key: int) -> ApiInfo:
    """What is known of an API without its schema. Raises UnknownApi."""
    try:
        return APIS[api_key]
    except KeyError:
        raise UnknownApi(f"there is no API with key {api_key}") from None
