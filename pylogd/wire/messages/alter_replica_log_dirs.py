"""AlterReplicaLogDirs, API key 34, versions 1-2. Asks a broker to keep its replicas in these data directories.

Generated from protocol/apis/alter_replica_log_dirs.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import UNSET, Message


class AlterReplicaLogDirTopic(Message):
    """A topic with replicas for the directory."""

    __slots__ = ("name", "partitions")

    #: The topic name.
    name: str
    #: The partitions.
    partitions: list[int]

    def __init__(self, name: str = "", partitions: list[int] = UNSET) -> None:
        self.name = name
        self.partitions = [] if partitions is UNSET else partitions


class AlterReplicaLogDir(Message):
    """A data directory, and the replicas that it should hold."""

    __slots__ = ("path", "topics")

    #: The absolute path of the data directory.
    path: str
    #: The topics.
    topics: list[AlterReplicaLogDirTopic]

    def __init__(self, path: str = "", topics: list[AlterReplicaLogDirTopic] = UNSET) -> None:
        self.path = path
        self.topics = [] if topics is UNSET else topics


class AlterReplicaLogDirPartitionResult(Message):
    """The result for a replica."""

    __slots__ = ("partition_index", "error_code")

    #: The partition's number.
    partition_index: int
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, partition_index: int = 0, error_code: int = 0) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class AlterReplicaLogDirTopicResult(Message):
    """The result for a topic's replicas."""

    __slots__ = ("topic_name", "partitions")

    #: The topic name.
    topic_name: str
    #: The partitions.
    partitions: list[AlterReplicaLogDirPartitionResult]

    def __init__(self, topic_name: str = "", partitions: list[AlterReplicaLogDirPartitionResult] = UNSET) -> None:
        self.topic_name = topic_name
        self.partitions = [] if partitions is UNSET else partitions


class AlterReplicaLogDirsRequest(Message):
    """The request of AlterReplicaLogDirs."""

    __slots__ = ("dirs",)

    API_KEY: ClassVar[int] = 34
    API_NAME: ClassVar[str] = "AlterReplicaLogDirs"

    #: The data directories.
    dirs: list[AlterReplicaLogDir]

    def __init__(self, dirs: list[AlterReplicaLogDir] = UNSET) -> None:
        self.dirs = [] if dirs is UNSET else dirs


class AlterReplicaLogDirsResponse(Message):
    """The response of AlterReplicaLogDirs."""

    __slots__ = ("throttle_time_ms", "results")

    API_KEY: ClassVar[int] = 34
    API_NAME: ClassVar[str] = "AlterReplicaLogDirs"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The result for each replica.
    results: list[AlterReplicaLogDirTopicResult]

    def __init__(self, throttle_time_ms: int = 0, results: list[AlterReplicaLogDirTopicResult] = UNSET) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = [] if results is UNSET else results
