"""Parse and check the options of the source, with the defaults of Spark's Kafka source; `sink_options` has the sink's.

Rules for both: names are case-insensitive, as in Spark. An option of Spark's Kafka source has the same meaning and the
same valid values here. Options that begin with `kafka.` are for the client. Options that this client has are passed on.
Unsupported options that would change what is read, or how safely, are errors. Options that only tune Java's client are
logged and ignored. Options of Spark itself (`OPTIONS_OF_SPARK`) are accepted. Unknown options are errors; Spark's
source ignores them. Must not know: brokers, Spark.
Source: Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pylogd.client.properties import is_security, security_from
from pylogd.lake.spark.errors import OptionError
from pylogd.lake.tables.position import ByPartition, nested

_log = logging.getLogger(__name__)

#: Offsets in the options' JSON that stand for the end and the beginning of a partition.
LATEST: Final = -1
EARLIEST: Final = -2

T = TypeVar("T")

_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_INT64: Final = 1 << 63
_SUBSCRIPTIONS: Final = ("subscribe", "subscribepattern", "assign")
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"\s*(\d+)\s*(ms|s|m|h|d|min|sec|seconds?|minutes?|hours?|days?|milliseconds?)?\s*")

_ISOLATION: Final = {"read_committed": "committed", "read_uncommitted": "uncommitted"}
_ISOLATION_LEVEL: Final = "isolation.level"
#: The options of queries without records of aborted and open transactions.
COMMITTED: Final[Mapping[str, str]] = MappingProxyType({f"kafka.{_ISOLATION_LEVEL}": "read_committed"})
#: The options of queries with all records.
UNCOMMITTED: Final[Mapping[str, str]] = MappingProxyType({f"kafka.{_ISOLATION_LEVEL}": "read_uncommitted"})


def _int32(text: str) -> int:
    """Parse a number of bytes or milliseconds, for which Kafka's requests have 32 bits."""
    value = int(text) if _WHOLE.fullmatch(text) else -1
    if not 0 <= value < 1 << 31:
        raise ValueError(f"{text!r} is not a whole number of at most 31 bits")
    return value


#: Kafka's consumer settings that this client has: the name of the argument, and the parser of the value.
_PASSED: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "client.id": ("client_id", str),
    "client.rack": ("client_rack", str),
    "isolation.level": ("isolation", _ISOLATION.__getitem__),
    "fetch.min.bytes": ("fetch_min_bytes", _int32),
    "fetch.max.bytes": ("fetch_max_bytes", _int32),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", _int32),
    "max.partition.fetch.bytes": ("partition_max_bytes", _int32),
    "request.timeout.ms": ("request_timeout", lambda text: _int32(text) / 1000),
    "default.api.timeout.ms": ("retry_timeout", lambda text: _int32(text) / 1000),
}
_ADMIN_ARGUMENTS: Final = ("client_id", "request_timeout", "retry_timeout", "security")
_REFUSED: Final[Mapping[str, str]] = {
    "auto.offset.reset": "Instead set the source option 'startingoffsets' to 'earliest' or 'latest' to specify where "
    "to start. Structured Streaming manages which offsets are consumed internally, rather than relying on the kafka "
    "consumer to do it.",
    "key.deserializer": "keys are deserialized as byte arrays. Use DataFrame operations to explicitly deserialize the "
    "keys.",
    "value.deserializer": "values are deserialized as byte arrays. Use DataFrame operations to explicitly deserialize "
    "the values.",
    "key.serializer": "keys are serialized as they are: strings and byte arrays.",
    "value.serializer": "values are serialized as they are: strings and byte arrays.",
    "enable.auto.commit": "the source does not commit offsets.",
    "interceptor.classes": "there are no interceptors in this client.",
    "transactional.id": "instead set the sink option 'transactional' to this name: each epoch is a transaction.",
}
#: All options of source and sink without the prefix `kafka.`; both accept all of them, since they may get the same.
_KNOWN: Final = (
    *("subscribe", "subscribePattern", "assign", "topic", "includeHeaders"),
    *("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "startingOffsetsByTimestampStrategy"),
    *("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", "failOnDataLoss", "groupIdPrefix"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition"),
    *("onRecreatedTopic", "topicIds", "invalidTimestamps", "includeTimestampMs", "minRecordsPerTask"),
    "invalidUtf8",
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *(_ISOLATION_LEVEL, "transactional"),
)
#: The option with which Spark writes a query's progress only after several micro-batches.
ASYNC_PROGRESS: Final = "asyncProgressTrackingEnabled"
#: The option that says how long Spark's Kafka source may use the numbers of partitions that it has read.
METADATA_TTL: Final = "partition.metadata.cache.ttl.ms"
#: Options that name files, for sources that have files.
_PATHS: Final = ("path", "paths")

#: The options of Spark itself, which it passes to sources and sinks in Python too: how each is handled, by its name.
#: `docs/spark.md` has the same table for users, and a test compares it with what Spark passes.
OPTIONS_OF_SPARK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "path": "ignored with a warning",
        "paths": "ignored with a warning",
        "queryName": "Spark uses it",
        "checkpointLocation": "Spark uses it",
        ASYNC_PROGRESS: "Spark refuses it for sinks in Python; with `transactional` this sink refuses it too",
        "asyncProgressTrackingCheckpointIntervalMs": "Spark uses it",
        "_asyncProgressTrackingOverrideSinkSupportCheck": "Spark uses it",
        METADATA_TTL: "checked, without effect: each micro-batch looks for partitions",
    }
)
_MILLISECONDS: Final = re.compile(r"-1|0*[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class OffsetBound:
    """Where a query starts or ends. Exactly one field is set.

    everywhere: EARLIEST or LATEST, for all partitions.
    offsets: an offset, EARLIEST or LATEST for each partition.
    timestamp: one time stamp for all partitions.
    timestamps: a time stamp for each partition. All time stamps are milliseconds since 1970.
    """

    everywhere: int | None = None
    offsets: ByPartition | None = None
    timestamp: int | None = None
    timestamps: ByPartition | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions of a query: of named topics, of topics that match a pattern, or a list of partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a source, checked for a batch query or a streaming one. Times are in milliseconds."""

    bootstrap: str
    subscription: Subscription
    start: OffsetBound
    end: OffsetBound
    fail_on_data_loss: bool = True
    start_strategy_latest: bool = False  # whether a time stamp after the last record means the end, else fail
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    min_records_per_task: int = 1  # tasks read several small ranges until they have this many offsets
    max_records_per_partition: int | None = None
    include_headers: bool = False
    include_timestamp_ms: bool = False  # whether to add a column with the time stamp as a number
    valid_utf8: bool = False  # whether to replace bytes of values that are not UTF-8
    null_timestamps: bool = False  # whether time stamps that Spark can't represent become null, else fail
    restart_recreated: bool = False  # streams: whether to read a recreated topic from its beginning, else fail
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # batches: the ids that topics must have
    poll_timeout_ms: int = 120_000
    offset_retries: int = 3  # how often to repeat a look-up of end offsets before the read offsets
    offset_retry_ms: int = 1000
    client: Mapping[str, Any] = field(default_factory=dict)

    @property
    def read_committed(self) -> bool:
        """Whether only committed records are read, up to the last stable offset of each partition."""
        return self.client.get("isolation") == "committed"

    @classmethod
    def for_batch(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options of a batch query. Raises OptionError."""
        given = RawOptions(options)
        start = given.start(OffsetBound(everywhere=EARLIEST))
        end = given.end(OffsetBound(everywhere=LATEST))
        if start.everywhere == LATEST:
            raise OptionError("starting offset can't be latest for batch queries on Kafka")
        for partition, offset in (start.offsets or {}).items():
            if offset == LATEST:
                raise OptionError(f"startingOffsets for {_name(partition)} can't be latest for batch queries on Kafka")
        if end.everywhere == EARLIEST:
            raise OptionError("ending offset can't be earliest for batch queries on Kafka")
        for partition, offset in (end.offsets or {}).items():
            if offset == EARLIEST:
                raise OptionError(f"ending offset for {_name(partition)} can't be earliest for batch queries on Kafka")
        _check_order(start, end)
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
            if given.text(name) is not None:
                _log.warning("%s option ignored in batch queries", name)
        if given.text("onRecreatedTopic") is not None:
            _log.warning("onRecreatedTopic option ignored in batch queries")
        ids = given.parsed("topicIds", _topic_ids, 'topic ids by topic, such as {"flights":"0f3c..."}')
        return cls(start=start, end=end, topic_ids=ids or {}, **given.common())

    @classmethod
    def for_stream(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options of a streaming query. Raises OptionError."""
        given = RawOptions(options)
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if given.text(name) is not None:
                what = "ending offset" if name == "endingOffsets" else "ending timestamp"
                raise OptionError(f"{what} not valid in streaming queries")
        least, most = given.positive("minOffsetsPerTrigger"), given.positive("maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            raise OptionError(
                f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
            )
        delay = given.parsed("maxTriggerDelay", _duration_ms, "a duration such as 15m")
        if given.text("topicIds") is not None:
            raise OptionError("topicIds not valid in streaming queries: the checkpoint has the ids")
        return cls(
            start=given.start(OffsetBound(everywhere=LATEST)),
            end=OffsetBound(everywhere=LATEST),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=15 * 60_000 if delay is None else delay,
            restart_recreated=given.choice("onRecreatedTopic", "error", "restart") == "restart",
            **given.common(),
        )


def admin_arguments(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of the client that an administrator accepts too."""
    return {name: value for name, value in client.items() if name in _ADMIN_ARGUMENTS}


def check_client_options(options: Mapping[str, str]) -> None:
    """Raise OptionError unless the source's client has all these options, which begin with `kafka.`, and their values
    are valid. Options of TLS and SASL are not checked: they may be complete only together with others.
    """
    others = {name: value for name, value in options.items() if not is_security(name.lower().removeprefix("kafka."))}
    RawOptions(others).client(_PASSED, strict=True)


def parse_offsets(text: str, option: str) -> ByPartition:
    """Parse offsets or time stamps such as `{"topic": {"0": 23, "1": -2}}`. Raises OptionError, naming `option`."""
    example = f'Expected e.g. {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}, got {text}'
    try:
        document = json.loads(text)
        found = {
            (str(topic), _number(partition)): _whole(offset)
            for topic, partitions in document.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(f"{option}: {example}") from error
    return found


def offsets_json(offsets: Mapping[tuple[str, int], int]) -> str:
    """Return offsets as JSON that `parse_offsets` reads, sorted."""
    return json.dumps(nested(offsets), separators=(",", ":"))


class RawOptions:
    """The options as strings, with methods that parse one each and raise OptionError."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): str(value) for name, value in options.items()}
        if _ISOLATION_LEVEL in self._options:  # the only setting of Kafka that needs no prefix
            self._options.setdefault(f"kafka.{_ISOLATION_LEVEL}", self._options[_ISOLATION_LEVEL])
        known = {name.lower(): name for name in (*_KNOWN, *OPTIONS_OF_SPARK)}
        for name in self._options:
            if name not in known and not name.startswith(("kafka.", "__")):
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean '{known[near[0]]}'?" if near else ""
                raise OptionError(f"unknown option '{name}'{hint}")
        _check_options_of_spark(self._options)

    def text(self, name: str) -> str | None:
        """Return the value of an option without surrounding white space, or None if it was not given."""
        value = self._options.get(name.lower())
        return None if value is None else value.strip()

    def parsed(self, name: str, parse: Callable[[str], T], what: str) -> T | None:
        """Return the value of an option as `parse` converts it, or None.

        what: the valid values, for the error.
        """
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(f"option '{name}' must be {what}, got {text!r}") from error

    def positive(self, name: str, least: int = 1) -> int | None:
        """Return an option that is an integer, at least `least`, or None if it was not given."""
        value = self.parsed(name, _number, "a whole number")
        if value is not None and value < least:
            raise OptionError(f"{name} must be positive, got {value}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is true or false."""
        value = self.parsed(name, lambda text: {"true": True, "false": False}[text.lower()], "true or false")
        return default if value is None else value

    def choice(self, name: str, default: str, other: str) -> str:
        """Return an option that must be one of two words, case-insensitive."""
        value = (self.text(name) or default).lower()
        if value not in (default, other):
            raise OptionError(f"{name} must be {default!r} or {other!r}, got {value!r}")
        return value

    def bootstrap(self) -> str:
        """Return the addresses of the brokers."""
        text = self.text("kafka.bootstrap.servers")
        if not text:
            raise OptionError(
                "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer and producer"
            )
        return text

    def common(self) -> dict[str, Any]:
        """Return the options of batch and streaming queries, as arguments of `SourceOptions`."""
        timeout = self.positive("kafkaConsumer.pollTimeoutMs")
        retries = self.positive("fetchOffset.numRetries", 0)
        pause = self.positive("fetchOffset.retryIntervalMs", 0)
        least, grouped = self.positive("minPartitions"), self.positive("minRecordsPerTask")
        if least is not None and grouped is not None:
            raise OptionError("give either minPartitions, for more tasks, or minRecordsPerTask, for fewer")
        return {
            "bootstrap": self.bootstrap(),
            "subscription": self.subscription(),
            "fail_on_data_loss": self.flag("failOnDataLoss", True),
            "start_strategy_latest": self.choice("startingOffsetsByTimestampStrategy", "error", "latest") == "latest",
            "min_partitions": least,
            "min_records_per_task": grouped or 1,
            "max_records_per_partition": self.positive("maxRecordsPerPartition"),
            "include_headers": self.flag("includeHeaders", False),
            "include_timestamp_ms": self.flag("includeTimestampMs", False),
            "valid_utf8": self.choice("invalidUtf8", "keep", "replace") == "replace",
            "null_timestamps": self.choice("invalidTimestamps", "error", "null") == "null",
            "poll_timeout_ms": 120_000 if timeout is None else timeout,
            "offset_retries": 3 if retries is None else retries,
            "offset_retry_ms": 1000 if pause is None else pause,
            "client": self.client(_PASSED),
        }

    def subscription(self) -> Subscription:
        """Return the subscription. Exactly one of three options must give it."""
        given = [name for name in _SUBSCRIPTIONS if name in self._options]
        if not given:
            raise OptionError(
                "One of the following options must be specified for Kafka source: "
                "subscribe, subscribePattern, assign. See the docs for more details."
                + (" A path does not name a topic." if any(name in self._options for name in _PATHS) else "")
            )
        if len(given) > 1:
            raise OptionError(
                "Only one of the following options can be specified for Kafka source: "
                "subscribe, subscribePattern, assign. See the docs for more details."
            )
        text = self._options[given[0]].strip()
        if given[0] == "assign":
            return Subscription(partitions=_assigned(text))
        if given[0] == "subscribepattern":
            return Subscription(pattern=_pattern(text))
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise OptionError(f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'")
        return Subscription(topics=topics)

    def start(self, default: OffsetBound) -> OffsetBound:
        """Return where the query starts: at one time stamp if it is given, else at time stamps, else at offsets."""
        return self._bound("starting", default)

    def end(self, default: OffsetBound) -> OffsetBound:
        """Return where the query ends, by the same precedence."""
        return self._bound("ending", default)

    def _bound(self, which: str, default: OffsetBound) -> OffsetBound:
        timestamp = self.parsed(f"{which}Timestamp", _timestamp, "a time stamp in milliseconds")
        if timestamp is not None:
            return OffsetBound(timestamp=timestamp)
        text = self.text(f"{which}OffsetsByTimestamp")
        if text is not None:
            timestamps = parse_offsets(text, f"{which}OffsetsByTimestamp")
            for partition, at in timestamps.items():
                if at < 0:
                    raise OptionError(f"{which}OffsetsByTimestamp for {_name(partition)}: invalid time stamp {at}")
            return OffsetBound(timestamps=timestamps)
        text = self.text(f"{which}Offsets")
        if text is None:
            return default
        if text.lower() in ("earliest", "latest"):
            return OffsetBound(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
        offsets = parse_offsets(text, f"{which}Offsets")
        for partition, offset in offsets.items():
            if offset < EARLIEST:
                raise OptionError(f"{which}Offsets for {_name(partition)}: invalid offset {offset}")
        return OffsetBound(offsets=offsets)

    def client(self, passed: Mapping[str, tuple[str, Callable[[str], Any]]], *, strict: bool = False) -> dict[str, Any]:
        """Return the client's arguments from the options that begin with `kafka.`.

        passed: the supported arguments.
        strict: whether an unsupported option is an error; else it is logged and ignored.
        """
        arguments: dict[str, Any] = {}
        security: dict[str, str] = {}
        for option in self._options:
            name = option.removeprefix("kafka.")
            if name in (option, "bootstrap.servers", "group.id"):
                continue
            if name in _REFUSED:
                raise OptionError(f"Kafka option '{name}' is not supported: {_REFUSED[name]}")
            if name in passed:
                argument, parse = passed[name]
                arguments[argument] = self.parsed(option, parse, "a valid value of Kafka's setting")
            elif is_security(name):
                security[name] = self._options[option]
            elif strict:
                near = difflib.get_close_matches(name, passed, 1)
                hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(passed)}, and those of security"
                raise OptionError(f"this client does not have Kafka's setting '{name}'; {hint}")
            else:
                _log.warning("Kafka option '%s' is ignored: pylogd's client does not have it", name)
        if security and security != {"security.protocol": "PLAINTEXT"}:
            try:
                arguments["security"] = security_from(security)
            except ValueError as error:
                raise OptionError(f"Kafka option {error}") from None
        return arguments


def _check_options_of_spark(options: Mapping[str, str]) -> None:
    """Warn of options without a meaning here. `options` has names in lower case. Raises OptionError for a value that
    Spark's own source refuses.
    """
    for name in _PATHS:
        if name in options:
            _log.warning(
                "option '%s' is ignored: a topic has no path. Topics are named by 'subscribe', 'subscribePattern' or "
                "'assign' of a source, and by 'topic' of a sink", name,
            )  # fmt: skip
    lifetime = options.get(METADATA_TTL, "-1").strip()
    if not _MILLISECONDS.fullmatch(lifetime):
        raise OptionError(f"option '{METADATA_TTL}' must be -1 or a positive number of milliseconds, got {lifetime!r}")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{value} has more than 64 bits")
    return value


def _number(text: str) -> int:
    """Parse digits with an optional sign; `int` would accept `1_0` too."""
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not an integer")
    return _whole(int(text))


def _check_order(start: OffsetBound, end: OffsetBound) -> None:
    """Raise OptionError if the options show that a batch query's start lies after its end."""
    for what, first, last in (
        ("offset", start.offsets, end.offsets),
        ("timestamp", start.timestamps, end.timestamps),
    ):
        if first is None or last is None:
            continue
        if first.keys() != last.keys():
            raise OptionError(
                f"Mismatched topic partitions for start and end: {offsets_json(first)} and {offsets_json(last)}"
            )
        for partition, begin in first.items():
            if 0 <= last[partition] < begin:
                raise OptionError(
                    f"The start {what} {begin} of {_name(partition)} is greater than its end {what} {last[partition]}."
                )


def _assigned(text: str) -> tuple[tuple[str, int], ...]:
    try:
        document = json.loads(text)
        found = tuple((str(topic), _whole(index)) for topic, indexes in document.items() for index in indexes)
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(f'assign: Expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text}') from error
    if not found:
        raise OptionError(f"No topicpartitions to assign as specified value for option 'assign' is {text}")
    return tuple(dict.fromkeys(found))


def _pattern(text: str) -> str:
    if not text:
        raise OptionError("Pattern to subscribe is empty as specified value for option 'subscribePattern' is ''")
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"option 'subscribePattern' has to be a regular expression, got {text!r}: {error}") from error
    return text


def _topic_ids(text: str) -> dict[str, str]:
    document = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError(text)
    return {str(topic): bytes.fromhex(found).hex() for topic, found in document.items()}


def _timestamp(text: str) -> int:
    value = _number(text)
    if value < 0:
        raise ValueError(text)
    return value


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text.lower())
    if match is None:
        raise ValueError(text)
    unit = match[2] or "ms"
    short = "ms" if unit.startswith("mil") else unit if unit == "ms" else unit[0]
    return int(match[1]) * _UNITS[short]


def _name(partition: tuple[str, int]) -> str:
    return f"{partition[0]}-{partition[1]}"
