"""The client library on Twisted: the names of the blocking face; methods that wait there return Deferreds here.

    from pylogd.client.deferred import Consumer, Producer

    producer = Producer("localhost:9092")
    delivery = await producer.send("events", b"hello", key=b"greeting")
    offset = await delivery.result()
    await producer.close()

    consumer = Consumer("localhost:9092", group_id="readers")
    await consumer.subscribe(["events"])
    async for record in consumer:
        print(record.offset, record.key, record.value)

Everything runs on the reactor that is given as `reactor` (IReactorTCP, IReactorTime; by default that of
`twisted.internet`). The only thread is the reactor's own, which looks up host names. `client/evented` has the code that
this face shares with `pylogd.client.aio`, `client/core` the code that all faces share.
"""

from pylogd.client.deferred.admin import Admin
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.deferred.consumer import Consumer
from pylogd.client.deferred.producer import Delivery, Producer
from pylogd.client.evented.streams import MessageStream

__all__ = ["Admin", "Cluster", "Consumer", "Delivery", "MessageStream", "Producer"]
