"""What can go wrong with bytes and messages.

`RemoteProtocolError`: the peer sent something that the protocol does not allow; the connection is of no more use.
`LocalProtocolError`: the local caller asked for something that can't be put on the wire; nothing was sent.
"""

from __future__ import annotations

from pylogd.errors import ProtocolError


class RemoteProtocolError(ProtocolError):
    """The bytes from the peer are not what the protocol allows. The text says what is wrong with them."""


class LocalProtocolError(ProtocolError):
    """A message of ours can't be encoded."""


class UnsupportedVersion(LocalProtocolError):
    """The message, or a field in it that is set, does not exist at the version asked for."""


class UnknownApi(LocalProtocolError):
    """There is no schema for this API key."""


class InvalidValue(LocalProtocolError):
    """A field holds a value that its type can't carry: null where null is not allowed, or a number out of range."""


class InvalidRecordBatch(RemoteProtocolError):
    """A record batch, or the compressed bytes in it, are not what the format allows. The connection may go on."""


class TooLarge(InvalidRecordBatch):
    """Compressed bytes that hold more than the caller allows."""
