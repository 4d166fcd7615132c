"""The client library on asyncio: the same names as `pylogd.client`, without Twisted.

For example::

    from pylogd.client.aio import Consumer, Producer

    async with Producer("localhost:9092") as producer:
        delivery = await producer.send("events", b"hello", key=b"greeting")
        print(await delivery)

    async with Consumer("localhost:9092") as consumer:
        await consumer.assign(await consumer.partitions("events"))
        async for record in consumer:
            print(record.offset, record.key, record.value)
"""

from pylogd.client.aio.admin import Admin
from pylogd.client.aio.cluster import Cluster
from pylogd.client.aio.consumer import Consumer
from pylogd.client.aio.producer import Delivery, Producer

__all__ = ["Admin", "Cluster", "Consumer", "Delivery", "Producer"]
