"""DescribeLogDirs, API key 35, versions 0-5. Asks how much room each partition takes in which data directory.

Generated from protocol/apis/describe_log_dirs.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(slots=True)
class DescribableLogDirTopic:
    """A topic asked for."""

    #: The topic name.
    topic: str = ""
    #: The partitions.
    partitions: list[int] = field(default_factory=list)


@dataclass(slots=True)
class DescribeLogDirsPartition:
    """A log in the directory."""

    #: The partition's number.
    partition_index: int = 0
    #: The size of the partition's log in bytes.
    partition_size: int = 0
    #: How many offsets the log is behind the high watermark; for a log on the move, behind the present one.
    offset_lag: int = 0
    #: Whether the log is being moved to this directory.
    is_future_key: bool = False


@dataclass(slots=True)
class DescribeLogDirsTopic:
    """A topic with logs in the directory."""

    #: The topic name.
    name: str = ""
    #: The partitions.
    partitions: list[DescribeLogDirsPartition] = field(default_factory=list)


@dataclass(slots=True)
class DescribeLogDirsResult:
    """A data directory."""

    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The path of the data directory.
    log_dir: str = ""
    #: The topics.
    topics: list[DescribeLogDirsTopic] = field(default_factory=list)
    #: The size of the directory's file system in bytes; -1 if not known. Versions 4+.
    total_bytes: int = -1
    #: The free room on the directory's file system in bytes; -1 if not known. Versions 4+.
    usable_bytes: int = -1
    #: Whether the directory takes no new partitions. Versions 5+.
    is_cordoned: bool = False


@dataclass(slots=True)
class DescribeLogDirsRequest:
    """The request of DescribeLogDirs."""

    API_KEY: ClassVar[int] = 35
    API_NAME: ClassVar[str] = "DescribeLogDirs"

    #: The topics asked for; null for all.
    topics: list[DescribableLogDirTopic] | None = field(default_factory=list)


@dataclass(slots=True)
class DescribeLogDirsResponse:
    """The response of DescribeLogDirs."""

    API_KEY: ClassVar[int] = 35
    API_NAME: ClassVar[str] = "DescribeLogDirs"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: The error code; 0 if all went well. Versions 3+.
    error_code: int = 0
    #: The data directories.
    results: list[DescribeLogDirsResult] = field(default_factory=list)
