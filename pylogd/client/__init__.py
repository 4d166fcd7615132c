"""The client library: a blocking face (no threads, no reactor) over the sans-I/O session.

    from pylogd.client import Consumer, Producer

    with Producer("localhost:9092") as producer:
        producer.send("events", b"hello", key=b"greeting")

    with Consumer("localhost:9092") as consumer:
        consumer.assign(consumer.partitions("events"))
        for record in consumer:
            print(record.offset, record.key, record.value)

Reading guide: `connection` is one socket; `cluster` finds leaders and tries again; `producer` batches and `sender`
sends; `consumer` decodes and `fetcher` fetches; `admin` is the rest; `errors` is what may be raised besides
`pylogd.errors.KafkaError`, which carries the code that a broker answered.
"""

from pylogd.client.accumulator import BatchResult
from pylogd.client.admin import Admin
from pylogd.client.cluster import Cluster
from pylogd.client.consumer import Consumer
from pylogd.client.errors import (
    BrokerUnavailable,
    BufferFull,
    ClientError,
    Closed,
    CorruptRecords,
    DeliveryFailed,
    DeliveryTimedOut,
    InvalidReply,
    RequestTimedOut,
    UnknownTopic,
    UnsupportedByBroker,
)
from pylogd.client.model import NewTopic, OffsetAndTime, TopicPartition
from pylogd.client.producer import Delivery, Producer
from pylogd.errors import ErrorCode, KafkaError
from pylogd.wire.records import NewRecord, Record

__all__ = [
    "Admin",
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
