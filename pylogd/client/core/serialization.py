"""Convert an application's keys and values to bytes, and back.

A serializer is a function of one argument, as in kafka-python and aiokafka, or an object with a method
`serialize(topic, data)` for formats that depend on the topic. A deserializer is a function of one argument, or an
object with `deserialize(topic, data)`.

Rules: None is never passed to a serializer or deserializer: a record without a key has none afterwards, and a tombstone
stays a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pylogd.client.core.errors import DeserializationFailed, SerializationFailed
from pylogd.wire.records import Record


class TopicSerializer(Protocol):
    """A serializer that needs to know the topic."""

    def serialize(self, topic: str, data: Any, /) -> bytes:
        """Return `data` as bytes."""
        ...


class TopicDeserializer(Protocol):
    """A deserializer that needs to know the topic."""

    def deserialize(self, topic: str, data: bytes, /) -> Any:
        """Return the object that `data` stands for."""
        ...


Serializer = Callable[[Any], bytes] | TopicSerializer
Deserializer = Callable[[bytes], Any] | TopicDeserializer
_Convert = Callable[[str, Any], Any]


def check_converter(converter: Any, method: str, option: str) -> None:
    """Raise ValueError unless an option is None, a function, or an object with `method`."""
    if converter is not None and not callable(converter) and not hasattr(converter, method):
        raise ValueError(f"{option} must be a function of one argument or have {method}(topic, data): {converter!r}")


def _converter(converter: Any, method: str) -> _Convert | None:
    """Return an option as a function of topic and data; None if it is not set."""
    if converter is None:
        return None
    found: _Convert | None = getattr(converter, method, None)
    return found if found is not None else lambda _topic, data: converter(data)


class RecordSerializer:
    """The serializers of a producer."""

    def __init__(self, key: Serializer | None, value: Serializer | None) -> None:
        """None leaves keys, or values, as they are."""
        self._key = _converter(key, "serialize")
        self._value = _converter(value, "serialize")

    def __bool__(self) -> bool:
        return self._key is not None or self._value is not None

    def key(self, topic: str, key: Any) -> Any:
        """Return a key as bytes. Raises SerializationFailed."""
        return key if self._key is None else _serialize(self._key, topic, key, "key")

    def value(self, topic: str, value: Any) -> Any:
        """Return a value as bytes. Raises SerializationFailed."""
        return value if self._value is None else _serialize(self._value, topic, value, "value")


def _serialize(convert: _Convert, topic: str, data: Any, field: str) -> Any:
    if data is None:
        return None
    try:
        found = convert(topic, data)
        if not isinstance(found, bytes | bytearray | memoryview):
            raise TypeError(f"it returned {type(found).__name__} instead of bytes")
    except Exception as error:
        raise SerializationFailed(topic, field, error) from error
    return found


class RecordDeserializer:
    """The deserializers of a consumer."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        """None leaves keys, or values, as bytes."""
        self._key = _converter(key, "deserialize")
        self._value = _converter(value, "deserialize")

    def __bool__(self) -> bool:
        return self._key is not None or self._value is not None

    def deserialize(self, records: list[Record]) -> list[Record]:
        """Return the records in front of the first one that fails. Raises DeserializationFailed if that is the very
        first.
        """
        done: list[Record] = []
        for record in records:
            try:
                key = _deserialize(self._key, record, record.key, "key")
                value = _deserialize(self._value, record, record.value, "value")
            except DeserializationFailed:
                if not done:
                    raise
                break
            done.append(record._replace(key=key, value=value))
        return done


def _deserialize(convert: _Convert | None, record: Record, data: bytes | None, field: str) -> Any:
    if convert is None or data is None:
        return data
    try:
        return convert(record.topic, data)
    except Exception as error:
        raise DeserializationFailed(record, field, error) from error
