"""Decrypt TLS records into memory that already exists, many in a row.

Strategy: OpenSSL decrypts one record per call. Clients may send small records: librdkafka makes two of each message
that is not compressed. So `decrypt` calls the OpenSSL functions that pyOpenSSL is based on, and leaves errors to
pyOpenSSL, whose own `recv_into` takes three times as long for a small record. If these functions are missing, since
they are not part of pyOpenSSL's interface, `decrypt` uses `recv_into`.

The compiled `_tls_records` calls SSL_read for all records of a chunk at once: it takes 0.3 s for a GB in records of 4
KB with small ones between them, where calls from Python take 0.5 s. `receive` also reads the socket, until the
requested part of a large frame is there. The compiled `receive` is one call for all pieces that the socket gives.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from OpenSSL import SSL

from pylogd.base.compiled import load

try:
    from OpenSSL._util import ffi, lib

    _from_buffer: Any = ffi.from_buffer
    _read: Any = lib.SSL_read
    _get_error: Any = lib.SSL_get_error
    _set_mode: Any = lib.SSL_set_mode
    _clear_mode: Any = lib.SSL_clear_mode
    _WANTS: Any = lib.SSL_ERROR_WANT_READ
except (ImportError, AttributeError):  # this pyOpenSSL is made in another way
    _read = _set_mode = _clear_mode = None

_loops = load("pylogd.link._tls_records")
try:
    from cryptography.hazmat.bindings._rust import _openssl

    _read_records: Any = getattr(_loops, "read_records", None)
    _receive_records: Any = getattr(_loops, "receive_records", None)
    _send_records: Any = getattr(_loops, "send_records", None)
    _cast: Any = _openssl.ffi.cast
    _RECEIVING, _SENDING = (
        tuple(int(_cast("uintptr_t", _openssl.ffi.addressof(_openssl.lib, name))) for name in names)
        for names in (("SSL_read", "SSL_get_error", "BIO_write"), ("SSL_write", "BIO_read"))
    )
    if _openssl.lib.SSL_ERROR_WANT_READ != 2:
        raise ValueError("the compiled module has another number for it")
except Exception:  # cryptography lacks these functions; the error may be of any kind
    _read_records = _receive_records = _send_records = None

#: Encrypted bytes between OpenSSL and a socket. Used by the reactor's thread only, and empty between calls.
_ENCRYPTED: Final = bytearray(1 << 17)
_RECORD_BYTES: Final = 1 << 14  # the most plain bytes in a record
_WANT_READ: Final = SSL.WantReadError()


def decrypt(connection: SSL.Connection, buffer: memoryview | bytearray, most: int) -> tuple[int, SSL.Error | None]:
    """Decrypt into `buffer`, until `most` bytes are there, OpenSSL needs more input, or the connection ends.

    Return the number of bytes, and what ended it: None, or the error that `connection.recv` raises.
    """
    got = 0
    ssl = getattr(connection, "_ssl", None)
    if _read is not None and ssl is not None:
        size = 0
        if _read_records is not None:
            got, size = _read_records(_RECEIVING[0], int(_cast("uintptr_t", ssl)), buffer, most)
        else:
            with _from_buffer("char[]", buffer, require_writable=True) as memory:
                while got < most:
                    size = _read(ssl, memory + got, most - got)
                    if size <= 0:
                        break
                    got += size
        if got == most:
            return got, None
        if _get_error(ssl, size) == _WANTS:
            return got, _WANT_READ
    return _decrypt_by_pyopenssl(connection, buffer, got, most)


def _decrypt_by_pyopenssl(
    connection: SSL.Connection, buffer: memoryview | bytearray, got: int, most: int
) -> tuple[int, SSL.Error | None]:
    """Do the work of `decrypt`, after the first `got` bytes."""
    try:
        with memoryview(buffer) as whole:
            while got < most:  # usually OpenSSL has stopped already, and this call tells why
                got += connection.recv_into(whole[got : min(got + _RECORD_BYTES, most)])
    except SSL.Error as error:
        # Otherwise the error and the caller's frame, with its buffer, keep each other.
        return got, error.with_traceback(None)
    return got, None


def keep_buffers(connection: SSL.Connection, keep: bool) -> None:
    """Have OpenSSL keep the memory of a record for the next one, or free it (SSL_MODE_RELEASE_BUFFERS)."""
    ssl = getattr(connection, "_ssl", None)
    if _set_mode is not None and ssl is not None:
        (_clear_mode if keep else _set_mode)(ssl, SSL.MODE_RELEASE_BUFFERS)


def receive(
    connection: SSL.Connection, source: socket.socket, buffer: memoryview, most: int, limit: int
) -> tuple[int, SSL.Error | None, int]:
    """Decrypt into `buffer`, until `most` bytes are there, the socket has no more, or the connection ends.

    limit: after the socket has given this many bytes, it is not read again.

    Return the number of bytes; what ended it, as in `decrypt`; and how many bytes the socket gave. OpenSSL keeps bytes
    beyond `most`, at most a record. The socket's errors, and its end, are left to the reactor.
    """
    ssl, bio = getattr(connection, "_ssl", None), getattr(connection, "_into_ssl", None)
    if _receive_records is None or _read is None or ssl is None or bio is None:
        return _receive(connection, source, buffer, most, limit)
    got, size, taken = _receive_records(
        _RECEIVING, int(_cast("uintptr_t", ssl)), int(_cast("uintptr_t", bio)), source.fileno(), buffer, most,
        _ENCRYPTED, limit,
    )  # fmt: skip
    if got == most:
        return got, None, taken
    if _get_error(ssl, size) == _WANTS:
        return got, _WANT_READ, taken
    return *_decrypt_by_pyopenssl(connection, buffer, got, most), taken


def _receive(
    connection: SSL.Connection, source: socket.socket, buffer: memoryview, most: int, limit: int
) -> tuple[int, SSL.Error | None, int]:
    """Do the work of `receive` without compiled code."""
    got = taken = 0
    while True:
        size, why = decrypt(connection, buffer[got:], most - got)
        got += size
        if taken >= limit or not isinstance(why, SSL.WantReadError):
            return got, why, taken
        try:
            size = source.recv_into(_ENCRYPTED, min(most - got + _RECORD_BYTES, len(_ENCRYPTED)))
        except OSError:
            size = 0
        if not size:
            return got, why, taken
        taken += size
        with memoryview(_ENCRYPTED)[:size] as received:
            connection.bio_write(received)


def send(connection: SSL.Connection, target: socket.socket, data: bytes | memoryview) -> tuple[int, bytes] | None:
    """Encrypt `data` and send it, a part that fits the processor's cache at a time, as much as the socket takes.

    Return how many bytes were encrypted (fewer than all if the socket is full, or the connection can't send now), and
    the encrypted bytes that the socket did not take. Without compiled code do nothing, and return None.
    """
    ssl, bio = getattr(connection, "_ssl", None), getattr(connection, "_from_ssl", None)
    if _send_records is None or ssl is None or bio is None:
        return None
    addresses = int(_cast("uintptr_t", ssl)), int(_cast("uintptr_t", bio))
    sent: tuple[int, bytes] = _send_records(_SENDING, *addresses, target.fileno(), data, _ENCRYPTED)
    return sent
