"""GetTelemetrySubscriptions and PushTelemetry: who is asked for what, when clients may push, what is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import ErrorCode
from pylogd.broker.telemetry import instances
from pylogd.broker.telemetry.otlp import Gauge
from pylogd.wire.compression import CompressionType, compress
from pylogd.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest as Get
from pylogd.wire.messages.push_telemetry import PushTelemetryRequest as Push
from tests.fakes.metadata import result_of
from tests.fakes.parts import Parts
from tests.unit.broker.telemetry.test_otlp import DELTA, payload

SOFTWARE = ("apache-kafka-java", "4.3.1")
ID = bytes(range(16))


@pytest.fixture(autouse=True)
def active(parts: Parts) -> None:
    parts.telemetry.active = True
    parts.connection.software = SOFTWARE


def subscribe(parts: Parts, name: str = "s", **settings: str) -> None:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    result_of(parts.metadata.client_metrics.replace(name, named))


def ask(parts: Parts, instance: bytes = ID) -> Any:
    return parts.call(Get(instance))


def push(parts: Parts, asked: Any, data: bytes = b"", **fields: Any) -> ErrorCode:
    request = Push(asked.client_instance_id, asked.subscription_id, fields.get("ends", False), 0, data)
    request.compression_type = fields.get("codec", 0)
    return ErrorCode(parts.call(request).error_code)


def gauges(parts: Parts) -> dict[tuple[str, str], Gauge]:
    found: dict[tuple[str, str], Gauge] = {}
    for _ in parts.telemetry.values.walk(found):
        pass
    return found


class TestGet:
    def test_without_subscriptions_there_is_nothing_to_push(self, parts: Parts) -> None:
        found = ask(parts, bytes(16))
        assert found.client_instance_id not in (bytes(16), ask(parts, bytes(16)).client_instance_id)
        assert (found.error_code, found.requested_metrics, found.push_interval_ms) == (0, [], 300_000)
        assert (found.telemetry_max_bytes, found.delta_temporality) == (1 << 20, True)
        assert found.accepted_compression_types == [4, 3, 1, 2]

    def test_subscriptions_that_match_are_put_together(self, parts: Parts) -> None:
        subscribe(parts, "a", metrics="x.,y.", interval_ms="60000")
        subscribe(parts, "b", metrics="z.,x.", match="client_software_name=apache.*,client_software_version=4[.].*")
        subscribe(parts, "c", metrics="no.", interval_ms="100", match="client_software_name=apache")
        subscribe(parts, "d", metrics="id.", match=f"client_instance_id={UUID(bytes=ID)},client_source_port=50000")
        subscribe(parts, "e", metrics="me.", match="client_id=test,client_source_address=127[.]0[.]0[.]1")
        found = ask(parts)
        assert (found.requested_metrics, found.push_interval_ms) == (["id.", "me.", "x.", "y.", "z."], 60_000)
        subscribe(parts, "all", metrics="*")
        assert ask(parts).requested_metrics == ["*"]

    def test_without_anyone_who_serves_metrics_nothing_is_asked_for(self, parts: Parts) -> None:
        subscribe(parts, metrics="*", interval_ms="100")
        parts.telemetry.active = False
        found = ask(parts)
        assert (found.requested_metrics, found.push_interval_ms) == ([], 300_000)
        assert push(parts, found, payload(a=[1.0])) == ErrorCode.NONE
        assert not gauges(parts)

    def test_asking_again_takes_an_interval_or_a_change(self, parts: Parts) -> None:
        subscribe(parts, metrics="x", interval_ms="1000")
        first = ask(parts)
        early = ask(parts)
        assert (early.error_code, early.requested_metrics) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, [])
        parts.time.advance(1)
        assert ask(parts).subscription_id == first.subscription_id
        subscribe(parts, "unrelated", metrics="z", match="client_id=nobody")
        assert ask(parts).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        subscribe(parts, metrics="y", interval_ms="1000")
        changed = ask(parts)
        assert (changed.error_code, changed.requested_metrics) == (0, ["y"])
        assert changed.subscription_id != first.subscription_id


class TestPush:
    def test_what_is_pushed_is_kept(self, parts: Parts) -> None:
        subscribe(parts, metrics="*", interval_ms="1000")
        asked = ask(parts)
        assert push(parts, asked, payload(a_b=[1.0, 2.0], n=(DELTA, [5]))) == ErrorCode.NONE
        assert gauges(parts) == {("test", "a.b"): (2.0, 3.0)}
        parts.time.advance(1)
        raw = compress(CompressionType.ZSTD, payload(a_b=[3.0], n=(DELTA, [6])))
        assert push(parts, asked, raw, codec=4, ends=True) == ErrorCode.NONE
        assert gauges(parts) == {}  # it has ended
        assert parts.telemetry.values.sums == {"test": {"n": 11.0}}
        assert parts.telemetry.pushes == {ErrorCode.NONE: 2}
        assert push(parts, asked) == ErrorCode.INVALID_REQUEST
        parts.time.advance(61)
        parts.telemetry.sweep()
        assert parts.telemetry.values.sums == {}
        assert len(parts.telemetry.instances) == 0

    def test_a_client_may_push_once_in_an_interval_and_when_it_ends(self, parts: Parts) -> None:
        subscribe(parts, metrics="*", interval_ms="1000")
        asked = ask(parts)
        assert push(parts, asked) == ErrorCode.NONE
        assert push(parts, asked) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        parts.time.advance(0.999)
        assert push(parts, asked) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        parts.time.advance(0.001)
        assert push(parts, asked) == ErrorCode.NONE
        assert push(parts, asked, ends=True) == ErrorCode.NONE

    def test_a_client_of_another_broker_is_taken(self, parts: Parts) -> None:
        subscribe(parts, metrics="*")
        asked = ask(parts)
        parts.time.advance(3600)
        parts.telemetry.sweep()
        assert len(parts.telemetry.instances) == 0
        assert push(parts, asked, payload(a=[1.0])) == ErrorCode.NONE

    def test_other_subscriptions_are_asked_for_again(self, parts: Parts) -> None:
        subscribe(parts, metrics="x")
        asked = ask(parts)
        subscribe(parts, metrics="y")
        assert push(parts, asked) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        again = ask(parts)  # at once
        assert again.error_code == 0
        assert push(parts, again) == ErrorCode.NONE

    @pytest.mark.parametrize("instance", [bytes(16), bytes(15) + b"\1"])
    def test_a_client_needs_an_id(self, parts: Parts, instance: bytes) -> None:
        assert parts.call(Push(instance)).error_code == ErrorCode.INVALID_REQUEST

    def test_bad_payloads(self, parts: Parts) -> None:
        subscribe(parts, metrics="*", interval_ms="1000")
        asked = ask(parts)
        bomb = compress(CompressionType.GZIP, bytes(2 << 20))
        for code, data, codec in (
            (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"x", 9),
            (ErrorCode.INVALID_RECORD, b"\xff\xff nonsense", 0),
            (ErrorCode.INVALID_RECORD, b"nonsense", 3),
            (ErrorCode.TELEMETRY_TOO_LARGE, bytes((1 << 20) + 1), 0),
            (ErrorCode.TELEMETRY_TOO_LARGE, bomb, 1),
        ):
            assert push(parts, asked, data, codec=codec) == code
            parts.time.advance(1)
        assert not gauges(parts)
        assert parts.telemetry.pushes.total() == 5

    def test_one_push_is_read_at_a_time_and_few_wait(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parts.telemetry._reading, "_most", 2)
        subscribe(parts, metrics="*", interval_ms="1000")
        parts.threads.hold = True
        answers: list[Any] = []
        for number in range(4):
            asked = ask(parts, bytes([number + 1]) * 16)
            request = Push(asked.client_instance_id, asked.subscription_id, metrics=payload(a=[float(number)]))
            answer = parts.ask(request, 0)
            assert isinstance(answer, Deferred)
            answer.addCallback(answers.append)
        assert len(parts.threads.held) == 1
        assert [one.error_code for one in answers] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        parts.threads.hold = False
        parts.threads.release()
        assert [one.error_code for one in answers[1:]] == [0, 0, 0]
        assert gauges(parts) == {("test", "a"): (2.0, 3.0)}

    def test_clients_are_bounded(self, parts: Parts) -> None:
        subscribe(parts, metrics="*", interval_ms="1000")
        kept = parts.telemetry.instances = instances.Instances(parts.telemetry.values.forget, 3)
        for number in range(5):
            push(parts, ask(parts, bytes([number + 1]) * 16), payload(a=[float(number)]))
        assert len(kept) == 3
        assert gauges(parts) == {("test", "a"): (4.0, 9.0)}
