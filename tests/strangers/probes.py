"""Well-behaved clients beside a crowd, each a thread that does the same again and again, and notes how long it took."""

from __future__ import annotations

import base64
import http.client
import math
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from pylogd.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pylogd.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pylogd.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.extreme.access import Access
from tests.extreme.neighbour import TOPIC, Sample, percentile
from tests.rawclient import ConnectionClosed, RawClient, wait_until

_PAUSE: Final = 0.2  # seconds between two tries
_PATIENCE: Final = 30.0
_ERRORS: Final = (OSError, ConnectionClosed, http.client.HTTPException, AssertionError)
_PROTOCOLS: Final = [JoinGroupRequestProtocol("range", bytes(10))]


class Probe:
    """A thread that does something again and again. samples: how long it took. failures: what went wrong."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        """name: for failures."""
        self.name = name
        self.samples: list[Sample] = []
        self.failures: list[str] = []
        self._work = work
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE):
            begun = time.monotonic()
            try:
                self._work()
            except _ERRORS as error:
                self.failures.append(f"{self.name}: {type(error).__name__} {error}"[:200])
            self.samples.append(Sample(begun, time.monotonic() - begun))


def pairs(without: Sequence[Sample], beside: Sequence[Sample]) -> list[str]:
    """Return two cells of a table: the p50 and the p99 of the times without an attack / beside it.

    Where nothing began in time, the time without is unknown (`nan`), and that beside the attack has no end (`inf`).
    """
    return [
        f"{percentile([*without], share) if without else math.nan:.1f} / "
        f"{percentile([*beside], share) if beside else math.inf:.1f}"
        for share in (0.5, 0.99)
    ]


def connects(access: Access) -> Callable[[], object]:
    """Return what connects and authenticates."""

    def work() -> None:
        with access.connect(_PATIENCE) as client:
            client.request(ApiVersionsRequest("x", "1"), 3)

    return work


def health(address: str) -> Callable[[], object]:
    """Return what asks for `/healthz`, as a probe does that gives up after 5 s."""

    def work() -> None:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=5) as answer:
            answer.read()

    return work


class GroupMember:
    """A client that makes and leaves groups of both protocols, commits offsets, and opens producers."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client: RawClient | None = None

    def prepare(self) -> None:
        """Find the coordinators, which creates their topics."""
        with self._access.connect() as client:
            for kind in (0, 1):
                request = FindCoordinatorRequest("x", kind)
                wait_until(partial(_is_found, client, request), "the coordinator was not found")

    def work(self) -> None:
        """Make one of each."""
        try:
            if self._client is None:
                self._client = self._access.connect(_PATIENCE)
            self._ask(self._client)
        except (OSError, ConnectionClosed):
            if self._client is not None:
                self._client.close()
            self._client = None
            raise

    def _ask(self, client: RawClient) -> None:
        name = f"mine-{uuid.uuid4()}"
        joined = client.request(JoinGroupRequest(name, 6000, 6000, "", None, "consumer", _PROTOCOLS), 5)
        _expect(joined.error_code, ErrorCode.MEMBER_ID_REQUIRED, "JoinGroup")
        left = client.request(LeaveGroupRequest(name, members=[MemberIdentity(joined.member_id)]), 3)
        _expect(left.error_code, ErrorCode.NONE, "LeaveGroup")
        partition = OffsetCommitRequestPartition(0, 5, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
        committed = client.request(OffsetCommitRequest(f"{name[:6]}", -1, "", None, topics=topics), 8)
        _expect(committed.topics[0].partitions[0].error_code, ErrorCode.NONE, "OffsetCommit")
        member = str(uuid.uuid4())
        beat = client.request(_heartbeat(f"{name}-new", member, 0), 1)
        _expect(beat.error_code, ErrorCode.NONE, "ConsumerGroupHeartbeat")
        gone = client.request(_heartbeat(f"{name}-new", member, -1), 1)
        _expect(gone.error_code, ErrorCode.NONE, "ConsumerGroupHeartbeat, to leave")
        producer = client.request(InitProducerIdRequest(f"{name[:6]}", 60_000, -1, -1), 4)
        _expect(producer.error_code, ErrorCode.NONE, "InitProducerId")


def _is_found(client: RawClient, request: FindCoordinatorRequest) -> bool:
    return not client.request(request, 2).error_code


def _heartbeat(group: str, member: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group, member, epoch, rebalance_timeout_ms=60_000, subscribed_topic_names=[],
        subscribed_topic_regex=f"{TOPIC}.*", topic_partitions=[],
    )  # fmt: skip


def _expect(found: int, wanted: ErrorCode, request: str) -> None:
    assert found == wanted, f"{request} was answered {ErrorCode(found).name}"


def page(url: str, user: str = "", password: str = "", data: bytes | None = None, kind: str = "") -> Callable[[], Any]:
    """Return what asks for a page, with credentials if there is a user; it raises AssertionError unless it gets it."""
    request = urllib.request.Request(url, data)
    if user:
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {credentials}")
    if kind:
        request.add_header("Content-Type", kind)

    def work() -> None:
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                assert answer.status == 200, answer.status
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{error.code} {error.read()[:100]!r}") from None

    return work
