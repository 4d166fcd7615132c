"""Answers of HTTP servers: of whom, how long, how large."""

from __future__ import annotations

import ssl
import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pylogd.local.authority import Authority
from pylogd.web.client import open_url, read_body


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/nonsense":
            self.wfile.write(b"no HTTP\r\n")
            self.close_connection = True
            return
        self.send_response(302 if self.path == "/away" else 200)
        self.send_header("Location", "/elsewhere")
        chunked = self.path == "/broken"
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", "1000")))
        self.end_headers()
        self.wfile.write(b"10\r\nx" if chunked else bytes(1000))
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def url(authority: Authority, tmp_path: Path) -> Iterator[str]:
    """An HTTPS server for 127.0.0.1."""
    (tmp_path / "server.pem").write_text(authority.issue("server", ["127.0.0.1"]).pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_needs_a_certificate_of_an_authority_that_is_trusted(
    url: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="certificate verify failed"):
        open_url(url, 30)
    with open_url(url, 30, ssl.create_default_context(cadata=authority.certificate)) as response:
        assert read_body(response) == bytes(1000)
    (tmp_path / "ca.pem").write_text(authority.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with open_url(url, 30) as response:
        assert read_body(response, 1000) == bytes(1000)


def test_what_is_refused(url: str, authority: Authority) -> None:
    context = ssl.create_default_context(cadata=authority.certificate)
    with open_url(url, 30, context) as response, pytest.raises(ValueError, match="more than 999 bytes"):
        read_body(response, 999)
    with pytest.raises(urllib.error.HTTPError) as caught:
        open_url(f"{url}/away", 30, context)
    assert caught.value.code == 302
    caught.value.close()
    with pytest.raises(OSError, match="not HTTP"):
        open_url(f"{url}/nonsense", 30, context)
    with open_url(f"{url}/broken", 30, context) as response, pytest.raises(OSError, match="incomplete"):
        read_body(response)
