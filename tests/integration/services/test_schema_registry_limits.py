"""A schema registry process under requests that are too large or too slow: memory is bounded, others are served."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pylogd.local.broker import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.rawclient import memory, reset_peak
from tests.registries import AT_ONCE, RegistryProcess, ask, made

MEMORY_CAP = 30.0  # MiB by which the process may grow


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(settings=AT_ONCE)


@pytest.fixture
def registry(broker: BrokerProcess, tmp_path: Path) -> Iterator[RegistryProcess]:
    process = RegistryProcess(broker.address, tmp_path / "registry.log")
    yield process
    assert process.stop() == 0


def address_of(registry: RegistryProcess) -> tuple[str, int]:
    parts = urlsplit(registry.url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


def wide_union(size: int) -> str:
    """Return a schema of 40 KB. To compare two of them takes a minute, for a million pairs of types."""
    return json.dumps([{"type": "fixed", "name": f"n{index}", "size": size} for index in range(1000)])


def test_a_body_in_chunks_is_refused_at_the_limit(registry: RegistryProcess) -> None:
    reset_peak(registry.process.pid)
    before = memory(registry.process.pid)
    with socket.create_connection(address_of(registry), 60) as connection:
        connection.sendall(b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        sent = 0
        try:
            for _ in range(200):
                connection.sendall(piece)
                sent += 1
        except OSError:
            pass  # the registry stops receiving
        assert sent < 100, "the registry received 100 MB"
    assert memory(registry.process.pid, "VmHWM") - before < MEMORY_CAP
    assert ask(f"{registry.url}/subjects") == (200, [])


def test_a_refused_body_is_answered_with_413(registry: RegistryProcess) -> None:
    body = b'{"schema": "' + b"x" * (2 << 20) + b'"}'
    for chunked in (False, True):
        connection = http.client.HTTPConnection(*address_of(registry), timeout=60)
        pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)] if chunked else body
        connection.request("POST", "/subjects/s/versions", pieces, encode_chunked=chunked)
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["error_code"]) == (413, 413)
        connection.close()
    assert ask(f"{registry.url}/subjects") == (200, [])


def test_many_large_bodies_at_the_same_time_are_bounded(registry: RegistryProcess) -> None:
    before = memory(registry.process.pid)
    connections = []
    for _ in range(100):
        connection = socket.create_connection(address_of(registry), 60)
        connection.sendall(
            b"POST /subjects/s HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n" + bytes(1 << 20)[1:]
        )
        connections.append(connection)
    assert ask(f"{registry.url}/subjects") == (200, [])
    assert memory(registry.process.pid) - before < 64 + MEMORY_CAP
    for connection in connections:
        connection.close()


def test_a_schema_that_takes_too_long_is_refused_and_others_are_served(registry: RegistryProcess) -> None:
    url = f"{registry.url}/subjects/slow/versions"
    assert made(ask(url, "POST", {"schema": wide_union(1)})) == (200, 1, 1)
    answers: list[tuple[int, Any]] = []
    slow = threading.Thread(target=lambda: answers.append(ask(url, "POST", {"schema": wide_union(2)})))
    slow.start()
    served = 0
    while slow.is_alive():
        assert ask(f"{registry.url}/subjects") == (200, ["slow"])
        served += 1
    slow.join()
    ((status, document),) = answers
    assert (status, document["error_code"]) == (422, 42201), document
    assert "could not be checked" in document["message"]
    assert served > 10, "others were not served meanwhile"
    assert made(ask(f"{registry.url}/subjects/s/versions", "POST", {"schema": '"string"'})) == (200, 2, 1)
