"""The client library, with its blocking interface for applications.

    from pylogd.client import Consumer, Producer

    with Producer("localhost:9092") as producer:
        producer.send("events", b"hello", key=b"greeting")

    with Consumer("localhost:9092") as consumer:
        consumer.assign(consumer.partitions("events"))
        for record in consumer:
            print(record.offset, record.key, record.value)

Where to look: `core` makes all decisions and does no I/O; `blocking` is this face, `aio` the one on asyncio, `deferred`
the one on Twisted, and `zookeeper` coordinates groups without a broker. `core.errors` has the exceptions besides
`pylogd.base.errors.KafkaError`, which carries a broker's error code.
"""

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.blocking.admin import Admin
from pylogd.client.blocking.audit import AuditedProducer
from pylogd.client.blocking.cluster import Cluster
from pylogd.client.blocking.consumer import Consumer
from pylogd.client.blocking.producer import Delivery, Producer
from pylogd.client.core.admin.access_operations import Acl, AclFilter
from pylogd.client.core.admin.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from pylogd.client.core.consumer.interceptors import ConsumerInterceptor
from pylogd.client.core.consumer.metrics import ConsumerMetrics
from pylogd.client.core.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    BufferFull,
    ClientError,
    Closed,
    CorruptRecords,
    DeliveryFailed,
    DeliveryTimedOut,
    DeserializationFailed,
    GroupProtocolUnsupported,
    InvalidReply,
    LogTruncation,
    ProducerFailed,
    ProducerFenced,
    RequestTimedOut,
    SerializationFailed,
    TlsFailed,
    TransactionAborted,
    TransactionError,
    UnknownTopic,
    UnsupportedByBroker,
)
from pylogd.client.core.group.member_model import GroupMetadata
from pylogd.client.core.model import NewTopic, OffsetAndTime, TopicPartition
from pylogd.client.core.producer.interceptors import ProducerInterceptor, ProducerRecord, RecordMetadata
from pylogd.client.core.producer.metrics import ProducerMetrics
from pylogd.client.core.producer.options import BatchResult
from pylogd.client.core.security import SecurityOptions
from pylogd.wire.records import NewRecord, Record

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Acl",
    "AclFilter",
    "Admin",
    "AuditedProducer",
    "AuthenticationFailed",
    "BatchResult",
    "BrokerUnavailable",
    "BufferFull",
    "ClientError",
    "Closed",
    "Cluster",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerMetrics",
    "CorruptRecords",
    "Delivery",
    "DeliveryFailed",
    "DeliveryTimedOut",
    "DeserializationFailed",
    "ErrorCode",
    "GroupMetadata",
    "GroupProtocolUnsupported",
    "InvalidReply",
    "KafkaError",
    "LogTruncation",
    "NewRecord",
    "NewTopic",
    "OffsetAndTime",
    "Producer",
    "ProducerFailed",
    "ProducerFenced",
    "ProducerInterceptor",
    "ProducerMetrics",
    "ProducerRecord",
    "Record",
    "RecordMetadata",
    "RequestTimedOut",
    "SecurityOptions",
    "SerializationFailed",
    "TlsFailed",
    "TopicPartition",
    "TransactionAborted",
    "TransactionError",
    "UnknownTopic",
    "UnsupportedByBroker",
]
