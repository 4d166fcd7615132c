"""The options of source and sink: defaults, values, and errors with the texts of Spark's Kafka source."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pylogd.client.core.security import SecurityOptions
from pylogd.lake.spark.errors import OptionError
from pylogd.lake.spark.options import (
    ASYNC_PROGRESS,
    EARLIEST,
    LATEST,
    METADATA_TTL,
    OPTIONS_OF_SPARK,
    OffsetBound,
    SourceOptions,
    offsets_json,
    parse_offsets,
)
from pylogd.lake.spark.sink_options import SinkOptions

BASE = {"kafka.bootstrap.servers": "here:9092", "subscribe": "t"}


def batch(**options: str) -> SourceOptions:
    return SourceOptions.for_batch(BASE | dotted(options))


def stream(**options: str) -> SourceOptions:
    return SourceOptions.for_stream(BASE | dotted(options))


def dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


def test_the_defaults_of_a_batch_query() -> None:
    options = batch()
    assert options.start == OffsetBound(everywhere=EARLIEST)
    assert options.end == OffsetBound(everywhere=LATEST)
    assert options.bootstrap == "here:9092"
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.start_strategy_latest
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert (options.poll_timeout_ms, options.offset_retries, options.offset_retry_ms) == (120_000, 3, 1000)
    assert options.client == {}


def test_the_defaults_of_a_streaming_query() -> None:
    options = stream()
    assert options.start == OffsetBound(everywhere=LATEST)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (None, None)
    assert options.max_trigger_delay_ms == 15 * 60_000


def test_option_names_are_case_insensitive() -> None:
    given = {"KAFKA.Bootstrap.SERVERS": "here:9092", "SubScribe": "t", "FAILONDATALOSS": "False"}
    options = SourceOptions.for_batch(given)
    assert options.subscription.topics == ("t",)
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"failOnDataLoss": "false"}, "fail_on_data_loss", False),
        ({"includeHeaders": "true"}, "include_headers", True),
        ({"minPartitions": "7"}, "min_partitions", 7),
        ({"minRecordsPerTask": "7"}, "min_records_per_task", 7),
        ({"maxRecordsPerPartition": "9"}, "max_records_per_partition", 9),
        ({"invalidTimestamps": "NULL"}, "null_timestamps", True),
        ({"includeTimestampMs": "true"}, "include_timestamp_ms", True),
        ({"invalidUtf8": "replace"}, "valid_utf8", True),
        ({"invalidUtf8": "keep"}, "valid_utf8", False),
        ({"maxOffsetsPerTrigger": "10"}, "max_offsets_per_trigger", 10),
        ({"minOffsetsPerTrigger": "4"}, "min_offsets_per_trigger", 4),
        ({"maxTriggerDelay": "2m"}, "max_trigger_delay_ms", 120_000),
        ({"maxTriggerDelay": "1500"}, "max_trigger_delay_ms", 1500),
        ({"maxTriggerDelay": "3 hours"}, "max_trigger_delay_ms", 3 * 3_600_000),
        ({"maxTriggerDelay": "20ms"}, "max_trigger_delay_ms", 20),
        ({"maxTriggerDelay": "1 day"}, "max_trigger_delay_ms", 86_400_000),
        ({"startingOffsetsByTimestampStrategy": "LATEST"}, "start_strategy_latest", True),
        ({"kafkaConsumer.pollTimeoutMs": "512"}, "poll_timeout_ms", 512),
        ({"fetchOffset.numRetries": "0"}, "offset_retries", 0),
        ({"fetchOffset.retryIntervalMs": "10"}, "offset_retry_ms", 10),
        ({"startingOffsets": "Earliest"}, "start", OffsetBound(everywhere=EARLIEST)),
        ({"startingOffsets": '{"t":{"0":5,"1":-2}}'}, "start", OffsetBound(offsets={("t", 0): 5, ("t", 1): -2})),
        ({"startingTimestamp": "17"}, "start", OffsetBound(timestamp=17)),
        ({"startingOffsetsByTimestamp": '{"t":{"0":5}}'}, "start", OffsetBound(timestamps={("t", 0): 5})),
        ({"kafka.client.id": "me"}, "client", {"client_id": "me"}),
        ({"kafka.client.rack": "r"}, "client", {"client_rack": "r"}),
        ({"kafka.isolation.level": "read_committed"}, "client", {"isolation": "committed"}),
        ({"kafka.isolation.level": "read_uncommitted"}, "read_committed", False),
        ({"isolation.level": "read_committed"}, "client", {"isolation": "committed"}),
        ({"isolation.level": "read_committed"}, "read_committed", True),
        ({}, "read_committed", False),
        ({"kafka.fetch.min.bytes": "2"}, "client", {"fetch_min_bytes": 2}),
        ({"kafka.fetch.max.bytes": "3"}, "client", {"fetch_max_bytes": 3}),
        ({"kafka.fetch.max.wait.ms": "4"}, "client", {"fetch_max_wait_ms": 4}),
        ({"kafka.max.partition.fetch.bytes": "5"}, "client", {"partition_max_bytes": 5}),
        ({"kafka.request.timeout.ms": "1500"}, "client", {"request_timeout": 1.5}),
        ({"kafka.default.api.timeout.ms": "2500"}, "client", {"retry_timeout": 2.5}),
        ({"kafka.group.id": "g", "groupIdPrefix": "p"}, "client", {}),
        ({"kafka.security.protocol": "PLAINTEXT"}, "client", {}),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/ca"},
            "client",
            {"security": SecurityOptions(protocol="SSL", ssl_ca="/ca")},
        ),
    ],
)
def test_an_option(options: dict[str, str], field: str, value: object) -> None:
    assert getattr(SourceOptions.for_stream(BASE | options), field) == value


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"endingOffsets": "latest"}, "end", OffsetBound(everywhere=LATEST)),
        ({"endingOffsets": '{"t":{"0":-1}}'}, "end", OffsetBound(offsets={("t", 0): -1})),
        ({"endingTimestamp": "8"}, "end", OffsetBound(timestamp=8)),
        ({"endingOffsetsByTimestamp": '{"t":{"0":8}}'}, "end", OffsetBound(timestamps={("t", 0): 8})),
    ],
)
def test_an_option_of_batch_queries(options: dict[str, str], field: str, value: object) -> None:
    assert getattr(SourceOptions.for_batch(BASE | options), field) == value


def test_one_time_stamp_takes_precedence_over_many_and_these_over_offsets() -> None:
    many = {"startingOffsetsByTimestamp": '{"t":{"0":5}}', "startingOffsets": "latest"}
    assert SourceOptions.for_stream(BASE | many).start == OffsetBound(timestamps={("t", 0): 5})
    assert SourceOptions.for_stream(BASE | many | {"startingTimestamp": "6"}).start == OffsetBound(timestamp=6)


def test_subscriptions() -> None:
    base = {"kafka.bootstrap.servers": "here:9092"}
    assert SourceOptions.for_batch(base | {"subscribe": " a , b,,a"}).subscription.topics == ("a", "b")
    assert SourceOptions.for_batch(base | {"subscribePattern": " a.*"}).subscription.pattern == "a.*"
    assigned = SourceOptions.for_batch(base | {"assign": '{"a":[1,0,1]}'}).subscription
    assert assigned.partitions == (("a", 1), ("a", 0))


STREAM_ERRORS = [
    ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
    ({"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming queries"),
    ({"endingTimestamp": "1"}, "ending timestamp not valid in streaming queries"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, r"The value of minOffsetPerTrigger\(9\) is higher"),
    ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive"),
    ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
    ({"maxTriggerDelay": "-1m"}, "maxTriggerDelay"),
]
BATCH_ERRORS = [
    ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
    ({"startingOffsets": '{"t":{"0":-1}}'}, "startingOffsets for t-0 can't be latest for batch queries on Kafka"),
    ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on Kafka"),
    ({"endingOffsets": '{"t":{"0":-2}}'}, "ending offset.* for t-0 can't be earliest for batch queries on Kafka"),
    ({"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":8}}'}, "start offset 9 of t-0 is greater"),
    ({"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"1":9}}'}, "Mismatched topic partitions"),
    (
        {"startingOffsetsByTimestamp": '{"t":{"0":9}}', "endingOffsetsByTimestamp": '{"t":{"0":8}}'},
        "start timestamp 9 of t-0 is greater",
    ),
]
ERRORS = [
    ({"assign": '{"t":[0]}'}, "Only one of the following options can be specified for Kafka source"),
    ({"subscribe": " , "}, "No topics to subscribe to as specified value for option 'subscribe' is ','"),
    ({"kafka.auto.offset.reset": "latest"}, "Kafka option 'auto.offset.reset' is not supported"),
    ({"kafka.key.deserializer": "x"}, "Kafka option 'key.deserializer' is not supported"),
    ({"kafka.value.deserializer": "x"}, "Kafka option 'value.deserializer' is not supported"),
    ({"kafka.enable.auto.commit": "true"}, "Kafka option 'enable.auto.commit' is not supported"),
    ({"kafka.interceptor.classes": "x"}, "Kafka option 'interceptor.classes' is not supported"),
    ({"kafka.security.protocol": "TLS"}, "security.protocol"),
    ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "JKS"}, "ssl.truststore.type"),
    ({"kafka.sasl.mechanism": "PLAIN"}, "sasl.mechanism"),
    ({"kafka.ssl.truststore.location": "x"}, "ssl.truststore.location"),
    ({"kafka.fetch.min.bytes": "many"}, "kafka.fetch.min.bytes"),
    ({"minPartitions": "0"}, "minPartitions must be positive"),
    ({"minRecordsPerTask": "0"}, "minRecordsPerTask must be positive"),
    ({"minRecordsPerTask": "5", "minPartitions": "2"}, "either minPartitions"),
    ({"minPartitions": "1_0"}, "minPartitions"),
    ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be positive"),
    ({"kafkaConsumer.pollTimeoutMs": "inf"}, "pollTimeoutMs"),
    ({"failOnDataLoss": "perhaps"}, "failOnDataLoss"),
    ({"includeHeaders": "1"}, "includeHeaders"),
    ({"startingOffsetsByTimestampStrategy": "guess"}, "startingOffsetsByTimestampStrategy"),
    ({"startingTimestamp": "today"}, "startingTimestamp"),
    ({"startingTimestamp": "-5"}, "startingTimestamp"),
    ({"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "startingOffsetsByTimestamp for t-0"),
    ({"startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets for t-0: invalid offset -3"),
    ({"startingOffsets": "begin"}, 'Expected e.g. {"topicA":'),
    ({"startingOffset": "earliest"}, "unknown option 'startingoffset'; did you mean 'startingOffsets'?"),
    ({"colour": "red"}, "unknown option 'colour'"),
    ({"queryNames": "q"}, "unknown option 'querynames'; did you mean 'queryName'?"),
    ({"processingTime": "1 second"}, "unknown option 'processingtime'"),
    ({"partition.metadata.cache.ttl.ms": "0"}, "partition.metadata.cache.ttl.ms"),
    ({"partition.metadata.cache.ttl.ms": "-2"}, "partition.metadata.cache.ttl.ms"),
]


@pytest.mark.parametrize(("options", "text"), STREAM_ERRORS)
def test_options_that_a_streaming_query_refuses(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        SourceOptions.for_stream(BASE | options)


@pytest.mark.parametrize(("options", "text"), BATCH_ERRORS)
def test_options_that_a_batch_query_refuses(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        SourceOptions.for_batch(BASE | options)


@pytest.mark.parametrize("read", [SourceOptions.for_batch, SourceOptions.for_stream])
@pytest.mark.parametrize(("options", "text"), ERRORS)
def test_options_that_both_refuse(read: object, options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as raised:
        read(BASE | options)  # type: ignore[operator]
    assert text in str(raised.value)


VALUES = {METADATA_TTL: "30000", ASYNC_PROGRESS: "true"}


@pytest.mark.parametrize("read", [SourceOptions.for_batch, SourceOptions.for_stream, SinkOptions.read])
@pytest.mark.parametrize("name", OPTIONS_OF_SPARK)
def test_options_of_spark_itself_are_accepted(read: Callable[[dict[str, str]], object], name: str) -> None:
    value = VALUES.get(name, "x")
    assert read(BASE | {name: value}) == read(BASE)
    assert read(BASE | {name.lower(): value}) == read(BASE)


def test_a_path_names_no_topic(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        batch(path="flights")
    assert "option 'path' is ignored: a topic has no path" in caplog.text
    with pytest.raises(OptionError, match=r"must be specified for Kafka source: .* A path does not name a topic"):
        SourceOptions.for_batch({"kafka.bootstrap.servers": "here:9092", "path": "flights"})


def test_transactions_need_spark_to_note_each_epoch() -> None:
    given = {**BASE, "transactional": "me", ASYNC_PROGRESS: "true"}
    with pytest.raises(OptionError, match=f"'transactional' can't be combined with {ASYNC_PROGRESS}"):
        SinkOptions.read(given)
    assert SinkOptions.read(given | {ASYNC_PROGRESS: "false"}).transactional == "me"


def test_the_documentation_has_all_options_of_spark() -> None:
    page = Path(__file__).resolve().parents[4].joinpath("docs", "spark.md").read_text("utf-8")
    section = page.partition("## Options of Spark itself\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == set(OPTIONS_OF_SPARK)


def test_required_options() -> None:
    with pytest.raises(OptionError, match=r"Option 'kafka\.bootstrap\.servers' must be specified"):
        SourceOptions.for_batch({"subscribe": "t"})
    base = {"kafka.bootstrap.servers": "here:9092"}
    with pytest.raises(OptionError, match="One of the following options must be specified for Kafka source"):
        SourceOptions.for_batch(base)
    with pytest.raises(OptionError, match="Pattern to subscribe is empty"):
        SourceOptions.for_batch(base | {"subscribePattern": " "})
    with pytest.raises(OptionError, match="regular expression"):
        SourceOptions.for_batch(base | {"subscribePattern": "a("})
    for text in ("nothing", "{}", '{"t":["0"]}', '{"t":[true]}', '{"t":0}', "[]"):
        with pytest.raises(OptionError, match=r"Expected e\.g\.|No topicpartitions to assign"):
            SourceOptions.for_batch(base | {"assign": text})


def test_options_without_effect_in_batch_queries_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        batch(maxOffsetsPerTrigger="1", minOffsetsPerTrigger="1", maxTriggerDelay="1m", kafka__metrics__recorder="x")
    for text in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        assert f"{text} option ignored in batch queries" in caplog.text
    assert "'metrics.recorder' is ignored" in caplog.text


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", '{"t":[1]}', '{"t":{"x":1}}', '{"t":{"1_0":1}}', '{"t":{"0":"1"}}', '{"t":{"0":1.5}}',
     '{"t":{"0":true}}', '{"t":{"0":9223372036854775808}}', '{"t":1}'],
)  # fmt: skip
def test_invalid_offsets_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"startingOffsets: Expected e\.g\."):
        parse_offsets(text, "startingOffsets")


def test_offsets_survive_parsing_and_printing() -> None:
    offsets = {("b", 0): -1, ("a", 10): 3, ("a", 9): (1 << 63) - 1}
    text = offsets_json(offsets)
    assert text == '{"a":{"9":9223372036854775807,"10":3},"b":{"0":-1}}'
    assert parse_offsets(text, "x") == offsets


def test_the_sink() -> None:
    options = SinkOptions.read({"kafka.bootstrap.servers": "here:9092"})
    assert (options.topic, options.include_headers, options.client) == (None, False, {})
    given = {
        "kafka.bootstrap.servers": "here:9092", "topic": " t ", "includeHeaders": "true", "kafka.acks": "1",
        "kafka.compression.type": "none", "kafka.linger.ms": "7", "kafka.batch.size": "8", "kafka.buffer.memory": "9",
        "kafka.enable.idempotence": "false", "kafka.request.timeout.ms": "1000", "kafka.delivery.timeout.ms": "2000",
        "kafka.client.id": "me", "checkpointLocation": "/there",
    }  # fmt: skip
    options = SinkOptions.read(given)
    assert (options.topic, options.include_headers) == ("t", True)
    assert options.client == {
        "acks": 1, "compression": "none", "linger_ms": 7, "batch_bytes": 8, "buffer_memory": 9, "idempotence": False,
        "request_timeout": 1.0, "delivery_timeout": 2.0, "client_id": "me",
    }  # fmt: skip
    assert SinkOptions.read(given | {"kafka.acks": "-1"}).client["acks"] == "all"


def test_the_sink_with_transactions() -> None:
    given = {
        "kafka.bootstrap.servers": "here:9092", "transactional": " counts ", "kafka.transaction.timeout.ms": "5000",
        "kafka.max.block.ms": "7000", "kafka.client.id": "me",
    }  # fmt: skip
    options = SinkOptions.read(given)
    assert options.transactional == "counts"
    assert options.producer() == {
        "transactional_id": "counts", "transaction_timeout": 5.0, "max_block": 7.0, "client_id": "me",
    }  # fmt: skip
    assert options.admin() == {"client_id": "me"}
    plain = SinkOptions.read({"kafka.bootstrap.servers": "here:9092"})
    assert (plain.transactional, plain.producer()) == (None, {})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kafka.acks": "2"}, "kafka.acks"),
        ({"kafka.key.serializer": "x"}, "Kafka option 'key.serializer' is not supported"),
        ({"kafka.value.serializer": "x"}, "Kafka option 'value.serializer' is not supported"),
        ({"topics": "t"}, "did you mean 'topic'?"),
        ({"kafka.transactional.id": "x"}, "set the sink option 'transactional' to this name"),
        ({"transactional": ""}, "option 'transactional': transactional_id is a name"),
        ({"transactional": "x", "kafka.acks": "1"}, "option 'transactional'"),
        ({"transactional": "x", "kafka.transaction.timeout.ms": "0"}, "option 'transactional': transaction_timeout"),
    ],
)
def test_options_that_the_sink_refuses(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as raised:
        SinkOptions.read({"kafka.bootstrap.servers": "here:9092"} | options)
    assert text in str(raised.value)


def test_the_sink_needs_brokers() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        SinkOptions.read({"topic": "t"})


def test_topic_ids() -> None:
    assert batch().topic_ids == batch(topicIds="{}").topic_ids == {}
    assert batch(topicIds='{"t":"0aFF"}').topic_ids == {"t": "0aff"}


@pytest.mark.parametrize("given", ["[]", "{", '{"t":5}', '{"t":"xy"}'])
def test_invalid_topic_ids_are_refused(given: str) -> None:
    with pytest.raises(OptionError, match="option 'topicIds' must be topic ids by topic"):
        batch(topicIds=given)


def test_the_choice_for_recreated_topics() -> None:
    assert not stream().restart_recreated
    assert stream(onRecreatedTopic="restart").restart_recreated
    with pytest.raises(OptionError, match="onRecreatedTopic must be 'error' or 'restart', got 'ignore'"):
        stream(onRecreatedTopic="ignore")
    with pytest.raises(OptionError, match="topicIds not valid in streaming queries"):
        stream(topicIds="{}")


def test_invalid_timestamps_can_not_be_clamped() -> None:
    with pytest.raises(OptionError, match="invalidTimestamps must be 'error' or 'null', got 'clamp'"):
        batch(invalidTimestamps="clamp")
