"""A client of a secured registry: credentials and TLS, by Confluent's property names."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pylogd.schemas.access import Access

SEEN: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        SEEN.append(self.headers["Authorization"])
        self.send_response(302 if self.path == "/away" else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    SEEN.clear()
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def get(access: Access, path: str = "/") -> None:
    with access.open(urllib.request.Request(access.url + path), 10):
        pass


@pytest.mark.parametrize(
    ("user", "settings", "header"),
    [
        ("", {}, None),
        ("ada:p%40ss@", {}, "Basic YWRhOnBAc3M="),
        ("ada:p%40ss@", {"basic.auth.credentials.source": "URL"}, "Basic YWRhOnBAc3M="),
        (
            "", {"basic.auth.credentials.source": "USER_INFO", "schema.registry.basic.auth.user.info": "ada:p@ss"},
            "Basic YWRhOnBAc3M=",
        ),
        ("", {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "t.o.k"}, "Bearer t.o.k"),
    ],
)  # fmt: skip
def test_credentials_are_sent(port: int, user: str, settings: dict[str, str], header: str | None) -> None:
    access = Access(f"http://{user}127.0.0.1:{port}/", settings)
    assert access.url == f"http://127.0.0.1:{port}", "messages name the URL without the password"
    get(access)
    assert [header] == SEEN


def test_redirects_are_not_followed(port: int) -> None:
    access = Access(f"http://ada:x@127.0.0.1:{port}", {})
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(access, "/away")
    caught.value.close()
    assert len(SEEN) == 1


@pytest.mark.parametrize(
    ("url", "settings", "text"),
    [
        ("ftp://x", {}, "must begin with http"),
        ("http://x", {"basic.auth.user.infos": "a:b"}, "no setting 'basic.auth.user.infos'"),
        ("http://x", {"basic.auth.user.info": "a:b"}, "needs basic.auth.credentials.source"),
        ("http://x", {"basic.auth.credentials.source": "SASL_INHERIT"}, "USER_INFO or URL"),
        ("http://x", {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "ada"}, "user:password"),
        ("http://x", {"bearer.auth.credentials.source": "STATIC_TOKEN"}, "with bearer.auth.token"),
        ("http://x", {"basic.auth.credentials.source": "URL", "bearer.auth.credentials.source": "x"}, "not both"),
    ],
)
def test_wrong_settings_are_named(url: str, settings: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Access(url, settings)
