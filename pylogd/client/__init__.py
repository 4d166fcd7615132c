"""The client library: a blocking face (no threads, no reactor) over the sans-I/O session.

    from pylogd.client import Consumer, Producer

    with Producer("localhost:9092") as producer:
        producer.send("events", b"hello", key=b"greeting")

    with Consumer("localhost:9092") as consumer:
        consumer.assign(consumer.partitions("events"))
        for record in consumer:
            print(record.offset, record.key, record.value)

Reading guide: `core` decides and does no I/O; `blocking` is this face, `deferred` the one on Twisted, `zookeeper` the
coordination of groups without a broker. `core.errors` is what may be raised besides `pylogd.errors.KafkaError`, which
carries the code that a broker answered.
"""

from pylogd.client.blocking.admin import Admin
from pylogd.client.blocking.audit import AuditedProducer
from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.consumer import Consumer
from pylogd.client.blocking.producer import Delivery, Producer
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from pylogd.client.core.errors import (
    BrokerUnavailable,
    BufferFull,
    ClientError,
    Closed,
    CorruptRecords,
    DeliveryFailed,
    DeliveryTimedOut,
    InvalidReply,
    LogTruncation,
    RequestTimedOut,
    UnknownTopic,
    UnsupportedByBroker,
)
from pylogd.client.core.model import NewTopic, OffsetAndTime, TopicPartition
from pylogd.client.core.producer.accumulator import BatchResult
from pylogd.errors import ErrorCode, KafkaError
from pylogd.wire.records import NewRecord, Record

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "AuditedProducer",
    "BatchResult",
    "BrokerUnavailable",
    "BufferFull",
    "ClientError",
    "Closed",
    "Cluster",
    "Consumer",
    "CorruptRecords",
    "Delivery",
    "DeliveryFailed",
    "DeliveryTimedOut",
    "ErrorCode",
    "InvalidReply",
    "KafkaError",
    "LogTruncation",
    "NewRecord",
    "NewTopic",
    "OffsetAndTime",
    "Producer",
    "Record",
    "RequestTimedOut",
    "TopicPartition",
    "UnknownTopic",
    "UnsupportedByBroker",
]
