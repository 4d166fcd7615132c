"""Statistics of a consumer, with Kafka's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pylogd.client.core.consumer.partitions import PartitionsCore
from pylogd.client.core.metrics import BrokerMetrics, ClientMetrics, Meter, NetworkMeters, RequestMetrics, Statistics
from pylogd.client.core.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPartitionMetrics(Statistics):
    """Records of one partition that were handed out.

    records_lag: records up to the high watermark that were not handed out; -1 if it is not known.
    """

    records_consumed_total: int
    records_consumed_rate: float
    records_lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMetrics(ClientMetrics):
    """Statistics of a consumer. `records_lag_max` is the highest lag of any partition, or -1 if no lag is known.

    fetch_*: answered Fetch requests. Latencies are in milliseconds and include the broker's wait for records.
    """

    records_consumed_total: int
    records_consumed_rate: float
    records_lag_max: int
    fetch_total: int
    fetch_rate: float
    fetch_latency_avg: float
    fetch_latency_max: float
    commit_total: int
    commit_rate: float
    commit_latency_avg: float
    commit_latency_max: float
    partitions: Mapping[TopicPartition, ConsumerPartitionMetrics] = field(default_factory=dict)


class ConsumerMeters:
    """The statistics of a consumer, updated once for each partition that a `poll` returns.

    In an iteration they are updated when a partition's records are used up; `snapshot` adds the records before that.
    """

    def __init__(self, network: NetworkMeters, core: PartitionsCore) -> None:
        """`network` records its connections; `core` knows the positions."""
        self._network = network
        self._core = core
        self._window = network.window
        self._all = self._window.meter()
        self._partitions: dict[TopicPartition, Meter] = {}
        core.reader.buffer.on_handed_out = self.consumed

    def consumed(self, partition: TopicPartition, records: int) -> None:
        """Record how many records of a partition are handed out."""
        meter = self._partitions.get(partition)
        if meter is None:
            meter = self._partitions[partition] = self._window.meter()
        meter.record(records)
        self._all.record(records)

    def _lag(self, partition: TopicPartition, position: int | None) -> int:
        fetch = self._core.fetcher.partitions.get(partition)
        if fetch is None or position is None or fetch.high_watermark < 0:
            return -1
        return max(0, fetch.high_watermark - position)

    def snapshot(self, now: float) -> ConsumerMetrics:
        """Return all numbers."""
        seconds = self._window.seconds(now)
        network = self._network.snapshot(now)
        positions, unreported = self._core.reader.progress(), self._core.reader.buffer.unreported()
        partitions = {}
        for partition in {*self._partitions, *self._core.assignment}:
            meter = self._partitions.get(partition) or Meter()
            partitions[partition] = ConsumerPartitionMetrics(
                records_consumed_total=int(meter.total) + unreported.get(partition, 0),
                records_consumed_rate=meter.rate(seconds),
                records_lag=self._lag(partition, positions.get(partition)),
            )
        fetch = _of_api(network["brokers"].values(), "Fetch")
        commit = _of_api(network["brokers"].values(), "OffsetCommit")
        return ConsumerMetrics(
            **network,
            records_consumed_total=int(self._all.total) + sum(unreported.values()),
            records_consumed_rate=self._all.rate(seconds),
            records_lag_max=max((each.records_lag for each in partitions.values()), default=-1),
            fetch_total=fetch.response_total,
            fetch_rate=fetch.response_rate,
            fetch_latency_avg=fetch.request_latency_avg,
            fetch_latency_max=fetch.request_latency_max,
            commit_total=commit.response_total,
            commit_rate=commit.response_rate,
            commit_latency_avg=commit.request_latency_avg,
            commit_latency_max=commit.request_latency_max,
            partitions=dict(sorted(partitions.items())),
        )


def _of_api(brokers: Iterable[BrokerMetrics], api: str) -> RequestMetrics:
    """Return the requests of one API to all brokers."""
    found = [broker.apis[api] for broker in brokers if api in broker.apis]
    rate = sum(each.response_rate for each in found)
    latency = sum(each.request_latency_avg * each.response_rate for each in found)
    return RequestMetrics(
        response_total=sum(each.response_total for each in found),
        response_rate=rate,
        request_latency_avg=latency / rate if rate else 0.0,
        request_latency_max=max((each.request_latency_max for each in found), default=0.0),
    )
