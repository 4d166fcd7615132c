"""The audit log: which operations are written, which are only counted, and what happens when a write fails."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.auditing import ADMINISTRATIVE, describe
from pylogd.broker.api.dispatch import AuditingDispatcher
from pylogd.broker.security import audit as module
from pylogd.broker.security.audit import LONGEST, WINDOW_SECONDS, AuditLog, Limiter
from pylogd.broker.security.authorizer import AclOperation, ResourceType
from pylogd.credentials.principal import ANONYMOUS, Principal
from pylogd.wire import schema
from pylogd.wire.fast import compiled
from pylogd.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from pylogd.wire.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from pylogd.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pylogd.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.session import ClientSession, RequestReceived
from tests.fakes.parts import FakeConnection, Parts
from tests.unit.broker.api.test_authorization import Only

ALICE = Principal("User", "alice")


class Clocks:
    now_ms = 1_700_000_000_000
    seconds = 10.0


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def make(tmp_path: Path, clocks: Clocks) -> Iterator[Callable[..., AuditLog]]:
    made: list[AuditLog] = []

    def make(**limits: int) -> AuditLog:
        limits = {"max_queued": 1000, "denials_per_minute": 100} | limits
        path = str(tmp_path / "audit.jsonl")
        made.append(AuditLog(path, lambda: clocks.now_ms, lambda: clocks.seconds, **limits))
        return made[-1]

    yield make
    for log in made:
        log.stop()


def deny(log: AuditLog, name: str = "t", who: Principal = ALICE) -> None:
    log.denied(who, "10.0.0.1", "app", "Produce", AclOperation.WRITE, ResourceType.TOPIC, name)


def write(log: AuditLog) -> list[dict[str, Any]]:
    """Write the queued lines, without the thread; return the contents of the file."""
    log.write(log._queue.take(0))
    return read(Path(log.path))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_denial_names_principal_host_and_resource(make: Callable[..., AuditLog]) -> None:
    log = make()
    deny(log, 'weird "name"\n\x1b[31m')
    (line,) = write(log)
    assert line == {
        "time": "2023-11-14T22:13:20.000Z",
        "event": "denied",
        "principal": "User:alice",
        "host": "10.0.0.1",
        "client_id": "app",
        "api": "Produce",
        "operation": "WRITE",
        "resource": "TOPIC",
        "name": 'weird "name"\n\x1b[31m',
    }
    assert b"\x1b" not in Path(log.path).read_bytes(), "a terminal that shows the file must not obey it"


def test_what_is_repeated_is_counted(make: Callable[..., AuditLog], clocks: Clocks) -> None:
    log = make()
    for _ in range(500):
        deny(log)
    assert len(write(log)) == 1
    clocks.seconds += WINDOW_SECONDS
    _, counted = write(log)
    assert counted["repeated"] == 499 and counted["name"] == "t"
    deny(log)
    assert "repeated" not in write(log)[-1], "a new minute has begun"


def test_different_denials_of_one_client_are_limited(make: Callable[..., AuditLog], clocks: Clocks) -> None:
    log = make(denials_per_minute=5)
    for number in range(800):
        deny(log, f"t{number}")
    deny(log, "t1", Principal("User", "bob"))
    assert [line["principal"] for line in write(log)] == ["User:alice"] * 5 + ["User:bob"]
    clocks.seconds += WINDOW_SECONDS
    last = write(log)[-1]
    assert (last["principal"], last["not_written"]) == ("User:alice", 795)


def test_clients_beyond_a_number_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLIENTS", 3)
    limiter = Limiter(10)
    admitted = [limiter.admit((f"User:u{number}", "h"), "k", {"event": "denied"}, 0.0) for number in range(5)]
    assert admitted == [True, True, True, False, False]
    assert limiter.over(1.0) == []
    assert limiter.over(WINDOW_SECONDS) == [{"event": "denied", "not_written": 2}]


def test_a_flood_of_one_client_loses_its_own_events_only(make: Callable[..., AuditLog]) -> None:
    log = make(max_queued=100, denials_per_minute=1000)
    for number in range(10):
        deny(log, f"mine-{number}")
    for number in range(500):
        log.denied(
            ANONYMOUS, f"10.0.1.{number % 5}", "app", "Produce", AclOperation.WRITE, ResourceType.TOPIC, f"{number}"
        )
    for number in range(10, 30):
        deny(log, f"mine-{number}")
    *written, dropped = write(log)
    assert [line["name"] for line in written if line["principal"] == str(ALICE)] == [f"mine-{at}" for at in range(30)]
    assert len(written) == 100
    assert dropped["event"] == "queue full" and dropped["not_written"] == 430


def test_a_principal_that_denies_itself_loses_its_own_events_only(make: Callable[..., AuditLog]) -> None:
    log = make(max_queued=100, denials_per_minute=1000)
    for number in range(500):
        deny(log, f"{number}", Principal("User", "mallory"))
    for number in range(30):
        deny(log, f"mine-{number}")
    assert [line["name"] for line in write(log) if line.get("principal") == str(ALICE)] == [
        f"mine-{at}" for at in range(30)
    ]


def test_what_does_not_fit_into_the_queue_is_counted(make: Callable[..., AuditLog]) -> None:
    log = make(max_queued=3)
    for number in range(10):
        deny(log, f"t{number}")
    *written, dropped = write(log)
    assert len(written) == 3 and dropped["event"] == "queue full" and dropped["not_written"] == 7


def test_reopen_follows_a_renamed_file(make: Callable[..., AuditLog]) -> None:
    log = make()
    deny(log, "before")
    log.reopen()
    deny(log, "after")
    path = Path(log.path)
    (write_first,) = log._queue.take(0, 1)
    log.write([write_first])
    path.rename(path.with_suffix(".1"))
    assert [line["name"] for line in write(log)] == ["after"]
    assert [line["name"] for line in read(path.with_suffix(".1"))] == ["before"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_written_loses_lines_and_no_more(make: Callable[..., AuditLog], tmp_path: Path) -> None:
    log = make()
    target, log.path = log.path, str(tmp_path / "missing" / "audit.jsonl")
    with pytest.raises(OSError):
        log.start()
    deny(log, "lost")
    log.write(log._queue.take(0, 1))
    log.path = target
    deny(log, "kept")
    missing, kept = write(log)
    assert (missing["event"], missing["not_written"]) == ("write failed", 1)
    assert kept["name"] == "kept"


def test_what_a_full_disk_loses_is_counted_and_leaves_whole_lines(
    make: Callable[..., AuditLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make()
    room = 250  # of the disk, in bytes
    real = os.write

    def write_some(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(fd, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", write_some)
    for number in range(4):
        deny(log, f"t{number}")
    log.write(log._queue.take(0, 4))
    log.write([])
    deny(log, "t4")
    log.write(log._queue.take(0, 1))
    room = 10_000
    deny(log, "kept")
    log.write(log._queue.take(0, 1))
    whole = [json.loads(line) for line in Path(log.path).read_text().splitlines() if line.endswith("}")]
    assert [line.get("name") for line in whole] == ["t0", None, "kept"]
    assert (whole[1]["event"], whole[1]["not_written"]) == ("write failed", 4)


def test_an_event_that_can_not_be_described_loses_no_other(
    make: Callable[..., AuditLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make()
    failures: list[str] = []
    monkeypatch.setattr(module, "log", SimpleNamespace(failure=failures.append))

    def broken() -> Any:
        raise ValueError("never expected")

    deny(log, "before")
    log.administrative(ALICE, "10.0.0.1", None, "CreateTopics", broken)
    deny(log, "after")
    missing, before, after = write(log)
    assert [before["name"], after["name"]] == ["before", "after"]
    assert (missing["event"], missing["not_written"]) == ("write failed", 1)
    assert len(failures) == 1


def test_a_device_that_is_full(make: Callable[..., AuditLog]) -> None:
    log = make()
    log.path = "/dev/full"
    for _ in range(3):
        deny(log)
        log.write(log._queue.take(0, 1))
    assert log._failing


def test_texts_of_clients_are_cut(make: Callable[..., AuditLog]) -> None:
    log = make()
    log.denied(
        Principal("User", "u" * 30_000), "10.0.0.1", "c" * 30_000, "Metadata", AclOperation.DESCRIBE,
        ResourceType.TOPIC, "n" * 30_000,
    )  # fmt: skip
    (line,) = write(log)
    assert line["name"] == "n" * LONGEST + "... (30000 characters)"
    assert len(json.dumps(line)) < 4 * LONGEST


def test_refused_requests_leave_short_lines_and_little_memory(make: Callable[..., AuditLog], clocks: Clocks) -> None:
    log = make(denials_per_minute=10_000)
    refused = CreateAclsResponse(results=[AclCreationResult(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")] * 2000)
    for number in range(1500):
        creations = [AclCreation(2, f"{number}" * 8000, 3, "User:bob", "*", 3, 3) for _ in range(5)]
        request = CreateAclsRequest(creations)
        log.administrative(ALICE, "10.0.0.1", None, "CreateAcls", partial(describe, request, refused))
        log.write(log._queue.take(0, 1))
    assert max(len(line) for line in Path(log.path).read_text().splitlines()) < 50_000
    assert log._limiter._size <= module.MOST_BYTES
    clocks.seconds += WINDOW_SECONDS
    *_, last = write(log)
    written = sum(1 for line in read(Path(log.path)) if line["event"] == "administrative")
    assert last["not_written"] + written == 1500
    assert log._limiter._size == 0


def test_what_is_only_validated_is_not_done() -> None:
    request = CreateTopicsRequest([CreatableTopic("t", 1, 1)], validate_only=True)
    response = CreateTopicsResponse(topics=[CreatableTopicResult("t", error_message=None, configs=[])])
    assert describe(request, response)[1] is False
    request.validate_only = False
    assert describe(request, response)[1] is True


def test_of_many_results_a_thousand_are_written() -> None:
    topics = [DeleteRecordsTopicResult("t", [DeleteRecordsPartitionResult(index, 7) for index in range(1500)])]
    shown, done = describe(DeleteRecordsRequest(), DeleteRecordsResponse(topics=topics))
    assert done and len(shown["results"]) == 1001
    assert shown["results"][-1] == {"not_written": 500}


def test_a_client_that_leaves_is_recorded_all_the_same(tmp_path: Path, make: Callable[..., AuditLog]) -> None:
    parts, log = Parts(tmp_path), make()
    dispatcher = AuditingDispatcher(parts, log)
    connection: Any = FakeConnection()
    connection.context, connection.principal = None, ALICE
    request = CreateTopicsRequest([CreatableTopic("made", 1, 1)])
    parts.threads.hold = True
    done = dispatcher.handle(connection, RequestReceived(request.API_KEY, 7, 1, "me", request))
    assert not done.called
    done.addErrback(lambda failure: failure.trap(CancelledError))
    done.cancel()  # as the pipeline does when the connection is lost
    parts.threads.hold = False
    parts.threads.release()
    assert parts.topics.get("made") is not None
    (created,) = write(log)
    assert created["api"] == "CreateTopics" and created["results"][0]["error"] == "NONE"
    parts.close()


def test_the_thread_writes_all_before_it_stops(make: Callable[..., AuditLog]) -> None:
    log = make()
    log.start()
    for number in range(50):
        deny(log, f"t{number}")
    log.stop()
    assert len(read(Path(log.path))) == 50


def test_an_administrative_event_says_what_was_asked_and_what_came_of_it(
    make: Callable[..., AuditLog], clocks: Clocks
) -> None:
    log = make()
    request = DeleteRecordsRequest()
    result = DeleteRecordsTopicResult("t", [DeleteRecordsPartitionResult(0, 7), DeleteRecordsPartitionResult(1, -1, 3)])
    response = DeleteRecordsResponse(topics=[result])
    log.administrative(ALICE, "10.0.0.1", None, "DeleteRecords", partial(describe, request, response))
    (line,) = write(log)
    assert line["api"] == "DeleteRecords" and line["principal"] == "User:alice"
    assert line["results"] == [
        {"name": "t", "partition_index": 0, "error": "NONE"},
        {"name": "t", "partition_index": 1, "error": "UNKNOWN_TOPIC_OR_PARTITION"},
    ]


def test_operations_without_effect_are_limited_as_denials_are(make: Callable[..., AuditLog]) -> None:
    log = make()
    request = CreateAclsRequest([AclCreation(2, "t", 3, "User:bob", "*", 3, 3)])
    refused = CreateAclsResponse(results=[AclCreationResult(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no")])
    for _ in range(20):
        log.administrative(ALICE, "10.0.0.1", None, "CreateAcls", partial(describe, request, refused))
    assert len(write(log)) == 1
    done = CreateAclsResponse(results=[AclCreationResult(0, None)])
    for _ in range(3):
        log.administrative(ALICE, "10.0.0.1", None, "CreateAcls", partial(describe, request, done))
    lines = write(log)
    assert len(lines) == 4
    assert lines[-1]["request"]["creations"][0] == {
        "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:bob", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip


def test_an_encoded_response_is_decoded() -> None:
    response = DeleteRecordsResponse(topics=[DeleteRecordsTopicResult("t", [DeleteRecordsPartitionResult(0, 7)])])
    (encoded,) = schema.response_codec(DeleteRecordsRequest.API_KEY, 2).encode(response)
    assert isinstance(encoded, bytes)
    shown, done = describe(DeleteRecordsRequest(), encoded, 2)
    assert done and shown["results"] == [{"name": "t", "partition_index": 0, "error": "NONE"}]


def test_values_of_settings_are_written_unless_they_may_be_secret() -> None:
    configs = [
        AlterableConfig("retention.ms", "5"),
        AlterableConfig("zookeeper.sasl.password", "secret"),
        AlterableConfig("unknown.to.us", "secret"),
    ]
    shown, _ = describe(AlterConfigsRequest([AlterConfigsResource(4, "1", configs)]), None)
    assert "secret" not in json.dumps(shown)
    assert [one["value"] for one in shown["request"]["resources"][0]["configs"]] == ["5", "(hidden)", "(hidden)"]


def test_requests_on_a_connection_reach_the_log(tmp_path: Path, make: Callable[..., AuditLog]) -> None:
    parts, log = Parts(tmp_path), make()
    parts.security.audit = log
    dispatcher = AuditingDispatcher(parts, log)
    connection: Any = FakeConnection()
    connection.context, connection.principal = None, ALICE

    def ask(request: Any, version: int) -> Any:
        return dispatcher.handle(connection, RequestReceived(request.API_KEY, version, 1, "me", request))

    ask(CreateTopicsRequest([CreatableTopic("made", 1, 1)]), 7)
    parts.authorizer = Only([])
    ask(MetadataRequest([MetadataRequestTopic(name="made")], False), 9)
    ask(MetadataRequest(None, False), 9)  # omitting topics from a list of all is no denial
    ask(CreateTopicsRequest([CreatableTopic("more", 1, 1)]), 7)
    parts.authorizer = None
    created, described, denied, refused = write(log)
    assert (created["api"], created["client_id"]) == ("CreateTopics", "me")
    assert created["results"][0]["name"] == "made" and created["results"][0]["error"] == "NONE"
    assert (described["api"], described["operation"], described["name"]) == ("Metadata", "DESCRIBE", "made")
    assert (denied["api"], denied["operation"], denied["name"]) == ("CreateTopics", "CREATE", "more")
    assert refused["results"][0]["error"] == "TOPIC_AUTHORIZATION_FAILED"
    parts.close()


@pytest.mark.parametrize(
    "short_way",
    [False, pytest.param(True, marks=pytest.mark.skipif(compiled.fast is None, reason="there was no compiler"))],
)
def test_a_read_that_is_refused_after_a_wait_is_the_same_denial_as_the_next(
    tmp_path: Path, make: Callable[..., AuditLog], short_way: bool
) -> None:
    parts, log = Parts(tmp_path), make()
    parts.security.audit = log
    parts.create("t")
    dispatcher = AuditingDispatcher(parts, log)
    connection: Any = FakeConnection()
    connection.context, connection.known_fetch, connection.principal = None, None, ALICE
    partition = parts.partitions.by_name["t", 0]
    topic = FetchTopic(topic_id=partition.topic_id, partitions=[FetchPartition(0, partition_max_bytes=1000)])
    request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1000, session_epoch=-1, topics=[topic])
    answers: list[Any] = []
    parts.authorizer = Only([(AclOperation.READ, ResourceType.TOPIC)])
    if short_way:
        frame: list[Any] = ClientSession(1 << 20, "me").encode_request(request, 16)
        wait: Any = dispatcher.handle_repeated(connection, b"".join(map(bytes, frame)), cast(Any, None))
        wait.then(lambda answer, _: answers.append(answer), None)
    else:
        dispatcher.handle(connection, RequestReceived(1, 16, 1, "me", request)).addCallback(answers.append)
    parts.authorizer = Only([])
    parts.append("t", b"v")
    answers += [dispatcher.handle(connection, RequestReceived(1, 16, 1, "me", request)) for _ in range(2)]
    parts.authorizer = None
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [answer.responses[0].partitions[0].error_code for answer in answers] == [refused] * 3
    (line,) = write(log)
    assert (line["api"], line["client_id"], line["operation"], line["name"]) == ("Fetch", "me", "READ", "t")
    parts.close()


def test_only_what_changes_something_is_administrative() -> None:
    from pylogd.broker.api import REGISTRATIONS  # noqa: PLC0415

    changing = ("Alter", "Create", "Delete", "Elect", "Update", "Renew", "Expire")
    served = {found.name for found in REGISTRATIONS.values() if found.name.startswith(changing)}
    assert served | {"OffsetDelete"} == {name for name in ADMINISTRATIVE if name in served or name == "OffsetDelete"}
