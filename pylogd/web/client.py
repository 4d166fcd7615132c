"""Ask HTTP servers for tokens, keys and schemas, within a time and a size.

Strategy: `urllib` bounds the time of each read only, so a server that sends a byte now and then could hold a caller for
ever. Here each read of an answer, headers included, may take only the rest of the whole answer's time. Connecting, the
TLS handshake and sending may each take this time too.

Rules: redirects are not followed. They could send credentials to another place than the settings say, or from https to
http.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

#: The most bytes of an answer, unless its reader says otherwise.
MOST_BYTES: Final = 1 << 20


def open_url(request: urllib.request.Request | str, timeout: float, context: ssl.SSLContext | None = None) -> Any:
    """Send a request, and return the response once its headers are there. Waits.

    timeout: the seconds for the whole answer.
    context: the TLS context for https; None trusts the system's authorities.
    Raises HTTPError, OSError (including TimeoutError), or ValueError.
    """
    handlers = (_Http(), _Https(context=context), _NoRedirects())
    try:
        return urllib.request.build_opener(*handlers).open(request, timeout=timeout)
    except http.client.HTTPException as error:
        raise OSError(f"the answer is not HTTP: {type(error).__name__}") from error


def read_body(response: Any, most: int = MOST_BYTES) -> bytes:
    """Return the body of a response. Raises OSError, or ValueError if it is longer than `most` bytes."""
    try:
        body: bytes = response.read(most + 1)
    except http.client.HTTPException as error:
        raise OSError(f"the answer is incomplete: {type(error).__name__}") from error
    if len(body) > most:
        raise ValueError(f"the answer has more than {most} bytes")
    return body


class _Reads(io.RawIOBase):
    """Reads a socket until a given time."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        super().__init__()
        self._connection = connection
        self._until = time.monotonic() + seconds
        self._file = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer took too long")
        self._connection.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


@dataclass(eq=False, slots=True)
class _Socket:
    """A socket in the form that `HTTPResponse` uses."""

    _connection: socket.socket

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a file whose reads may together take the socket's timeout."""
        seconds = self._connection.gettimeout()
        return io.BufferedReader(_Reads(self._connection, 1e9 if seconds is None else seconds))


class _Response(http.client.HTTPResponse):
    """A response that must arrive in time."""

    def __init__(self, sock: Any, *arguments: Any, **named: Any) -> None:
        bounded: Any = _Socket(sock)
        super().__init__(bounded, *arguments, **named)


class _HttpConnection(http.client.HTTPConnection):
    response_class = _Response


class _HttpsConnection(http.client.HTTPSConnection):
    response_class = _Response


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_HttpConnection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._own = ssl.create_default_context() if context is None else context

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_HttpsConnection, req, context=self._own)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
