"""DescribeLogDirs, API key 35, versions 0-5. Asks which partitions are in which data directory, and how much space each
takes.

Generated from protocol/apis/describe_log_dirs.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class DescribableLogDirTopic(Message):
    """A topic asked for."""

    __slots__ = ("topic", "partitions")

    #: The topic name.
    topic: str
    #: The partitions.
    partitions: list[int]

    def __init__(self, topic: str = "", partitions: list[int] = UNSET) -> None:
        self.topic = topic
        self.partitions = [] if partitions is UNSET else partitions


class DescribeLogDirsPartition(Message):
    """A log in the directory."""

    __slots__ = ("partition_index", "partition_size", "offset_lag", "is_future_key")

    #: The partition's number.
    partition_index: int
    #: The size of the partition's log in bytes.
    partition_size: int
    #: How many offsets the log is behind the high watermark; for a log on the move, behind the present one.
    offset_lag: int
    #: Whether the log is being moved to this directory.
    is_future_key: bool

    def __init__(
        self, partition_index: int = 0, partition_size: int = 0, offset_lag: int = 0, is_future_key: bool = False
    ) -> None:
        self.partition_index = partition_index
        self.partition_size = partition_size
        self.offset_lag = offset_lag
        self.is_future_key = is_future_key


class DescribeLogDirsTopic(Message):
    """A topic with logs in the directory."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The partitions.
    partitions: list[DescribeLogDirsPartition]

    def __init__(self, name: str = "", partitions: list[DescribeLogDirsPartition] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class DescribeLogDirsResult(Message):
    """A data directory."""

    __slots__ = ("error_code", "log_dir", "topics", "total_bytes", "usable_bytes", "is_cordoned")

    #: The error code; 0 if all went well.
    error_code: int
    #: The path of the data directory.
    log_dir: str
    #: The topics.
    topics: list[DescribeLogDirsTopic]
    #: The size of the directory's file system in bytes; -1 if not known. Versions 4+.
    total_bytes: int
    #: The free space on the directory's file system in bytes; -1 if not known. Versions 4+.
    usable_bytes: int
    #: Whether the directory takes no new partitions. Versions 5+.
    is_cordoned: bool

    def __init__(
        self,
        error_code: int = 0,
        log_dir: str = "",
        topics: list[DescribeLogDirsTopic] = UNSET,
        total_bytes: int = -1,
        usable_bytes: int = -1,
        is_cordoned: bool = False,
    ) -> None:
        self.error_code = error_code
        self.log_dir = log_dir
        self.topics = [] if topics is UNSET else topics
        self.total_bytes = total_bytes
        self.usable_bytes = usable_bytes
        self.is_cordoned = is_cordoned


class DescribeLogDirsRequest(Message):
    """The request of DescribeLogDirs."""

    __slots__ = ("topics",)

    API_KEY: ClassVar[int] = 35
    API_NAME: ClassVar[str] = "DescribeLogDirs"

    #: The topics asked for; null for all.
    topics: list[DescribableLogDirTopic] | None

    def __init__(self, topics: list[DescribableLogDirTopic] | None = UNSET) -> None:
        self.topics = [] if topics is UNSET else topics


class DescribeLogDirsResponse(Message):
    """The response of DescribeLogDirs."""

    __slots__ = ("throttle_time_ms", "error_code", "results")

    API_KEY: ClassVar[int] = 35
    API_NAME: ClassVar[str] = "DescribeLogDirs"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well. Versions 3+.
    error_code: int
    #: The data directories.
    results: list[DescribeLogDirsResult]

    def __init__(
        self, throttle_time_ms: int = 0, error_code: int = 0, results: list[DescribeLogDirsResult] = UNSET
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.results = [] if results is UNSET else results
