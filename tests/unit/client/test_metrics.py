"""Statistics: meters, windows, and what the parts of a client record; without sockets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pylogd.client import TopicPartition
from pylogd.client.core.consumer.metrics import ConsumerMeters
from pylogd.client.core.consumer.options import ConsumerOptions
from pylogd.client.core.consumer.partitions import PartitionsCore
from pylogd.client.core.errors import BrokerUnavailable
from pylogd.client.core.metadata import Metadata
from pylogd.client.core.metrics import ClientMetrics, NetworkMeters, StatisticsReporter, Window
from pylogd.client.core.producer.accumulator import Batch
from pylogd.client.core.producer.metrics import ProducerMeters
from pylogd.client.core.producer.options import BatchResult
from tests.fakes.links import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_totals_are_for_ever_and_the_rest_is_about_the_window() -> None:
    window = Window(30.0)
    meter = window.meter()
    assert (meter.average, meter.highest, meter.rate(window.seconds(0.0))) == (0.0, 0.0, 0.0)
    window.tick(100.0)
    meter.record(10)
    meter.record(20)
    assert (meter.count, meter.total, meter.average, meter.highest) == (2, 30, 15.0, 20)
    assert meter.rate(window.seconds(110.0)) == 3.0 and meter.frequency(window.seconds(110.0)) == 0.2
    window.tick(129.9)
    assert window.seconds(130.0) == 30.0
    window.tick(130.0)  # a new sample; the window has this one and the one before
    meter.record(5)
    assert window.seconds(140.0) == 40.0
    assert (meter.recent, meter.highest) == ((3, 35), 20)
    window.tick(160.0)
    assert window.seconds(160.0) == 30.0
    assert (meter.recent, meter.highest) == ((1, 5), 5)
    assert (meter.count, meter.total) == (3, 35)


def snapshot(world: World) -> ClientMetrics:
    return ClientMetrics(**world.network.meters.snapshot(world.now))


def test_requests_of_a_broker() -> None:
    world = World(client_id="me")
    world.network.tick(0.0)
    world.send()
    world.send()
    found = snapshot(world)
    assert (found.client_id, found.connection_count, found.connection_creation_total) == ("me", 1, 1)
    assert (found.request_total, found.requests_in_flight) == (2, 2)
    assert found.outgoing_byte_total > 0 and found.incoming_byte_total > 0  # the response to ApiVersions
    for now in (0.002, 0.010):
        world.now = now
        world.peer().answer(now)
    world.now = 10.0
    found = snapshot(world)
    [(_, broker)] = found.brokers.items()
    assert broker.address == "a:1"
    assert (broker.requests_in_flight, broker.response_total, broker.request_rate) == (0, 2, 0.2)
    assert broker.request_latency_avg == pytest.approx(6.0) and broker.request_latency_max == pytest.approx(10.0)
    assert found.request_latency_avg == pytest.approx(6.0)
    assert broker.apis["Metadata"].response_total == 2
    assert broker.incoming_byte_rate == broker.incoming_byte_total / 10


def test_connections_that_end() -> None:
    world = World()
    world.send()
    assert snapshot(world).requests_in_flight == 1
    [link] = world.network.links
    link.lost(BrokerUnavailable("gone"), 1.0)
    found = snapshot(world)
    assert found.connection_close_total >= 1
    assert found.requests_in_flight == 0
    unreachable = World(("nowhere", 1))
    unreachable.send()
    assert snapshot(unreachable).connection_creation_total == 0
    assert snapshot(unreachable).connection_close_total == 0


def batch(partition: TopicPartition, count: int) -> Batch:
    made = Batch(partition, 0, 0.0, 0.0)
    made.count, made.size = count, 1000
    return made


def result(of: Batch, error: BrokerUnavailable | None = None) -> BatchResult:
    return BatchResult(of.partition, of.count, 0, -1, error)


def test_a_producer() -> None:
    network = NetworkMeters("p", 30.0)
    network.window.tick(0.0)
    meters = ProducerMeters(network, 5000)
    first, second = batch(T0, 10), batch(T1, 30)
    meters.sent(40, [0.004, 0.006])
    meters.retried(second)
    meters.completed(first, result(first), 500)
    meters.completed(second, result(second, BrokerUnavailable("gone")), 300)
    found = meters.snapshot(10.0, 1500)
    assert (found.record_send_total, found.record_send_rate) == (10, 1.0)
    assert (found.record_error_total, found.record_retry_total) == (30, 30)
    assert (found.batch_size_avg, found.batch_size_max, found.compression_rate_avg) == (500, 500, 0.5)
    assert (found.records_per_request_avg, found.record_queue_time_max) == (40, 6.0)
    assert found.record_queue_time_avg == pytest.approx(5.0)
    assert (found.buffer_total_bytes, found.buffer_available_bytes) == (5000, 3500)
    assert (found.partitions[T0].record_send_total, found.partitions[T0].byte_total) == (10, 500)
    assert (found.partitions[T1].record_send_total, found.partitions[T1].record_error_total) == (0, 30)


def test_a_consumer() -> None:
    network = NetworkMeters("c", 30.0)
    network.window.tick(0.0)
    core = PartitionsCore(
        ConsumerOptions(), Metadata([("h", 1)]), None, on_found=lambda *_: None, soon=lambda: None, warn=lambda _: None
    )
    core.move(T0, 40)
    core.move(T1, 7)
    meters = ConsumerMeters(network, core)
    assert meters.snapshot(10.0).records_lag_max == -1
    core.fetcher.partitions[T0].high_watermark = 100
    core.fetcher.partitions[T1].high_watermark = 7
    for partition, count in ((T0, 30), (T0, 10), (T1, 5)):
        core.reader.buffer.on_handed_out(partition, count)
    found = meters.snapshot(10.0)
    assert (found.records_consumed_total, found.records_consumed_rate) == (45, 4.5)
    assert (found.records_lag_max, found.partitions[T0].records_lag, found.partitions[T1].records_lag) == (60, 60, 0)
    assert found.partitions[T0].records_consumed_total == 40
    network.broker(1, "h:1").answered(type("FetchRequest", (), {}), 0.02)
    assert (meters.snapshot(10.0).fetch_total, meters.snapshot(10.0).fetch_latency_max) == (1, 20.0)


def test_kafkas_names() -> None:
    network = NetworkMeters("p", 30.0)
    network.broker(1, "h:1").sent.record(5)
    meters = ProducerMeters(network, 5000)
    done = batch(T0, 1)
    meters.completed(done, result(done), 10)
    found = meters.snapshot(0.0, 0).as_dict()
    assert found["record-send-total"] == 1 and found["record-send-rate"] == 0.0
    assert found["brokers"]["1"]["request-latency-avg"] == 0.0
    assert found["partitions"]["t-0"]["record-send-total"] == 1
    json.dumps(found)


def test_statistics_are_reported_every_interval(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []

    def tell(found: Any) -> None:
        told.append(found)
        raise RuntimeError("the application's fault")

    reporter = StatisticsReporter(5.0, tell, lambda now: now)  # type: ignore[arg-type, return-value]
    assert reporter.next_time(1.0) == 6.0
    reporter.report(5.9)
    assert told == []
    reporter.report(6.5)
    assert (told, reporter.next_time(6.5)) == ([6.5], 11.5)
    assert "on_statistics failed" in caplog.text
    for never in (StatisticsReporter(0.0, tell, lambda now: now), StatisticsReporter(5.0, None, lambda now: now)):  # type: ignore[arg-type, return-value]
        assert never.next_time(0.0) is None
        never.report(100.0)
    assert told == [6.5]
