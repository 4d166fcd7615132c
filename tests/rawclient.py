"""A client of the lowest level for tests that misbehave: bytes in, frames out, and what /proc says about the broker.

Strategy: a blocking socket with a timeout, so that a broker that does not answer fails the test instead of hanging it.
Messages are encoded and decoded by `pylogd.wire`, which the golden frames test.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from pylogd.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.schema import request_codec, request_header_version, response_codec, response_header_version

PATIENCE = 120.0  # seconds after which any operation counts as hung
_CHUNK = 1 << 18
_LATEST = -1
_TICKS = os.sysconf("SC_CLK_TCK")


class ConnectionClosed(Exception):
    """The broker has closed the connection."""


class RawClient:
    """One connection. `received` counts the bytes that came."""

    def __init__(
        self, address: str, *, receive_buffer: int = 0, patience: float = PATIENCE, tls: ssl.SSLContext | None = None
    ) -> None:
        """`receive_buffer`: bytes that the kernel may keep for a client that does not read; 0 for its default.

        `tls`: how to encrypt the connection; None for not at all.
        """
        host, _, port = address.rpartition(":")
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(patience)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.received = 0
        self._data = bytearray()
        self.last_correlation_id = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are; those that a broker no longer wants are lost, as on any network."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
            self.socket.sendall(data)

    def send_request(self, message: Any, version: int) -> int:
        """Send one request; its correlation id."""
        self.last_correlation_id += 1
        self.send(frame(encode(message, version, self.last_correlation_id)))
        return self.last_correlation_id

    def request(self, message: Any, version: int) -> Any:
        """Send one request and wait for its reply."""
        correlation_id = self.send_request(message, version)
        return self.response(message.API_KEY, version, correlation_id)

    def response(self, api_key: int, version: int, correlation_id: int) -> Any:
        """The next reply, which has to be the one to `correlation_id`."""
        data = self.read_frame()
        assert struct.unpack_from(">i", data)[0] == correlation_id, "a reply out of order"
        body = memoryview(data)[4:]
        if response_header_version(api_key, version) >= 1:
            assert body[0] == 0, "a tag section that should be empty"
            body = body[1:]
        return response_codec(api_key, version).decode(body)

    def read_frame(self) -> bytes:
        """The next frame without its length. Raises ConnectionClosed."""
        self._fill(4)
        (length,) = struct.unpack_from(">i", self._data)
        self._fill(4 + length)
        data = bytes(memoryview(self._data)[4 : 4 + length])
        del self._data[: 4 + length]
        return data

    def _fill(self, count: int) -> None:
        while len(self._data) < count:
            try:
                data = self.socket.recv(_CHUNK)
            except ConnectionResetError:
                data = b""
            if not data:
                raise ConnectionClosed
            self.received += len(data)
            self._data += data

    def is_closed_by_broker(self) -> bool:
        """Read on until the broker closes the connection; False if it sends something instead."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True


def encode(message: Any, version: int, correlation_id: int = 1) -> bytes:
    """A request with its header, without its length."""
    body = b"".join(map(bytes, request_codec(message.API_KEY, version).encode(message)))  # type: ignore[arg-type]
    return header(message.API_KEY, version, correlation_id) + body


def header(api_key: int, version: int, correlation_id: int = 1) -> bytes:
    """A good request header."""
    client = b"raw"
    start = struct.pack(">hhih", api_key, version, correlation_id, len(client)) + client
    return start + b"\0" if request_header_version(api_key, version) >= 2 else start


def frame(data: bytes) -> bytes:
    """`data` with its length in front."""
    return struct.pack(">i", len(data)) + data


# Requests that every test needs --------------------------------------------------------------------------------------


def create_topic(client: RawClient, name: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic; underscores in the names of settings stand for dots."""
    settings = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    topic = CreatableTopic(name, partitions, 1, [], settings)
    reply = client.request(CreateTopicsRequest([topic], 30_000), 5)
    assert reply.topics[0].error_code == 0, reply


def produce(client: RawClient, topic: str, batches: Sequence[bytes], *, version: int = 9, acks: int = -1) -> list[Any]:
    """Send `batches`, one to each partition from 0 on; the answers of the partitions in their order."""
    data = [PartitionProduceData(index, batch) for index, batch in enumerate(batches)]
    reply = client.request(ProduceRequest(None, acks, 30_000, [TopicProduceData(topic, partition_data=data)]), version)
    return sorted(reply.responses[0].partition_responses, key=lambda answer: answer.index)


def end_offset(client: RawClient, topic: str, partition: int = 0) -> int:
    """The offset behind a partition's last record."""
    wanted = ListOffsetsTopic(topic, [ListOffsetsPartition(partition_index=partition, timestamp=_LATEST)])
    reply = client.request(ListOffsetsRequest(replica_id=-1, topics=[wanted]), 5)
    answer = reply.topics[0].partitions[0]
    assert answer.error_code == 0, answer
    return int(answer.offset)


def check_serves(address: str) -> None:
    """The broker answers a well-behaved client."""
    with RawClient(address) as client:
        assert client.request(ApiVersionsRequest("test", "1"), 3).error_code == 0


# The broker's process -------------------------------------------------------------------------------------------------


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition that may take a moment; fails when it does not come."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def connections(pid: int) -> int:
    """How many sockets the process has open."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(entry).startswith("socket:")
    return count


def open_files(pid: int) -> int:
    """How many descriptors of any kind the process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory(pid: int, field: str = "VmRSS") -> float:
    """MiB of resident memory: now (VmRSS), or the most since the last `reset_peak` (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no {field}")


def reset_peak(pid: int) -> None:
    """Let the peak of resident memory begin anew (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def wait_until_at_rest(pid: int) -> None:
    """Wait until the process has done all that it can for now: all its threads sleep, look after look."""
    quiet = 0
    last = _processor_ticks(pid)

    def rested() -> bool:
        nonlocal quiet, last
        now = _processor_ticks(pid)
        quiet = quiet + 1 if now == last and _all_sleep(pid) else 0
        last = now
        return quiet >= _TICKS // 10  # looks without a tick in between

    wait_until(rested, f"process {pid} is at rest")


def _all_sleep(pid: int) -> bool:
    """Whether no thread runs, waits for a disk, or waits for its turn on a machine that has much else to do."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "stat").read_text().rpartition(")")[2].split()[0] not in "SI":
                return False
    return True


def has_ended(pid: int) -> bool:
    """Whether the process is gone, or would be if its parent cared."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_ended(pid: int) -> None:
    """Wait until the process has ended."""
    wait_until(lambda: has_ended(pid), f"process {pid} has ended")


def _processor_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
