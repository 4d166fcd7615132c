"""Decrypt records of TLS into memory that is there already, many in a row.

Strategy: OpenSSL decrypts one record in a call. Clients may send small ones: librdkafka makes two of each message that
is not compressed. So `decrypt` calls OpenSSL directly by the functions on which pyOpenSSL stands, and leaves errors to
pyOpenSSL; its own `recv_into` takes three times as long for a small record. Without those functions, which are not
part of pyOpenSSL's interface, `decrypt` uses `recv_into`.

The compiled `_tls_records` calls SSL_read for all records of a chunk at once: 0.3 s for a GB in records of 4 KB with
small ones between them, where calls from Python take 0.5.
"""

from __future__ import annotations

from typing import Any, Final

from OpenSSL import SSL

try:
    from OpenSSL._util import ffi, lib

    _from_buffer: Any = ffi.from_buffer
    _read: Any = lib.SSL_read
    _get_error: Any = lib.SSL_get_error
    _WANTS: Any = lib.SSL_ERROR_WANT_READ
except (ImportError, AttributeError):  # a pyOpenSSL that is made in another way
    _read = None

try:
    from cryptography.hazmat.bindings._rust import _openssl

    from pylogd.net._tls_records import read_records

    _read_records: Any = read_records
    _READ_ADDRESS: Final = int(_openssl.ffi.cast("uintptr_t", _openssl.ffi.addressof(_openssl.lib, "SSL_read")))
    _cast: Any = _openssl.ffi.cast
except Exception:  # it could not be compiled, or a cryptography without that function: whatever it raises then
    _read_records = None

_RECORD_BYTES: Final = 1 << 14  # the most plain bytes in a record
_WANT_READ: Final = SSL.WantReadError()


def decrypt(connection: SSL.Connection, buffer: memoryview | bytearray, most: int) -> tuple[int, SSL.Error | None]:
    """Decrypt into `buffer`, until `most` bytes are there, or OpenSSL has to be given more, or the connection ends.

    Return the number of bytes, and what ended it: None, or the error that `connection.recv` raises.
    """
    got = 0
    ssl = getattr(connection, "_ssl", None)
    if _read is not None and ssl is not None:
        size = 0
        if _read_records is not None:
            got, size = _read_records(_READ_ADDRESS, int(_cast("uintptr_t", ssl)), buffer, most)
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
    try:
        with memoryview(buffer) as whole:
            while got < most:  # usually OpenSSL has stopped already, and this tells why
                got += connection.recv_into(whole[got : min(got + _RECORD_BYTES, most)])
    except SSL.Error as error:
        return got, error.with_traceback(None)  # or the caller's frame, with its buffer, and the error keep each other
    return got, None
