"""A client of a secured registry: credentials and TLS, by Confluent's property names."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pylogd.client.registry.access import Access
from pylogd.client.registry.avro import SchemaRegistryClient, SchemaRegistryError

SEEN: list[str | None] = []
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ada" password="p@ss";'


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
        ("", {"basic.auth.user.info": "ada:p@ss"}, "Basic YWRhOnBAc3M="),
        (
            "", {"basic.auth.credentials.source": "SASL_INHERIT", "sasl.jaas.config": JAAS}, "Basic YWRhOnBAc3M=",
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
        ("http://x", {"basic.auth.credentials.source": "SASL_INHERIT"}, "needs sasl.jaas.config"),
        ("http://x", {"basic.auth.credentials.source": "BASIC"}, "USER_INFO, URL or SASL_INHERIT"),
        ("http://x", {"bearer.auth.credentials.source": "OAUTHBEARER"}, "needs bearer.auth.issuer.endpoint.url"),
        ("https://x", {"ssl.truststore.location": "/nowhere.pem"}, "can't read ssl_ca"),
        ("https://x", {"ssl.truststore.type": "JKS"}, "only PEM"),
        ("http://x", {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "ada"}, "user:password"),
        ("http://x", {"bearer.auth.credentials.source": "STATIC_TOKEN"}, "with bearer.auth.token, OAUTHBEARER"),
        ("http://x", {"basic.auth.credentials.source": "URL", "bearer.auth.credentials.source": "x"}, "not both"),
    ],
)
def test_wrong_settings_are_named(url: str, settings: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Access(url, settings)


def test_tokens_come_from_a_file_or_as_kafka_s_properties_say(port: int, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    sources = [
        {"bearer.auth.credentials.source": "OAUTHBEARER", "bearer.auth.issuer.endpoint.url": path.as_uri()},
        {
            "bearer.auth.credentials.source": "SASL_OAUTHBEARER_INHERIT", "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        },
    ]  # fmt: skip
    ways = [Access(f"http://127.0.0.1:{port}", settings) for settings in sources]
    for access in ways:
        get(access)
    path.write_text("second")
    for access in ways:
        get(access)
    assert SEEN == ["Bearer first"] * 2 + ["Bearer second"] * 2


class Slow(socketserver.BaseRequestHandler):
    """Sends an answer byte by byte, for as long as the client listens."""

    answer = b"HTTP/1.0 200 OK\r\n\r\n"
    rest = b" "

    def handle(self) -> None:
        self.request.recv(65536)
        self.request.sendall(self.answer)
        with contextlib.suppress(OSError):
            while True:
                self.request.sendall(self.rest)
                STEP.wait(0.01)


class SlowHeaders(Slow):
    answer = b"HTTP/1.0 200 OK\r\n"
    rest = b"X: y\r\n"


STEP = threading.Event()  # nobody sets it


@pytest.mark.parametrize("handler", [Slow, SlowHeaders])
def test_an_answer_that_never_ends_is_given_up(handler: type[Slow]) -> None:
    """The time is for the whole answer; each byte of it comes well within that time."""
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        client = SchemaRegistryClient(f"http://127.0.0.1:{server.server_address[1]}", timeout=0.2)
        with pytest.raises(SchemaRegistryError, match="can't reach the schema registry"):
            client.schema(1)
        thread.join()
