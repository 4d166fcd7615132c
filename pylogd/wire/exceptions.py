"""Errors of encoding and decoding.

RemoteProtocolError: the peer sent bytes that the protocol does not allow; close the connection.
LocalProtocolError: the caller passed a message that can't be encoded; nothing was sent.
"""

from __future__ import annotations

from pylogd.base.errors import ProtocolError


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that the protocol does not allow."""


class TooManyElements(RemoteProtocolError):
    """A message has more array elements or tagged fields than the decoder may build.

    total: a lower bound of their number.
    """

    def __init__(self, text: str, total: int) -> None:
        super().__init__(text)
        self.total = total


class LocalProtocolError(ProtocolError):
    """A message can't be encoded."""


class UnsupportedVersion(LocalProtocolError):
    """The message, or a field that is set in it, does not exist at the requested version."""


class UnknownApi(LocalProtocolError):
    """The API key has no schema."""


class InvalidValue(LocalProtocolError):
    """A field has a value that its type can't represent: null where null is not allowed, or a number out of range."""


class InvalidRecordBatch(RemoteProtocolError):
    """A record batch, or the compressed data in it, is malformed. The connection can still be used."""


class TooLarge(InvalidRecordBatch):
    """Compressed data decompresses to more bytes than the caller allows."""
