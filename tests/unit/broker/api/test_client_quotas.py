"""AlterClientQuotas and DescribeClientQuotas, and the throttle times of clients over their quotas."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.clock import timed
from pylogd.base.errors import ErrorCode
from pylogd.broker.api import metering
from pylogd.broker.api.dispatch import Dispatcher
from pylogd.broker.api.metering import charge_connection
from pylogd.broker.api.statistics import RequestStatistics
from pylogd.broker.metadata.entity_configs import DEFAULT_NAME, Entity
from pylogd.broker.quotas.limits import QuotaKind
from pylogd.broker.security.peers import PeerClaim
from pylogd.wire.compression import CompressionType
from pylogd.wire.fast.request_batch import with_throttle_time
from pylogd.wire.messages import alter_client_quotas as alter
from pylogd.wire.messages import describe_client_quotas as describe
from pylogd.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from pylogd.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pylogd.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from pylogd.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.schema import response_codec
from pylogd.wire.session import NOT_ANSWERED, ClientSession, RequestReceived, ServerSession
from tests.fakes.metadata import result_of
from tests.fakes.parts import FakeConnection, Parts, batch, decoded, records_in

USER, CLIENT, IP = "user", "client-id", "ip"
EXACT, DEFAULT, ANY = range(3)
NO_OUTPUT: Any = None
TOO_MUCH = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def change(parts: Sequence[tuple[str, str | None]], validate_only: bool = False, **values: Any) -> Any:
    """Return a request that changes the quotas of one entity; None removes a quota."""
    ops = [alter.OpData(name, value or 0.0, value is None) for name, value in values.items()]
    entry = alter.EntryData([alter.EntityData(*part) for part in parts], ops)
    return alter.AlterClientQuotasRequest([entry], validate_only)


def changed(parts: Parts, *entity: tuple[str, str | None], **values: Any) -> None:
    (result,) = parts.call(change(entity, **values)).entries
    assert (result.error_code, result.error_message) == (0, None)


def described(parts: Parts, *conditions: tuple[str, int, str | None], strict: bool = False) -> dict[Any, Any]:
    components = [describe.ComponentData(*condition) for condition in conditions]
    answer = parts.call(describe.DescribeClientQuotasRequest(components, strict))
    assert answer.error_code == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            one.key: one.value for one in entry.values
        }
        for entry in answer.entries
    }


class TestApis:
    def test_what_was_set_is_described(self, parts: Parts) -> None:
        changed(parts, (USER, "ann"), (CLIENT, "app"), producer_byte_rate=1024.0, request_percentage=12.5)
        changed(parts, (USER, None), consumer_byte_rate=5.0)
        changed(parts, (IP, "10.0.0.1"), connection_creation_rate=3.0)
        changed(parts, (USER, "ann"), (CLIENT, "app"), request_percentage=None)
        assert described(parts) == {
            ((CLIENT, "app"), (USER, "ann")): {"producer_byte_rate": 1024.0},
            ((USER, None),): {"consumer_byte_rate": 5.0},
            ((IP, "10.0.0.1"),): {"connection_creation_rate": 3.0},
        }
        assert parts.client_quotas.connection_rate("10.0.0.1") == 3

    def test_parts_and_values_have_the_order_of_kafkas_answers(self, parts: Parts) -> None:
        for entity in ([(USER, "ann"), (CLIENT, "app")], [(CLIENT, "app"), (USER, "ann")]):
            (result,) = parts.call(change(entity, request_percentage=1.0)).entries
            assert [(part.entity_type, part.entity_name) for part in result.entity] == [(CLIENT, "app"), (USER, "ann")]
        (result,) = parts.call(change(entity, producer_byte_rate=2.0, consumer_byte_rate=3.0)).entries
        [values] = described(parts).values()
        assert list(values) == ["consumer_byte_rate", "request_percentage", "producer_byte_rate"]
        (result,) = parts.call(change([("cat", "tom"), (USER, "ann")])).entries
        assert [part.entity_type for part in result.entity] == [USER, "cat"]

    @pytest.mark.parametrize(
        ("conditions", "strict", "found"),
        [
            ([(USER, EXACT, "ann")], False, "ann ann/app"),
            ([(USER, EXACT, "ann")], True, "ann"),
            ([(USER, DEFAULT, None)], True, "-"),
            ([(USER, ANY, None)], True, "ann -"),
            ([(USER, ANY, None), (CLIENT, ANY, None)], True, "ann/app"),
            ([(CLIENT, EXACT, "app")], False, "ann/app /app"),
            ([(CLIENT, EXACT, "app")], True, "/app"),
            ([(IP, ANY, None)], False, "@10.0.0.1"),
            ([], False, "ann ann/app - /app @10.0.0.1"),
            ([], True, ""),
        ],
    )
    def test_conditions(self, parts: Parts, conditions: list[Any], strict: bool, found: str) -> None:
        names: dict[str, list[tuple[str, str | None]]] = {
            "ann": [(USER, "ann")], "ann/app": [(CLIENT, "app"), (USER, "ann")], "-": [(USER, None)],
            "/app": [(CLIENT, "app")],
        }  # fmt: skip
        for entity in names.values():
            changed(parts, *entity, producer_byte_rate=1.0)
        changed(parts, (IP, "10.0.0.1"), connection_creation_rate=1.0)
        names["@10.0.0.1"] = [(IP, "10.0.0.1")]
        assert set(described(parts, *conditions, strict=strict)) == {tuple(names[name]) for name in found.split()}

    @pytest.mark.parametrize(
        ("conditions", "code"),
        [
            ([(USER, 3, None)], ErrorCode.INVALID_REQUEST),
            ([(USER, EXACT, None)], ErrorCode.INVALID_REQUEST),
            ([(USER, DEFAULT, "ann")], ErrorCode.INVALID_REQUEST),
            ([(USER, ANY, "ann")], ErrorCode.INVALID_REQUEST),
            ([(USER, ANY, None), (USER, DEFAULT, None)], ErrorCode.INVALID_REQUEST),
            ([(IP, ANY, None), (USER, ANY, None)], ErrorCode.INVALID_REQUEST),
            ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
            ([("team", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ],
    )
    def test_invalid_conditions(self, parts: Parts, conditions: list[Any], code: ErrorCode) -> None:
        components = [describe.ComponentData(*condition) for condition in conditions]
        answer = parts.call(describe.DescribeClientQuotasRequest(components, False))
        assert (answer.error_code, answer.entries) == (code, None)
        assert answer.error_message

    @pytest.mark.parametrize(
        ("entity", "values"),
        [
            ([], {"producer_byte_rate": 1.0}),
            ([("team", "a")], {"producer_byte_rate": 1.0}),
            ([(USER, "")], {"producer_byte_rate": 1.0}),
            ([(USER, "a"), (IP, "10.0.0.1")], {"producer_byte_rate": 1.0}),
            ([(IP, "a host")], {"connection_creation_rate": 1.0}),
            ([(IP, "10.0.0.1")], {"producer_byte_rate": 1.0}),
            ([(USER, "a")], {"connection_creation_rate": 1.0}),
            ([(USER, "a")], {"speed": 1.0}),
            ([(USER, "a")], {"producer_byte_rate": -1.0}),
            ([(USER, "a")], {"producer_byte_rate": 0.5}),
            ([(USER, "a")], {"request_percentage": float("inf")}),
        ],
    )
    def test_invalid_changes(self, parts: Parts, entity: list[Any], values: dict[str, Any]) -> None:
        (result,) = parts.call(change(entity, **values)).entries
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert result.error_message.endswith(".")
        assert [(part.entity_type, part.entity_name) for part in result.entity] == entity
        assert described(parts) == {}

    def test_what_kafka_takes_too(self, parts: Parts) -> None:
        """Of a part that is there twice the last one counts; a quota that does not exist can be removed."""
        changed(parts, (USER, None), producer_byte_rate=5.0)
        (result,) = parts.call(change([(USER, "a"), (USER, "b")], producer_byte_rate=1.0, speed=None)).entries
        assert result.error_code == 0
        assert set(described(parts)) == {((USER, None),), ((USER, "b"),)}
        assert described(parts, (USER, EXACT, "")) == {}

    def test_an_entity_or_a_quota_named_twice(self, parts: Parts) -> None:
        entry = alter.EntryData([alter.EntityData(USER, "a")], [alter.OpData("request_percentage", 1.0)] * 2)
        (result,) = parts.call(alter.AlterClientQuotasRequest([entry])).entries
        assert result.error_code == ErrorCode.INVALID_REQUEST
        entry.ops.pop()
        results = parts.call(alter.AlterClientQuotasRequest([entry, entry])).entries
        assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2

    def test_validate_only_changes_nothing(self, parts: Parts) -> None:
        (result,) = parts.call(change([(USER, "a")], validate_only=True, producer_byte_rate=1.0)).entries
        assert result.error_code == 0
        assert described(parts) == {}

    def test_addresses_are_stored_in_one_form(self, parts: Parts) -> None:
        changed(parts, (IP, "0:0:0:0:0:0:0:1"), connection_creation_rate=7.0)
        assert parts.client_quotas.connection_rate("::1") == 7

    def test_settings_of_others_are_kept_and_not_shown(self, parts: Parts) -> None:
        result_of(parts.metadata.entity_configs.alter(Entity(user="ann"), {"SCRAM-SHA-256": "secret"}))
        changed(parts, (USER, "ann"), producer_byte_rate=1.0)
        changed(parts, (USER, "ann"), producer_byte_rate=None)
        assert parts.metadata.entity_configs.configs == {Entity(user="ann"): {"SCRAM-SHA-256": "secret"}}
        assert described(parts) == {}


class Client:
    """A client whose requests go through the dispatcher, where quotas are counted."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.dispatcher = Dispatcher(parts)
        connection: Any = FakeConnection()
        connection.context = None
        self.connection = connection
        parts.create("t")

    def ask(self, request: Any, version: int) -> Any:
        event = RequestReceived(request.API_KEY, version, 1, "app", request)
        answer = self.dispatcher.handle(self.connection, event)
        if isinstance(answer, Deferred):
            answer = result_of(answer)
        return decoded(answer, request.API_KEY, version)

    def produce(self, size: int, acks: int = 1, version: int = 10) -> Any:
        return self.append(batch(b"v" * size, now_ms=self.parts.now_ms()), acks, version)

    def append(self, records: bytes, acks: int = 1, version: int = 10, topic: str = "t") -> Any:
        data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, records)])
        return self.ask(ProduceRequest(None, acks, 1000, [data]), version)

    def fetch(self, offset: int = 0, **fields: Any) -> Any:
        topic_id = self.parts.partitions.by_name["t", 0].topic_id
        partition = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic_id=topic_id, partitions=[partition])
        return self.ask(FetchRequest(**{"min_bytes": 1, "topics": [topic], **fields}), 16)

    @property
    def muted(self) -> list[float]:
        found: list[float] = self.connection.muted
        self.connection.muted = []
        return found


@pytest.fixture
def client(parts: Parts) -> Client:
    return Client(parts)


def limit(client: Client, **values: float) -> None:
    changed(client.parts, (USER, "ANONYMOUS"), **values)


class TestThrottling:
    def test_nobody_is_throttled_without_quotas(self, client: Client) -> None:
        assert client.produce(100_000).throttle_time_ms == 0
        assert client.muted == []

    def test_producing_too_much(self, client: Client) -> None:
        limit(client, producer_byte_rate=1000.0)
        answer = client.produce(2_000)
        assert answer.responses[0].partition_responses[0].error_code == 0
        (seconds,) = client.muted
        assert 1.0 < seconds < 1.2  # and the bytes around the value
        assert answer.throttle_time_ms == round(seconds * 1000)
        client.parts.time.advance(11)
        assert client.produce(100).throttle_time_ms == 0
        assert client.muted == []

    def test_waits_are_counted_by_the_quota_that_asks_for_the_longest(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted = RequestStatistics()
        monkeypatch.setattr(metering, "STATISTICS", counted)
        limit(client, producer_byte_rate=1000.0, consumer_byte_rate=1000.0)
        owed = {QuotaKind.REQUEST: 1.0, QuotaKind.PRODUCE: 3.0, QuotaKind.FETCH: 0.5}
        monkeypatch.setattr(client.parts.client_quotas, "charge", lambda kind, *_: owed[kind])
        client.produce(100)
        client.fetch()
        owed[QuotaKind.REQUEST] = 5.0
        client.produce(100)
        assert counted.throttled == {"producer_byte_rate": 1, "request_percentage": 2}
        assert counted.throttled_seconds == {"producer_byte_rate": 3.0, "request_percentage": 6.0}
        assert client.muted == [3.0, 1.0, 5.0]

    def test_a_request_without_response_is_muted_too(self, client: Client) -> None:
        limit(client, producer_byte_rate=1000.0)
        assert client.produce(11_000, acks=0) is None
        assert len(client.muted) == 1

    def test_fetched_records_come_with_the_throttled_answer(self, client: Client) -> None:
        for _ in range(2):
            client.produce(20_000)
        limit(client, consumer_byte_rate=30_000.0)
        answer = client.fetch(max_bytes=1 << 20)
        data = answer.responses[0].partitions[0]
        assert len(records_in(data.records)) == 1  # as much as an idle client may fetch at once
        assert answer.throttle_time_ms == 0
        answer = client.fetch(1, max_bytes=1 << 20)
        data = answer.responses[0].partitions[0]
        assert len(records_in(data.records)) == 1
        (seconds,) = client.muted
        assert answer.throttle_time_ms == round(seconds * 1000) > 300

    def test_a_fetch_that_waited_is_counted_when_it_is_answered(self, client: Client) -> None:
        limit(client, consumer_byte_rate=1000.0)
        topic_id = client.parts.partitions.by_name["t", 0].topic_id
        wanted = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(0, partition_max_bytes=1 << 20)])
        request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[wanted])
        event = RequestReceived(request.API_KEY, 16, 1, "app", request)
        answer = client.dispatcher.handle(client.connection, event)
        assert not answer.called
        client.produce(11_000)
        assert result_of(answer).throttle_time_ms > 1000

    def test_followers_are_never_throttled(self, client: Client) -> None:
        client.produce(50_000)
        limit(client, consumer_byte_rate=1.0, request_percentage=0.001)
        client.parts.set_state("t", replicas=(1, 2), isr=(1, 2))
        client.fetch(replica_state=ReplicaState(2, -1), max_bytes=1 << 20)
        assert client.muted == []

    def test_time_spent_on_requests(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        limit(client, request_percentage=1.0)
        seconds = iter([100.0, 100.05, 100.05, 200.0, 200.5, 200.5])
        monkeypatch.setattr(client.parts.client_quotas, "seconds", lambda: next(seconds))
        version = 12
        assert client.ask(MetadataRequest(topics=None), version).throttle_time_ms == 0
        assert client.ask(MetadataRequest(topics=None), version).throttle_time_ms == 1000
        assert client.muted == [1.0]

    def test_time_that_a_thread_spends_counts(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Records that have to be decompressed are looked at in a thread; see `BrokerParts.in_thread`."""
        now = [0.0]
        limit(client, request_percentage=1.0)
        monkeypatch.setattr(client.parts.client_quotas, "seconds", lambda: now[0])
        inspected: Any = client.parts.replicas.append_in_turn
        in_thread = inspected.__self__._in_thread

        def slowly(function: Any, *args: Any) -> Any:
            def work() -> Any:
                now[0] += 0.5
                return function(*args)

            return in_thread(timed(work))

        monkeypatch.setattr(inspected.__self__, "_in_thread", slowly)
        client.parts.create("checked", message_timestamp_before_max_ms="1000000000000")
        records = batch(random.Random(0).randbytes(20_000), compression=CompressionType.GZIP)
        assert client.append(records, topic="checked").throttle_time_ms == 1000
        assert client.muted == [1.0]

    def test_what_a_connection_costs_makes_its_next_request_wait(self, client: Client) -> None:
        limit(client, request_percentage=1.0)
        client.ask(MetadataRequest(topics=None), 12)
        charge_connection(client.parts, client.connection, 0.2)
        assert client.muted == []
        assert client.ask(MetadataRequest(topics=None), 12).throttle_time_ms == 1000

    def test_who_has_not_authenticated_is_charged_to_nobody(self, client: Client) -> None:
        limit(client, request_percentage=1.0)
        client.connection.authenticated = False
        charge_connection(client.parts, client.connection, 100.0)
        client.connection.authenticated = True
        assert client.ask(MetadataRequest(topics=None), 12).throttle_time_ms == 0

    def test_no_request_of_a_broker_is_charged(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client.parts.security.peers, "is_peer", lambda _: True)
        limit(client, request_percentage=0.001, producer_byte_rate=1.0)
        client.connection.claim = PeerClaim(2, "digest")
        charge_connection(client.parts, client.connection, 100.0)
        client.produce(10_000)
        assert client.ask(MetadataRequest(topics=None), 12).throttle_time_ms == 0
        assert client.muted == []

    def test_an_answer_kept_for_others_is_not_changed(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        limit(client, request_percentage=1.0)
        monkeypatch.setattr(client.parts.client_quotas, "charge", lambda *_: 0.25)
        assert client.ask(MetadataRequest(topics=None), 12).throttle_time_ms == 250
        monkeypatch.undo()
        assert client.ask(MetadataRequest(topics=None), 12).throttle_time_ms == 0

    def test_a_repeated_fetch_is_left_to_what_charges_for_it(self, client: Client) -> None:
        dispatcher, answer = client.dispatcher, client.dispatcher.handle_repeated
        limit(client, consumer_byte_rate=1000.0)
        assert dispatcher.handle_repeated is not answer
        assert dispatcher.handle_repeated(client.connection, bytes(100), NO_OUTPUT) is None

    @pytest.mark.parametrize("version", [3, 5, 8, 10])
    @pytest.mark.parametrize("count", [1, 5])
    def test_requests_answered_together(self, client: Client, count: int, version: int) -> None:
        client.produce(10)  # the first batch of a leader epoch is read alone
        limit(client, producer_byte_rate=1000.0)
        sender, session = ClientSession(1 << 20, "app"), ServerSession(1 << 20, client.dispatcher.versions)
        size = 2_000 // count
        frames = []
        for _ in range(count):
            topic = TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(b"v" * size))])
            parts: list[Any] = sender.encode_request(ProduceRequest(None, 1, 1000, [topic]), version)
            frames.append(b"".join(map(bytes, parts)))
        session.receive_data(b"".join(frames))
        frame = session.next_frame()
        assert frame is not None
        reply = client.dispatcher.handle_batch(client.connection, frame, session, 256)
        (seconds,) = client.muted
        owed = (len(b"".join(frames)) - 4) / 1000 - 1
        assert seconds == pytest.approx(owed, abs=0.0011)
        assert with_throttle_time(version, reply.replies, round(seconds * 1000)) == reply.replies
        length = len(reply.replies) // count
        for at in range(0, len(reply.replies), length):
            body = memoryview(reply.replies)[at + 8 + (version >= 9) : at + length]
            response = response_codec(ProduceRequest.API_KEY, version).decode(body)
            assert response.throttle_time_ms == round(seconds * 1000)
            assert response.responses[0].partition_responses[0].error_code == 0

    @pytest.mark.parametrize("frame", [b"", b"\0\0", b"\0\0\0\x0a\0\0\0\1\0\2\xff\xff" + bytes(60)])
    def test_a_malformed_request_is_left_to_the_general_path(self, client: Client, frame: bytes) -> None:
        limit(client, producer_byte_rate=1000.0)
        session = ServerSession(1 << 20, client.dispatcher.versions)
        assert client.dispatcher.handle_batch(client.connection, memoryview(frame), session, 256) is NOT_ANSWERED

    def test_a_client_that_owes_time_gets_one_answer(self, client: Client) -> None:
        client.produce(10)
        limit(client, producer_byte_rate=1000.0)
        client.produce(5000)
        sender, session = ClientSession(1 << 20, "app"), ServerSession(1 << 20, client.dispatcher.versions)
        topic = TopicProduceData("t", partition_data=[PartitionProduceData(0, batch())])
        parts: list[Any] = sender.encode_request(ProduceRequest(None, 1, 1000, [topic]), 10)
        session.receive_data(b"".join(map(bytes, parts)) * 5)
        frame = session.next_frame()
        assert frame is not None
        before = client.parts.partitions.by_name["t", 0].log.log_end_offset
        client.dispatcher.handle_batch(client.connection, frame, session, 256)
        assert client.parts.partitions.by_name["t", 0].log.log_end_offset == before + 1


class TestMutations:
    """A quota of two partitions a second: an idle client may create or delete 22 at once."""

    def create(self, client: Client, name: str, partitions: int, version: int = 7) -> tuple[Any, int]:
        answer = client.ask(CreateTopicsRequest([CreatableTopic(name, partitions, 1)], 1000), version)
        return answer.topics[0], answer.throttle_time_ms

    def test_a_client_over_its_quota_is_refused(self, client: Client) -> None:
        limit(client, controller_mutation_rate=2.0)
        result, wait = self.create(client, "a", 26)
        assert (result.error_code, wait) == (0, 0)
        result, wait = self.create(client, "b", 1)
        assert (result.error_code, wait) == (TOO_MUCH, 2000)
        assert "try again in 2000 ms" in result.error_message
        assert client.parts.topics.get("b") is None
        assert client.muted == [2.0]
        client.parts.time.advance(2)
        assert self.create(client, "b", 1)[0].error_code == 0

    def test_older_clients_have_to_wait(self, client: Client) -> None:
        limit(client, controller_mutation_rate=2.0)
        assert self.create(client, "a", 26, 5)[1] == 2000
        result, wait = self.create(client, "b", 2, 5)
        assert (result.error_code, wait) == (0, 3000)

    def test_what_can_not_be_created_is_not_counted(self, client: Client) -> None:
        limit(client, controller_mutation_rate=2.0)
        for _ in range(3):
            assert self.create(client, "t", 100)[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        request = CreateTopicsRequest([CreatableTopic("c", 100, 1)], 1000, validate_only=True)
        assert client.ask(request, 7).topics[0].error_code == 0
        assert self.create(client, "a", 1)[0].error_code == 0

    def test_new_partitions_and_deleted_ones_count(self, client: Client) -> None:
        limit(client, controller_mutation_rate=2.0)
        extend = CreatePartitionsRequest([CreatePartitionsTopic("t", 31, None)], 1000)
        answer = client.ask(extend, 3)
        assert (answer.results[0].error_code, answer.throttle_time_ms) == (0, 0)
        answer = client.ask(DeleteTopicsRequest([DeleteTopicState("t")], timeout_ms=1000), 6)
        assert (answer.responses[0].error_code, answer.throttle_time_ms) == (TOO_MUCH, 4000)
        client.parts.time.advance(4)
        answer = client.ask(DeleteTopicsRequest([DeleteTopicState("t")], timeout_ms=1000), 6)
        assert answer.responses[0].error_code == 0
        assert self.create(client, "a", 1)[1] == 15_500

    def test_topics_that_metadata_creates_count(self, client: Client) -> None:
        """Else a client could create as many topics as it likes by asking for them."""
        limit(client, controller_mutation_rate=2.0)

        def ask(name: str) -> tuple[int, int]:
            answer = client.ask(MetadataRequest([MetadataRequestTopic(name=name)], True), 9)
            return answer.topics[0].error_code, answer.throttle_time_ms

        assert self.create(client, "a", 22)[0].error_code == 0
        assert ask("b") == (0, 500)
        assert ask("c") == (0, 1000)
        assert client.muted == [0.5, 1.0]
        assert ask("c") == (0, 0), "it exists"


def test_the_default_entity_is_the_empty_name(parts: Parts) -> None:
    changed(parts, (CLIENT, None), producer_byte_rate=1.0)
    assert set(parts.metadata.entity_configs.configs) == {Entity(client_id=DEFAULT_NAME)}
