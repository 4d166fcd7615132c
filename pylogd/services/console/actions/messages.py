"""Actions that write messages: produce one, and replay one to the same or another topic."""

from __future__ import annotations

import shlex

from pylogd.client.core.model import TopicPartition
from pylogd.client.deferred import Producer
from pylogd.services.console.actions.steps import Field, Plan, command, number, pairs
from pylogd.services.console.actions.topics import OnTopic
from pylogd.services.console.answers import PageRequest, Refused
from pylogd.services.console.clusters import WatchedCluster
from pylogd.services.console.masking import Masking
from pylogd.services.console.pages.topics import find_topic
from pylogd.services.console.reading import Messages
from pylogd.wire.records import Record


class Produce(OnTopic):
    """Write a message."""

    path = "/topics/{topic}/produce"
    name = "produce a message"
    heading = "Produce to {topic}"

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        find_topic(cluster, asked.parts["topic"])
        return [
            Field("key", "Key", hint="empty: none"),
            Field("value", "Value", "area"),
            Field("headers", "Headers", "area", hint="name=value, one a line"),
            Field("partition", "Partition", "number", hint="empty: by the key"),
        ]

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the message to write, and its destination. Raises Refused."""
        form, name = asked.form, asked.parts["topic"]
        topic = find_topic(cluster, name)
        chosen = form.get("partition", "").strip()
        partition = number(form, "partition", 0, len(topic) - 1) if chosen else None
        key, value = form.get("key", ""), form.get("value", "").replace("\r\n", "\n")
        headers = pairs(form.get("headers", ""), "headers")
        record = (key.encode() if key else None, value.encode(), [(one, text.encode()) for one, text in headers])

        async def run() -> str:
            return await send(cluster, name, *record, partition)

        words: list[object] = ["produce", name, "--quiet"]
        words += ["--key", key] if key else []
        words += ["--partition", partition] if partition is not None else []
        for header, text in headers:
            words += ["--header", f"{header}={text}"]
        where = "by the key" if partition is None else str(partition)
        rows = [("key", key or "none"), ("value", value), ("partition", where), *headers]
        line = f"printf '%s\\n' {shlex.quote(value)} | {command(cluster, *words)}"
        if "\n" in value:
            line = "# `pylogd produce` sends each line as a message; this value has several lines.\n" + line
        return Plan(line, run, ("What", "Value"), rows, logged=f"a message of {len(value)} characters to {name}")


class Replay(OnTopic):
    """Write a message again."""

    path = "/topics/{topic}/replay"
    name = "replay a message"
    heading = "Replay a message of {topic}"

    def __init__(self, messages: Messages, masking: Masking) -> None:
        self._messages = messages
        self._masking = masking

    def fields(self, cluster: WatchedCluster, asked: PageRequest) -> list[Field]:
        """Return the form."""
        find_topic(cluster, asked.parts["topic"])
        return [
            Field("partition", "Partition", "number", required=True),
            Field("offset", "Offset", "number", required=True),
            Field("target", "To the topic", value=asked.parts["topic"], required=True,
                  hint="key, value and headers stay as they are; the key decides on the partition"),
        ]  # fmt: skip

    async def plan(self, cluster: WatchedCluster, asked: PageRequest) -> Plan:
        """Return the message to write again, masked as on other pages, and its destination. Raises Refused."""
        source, target = find_topic(cluster, asked.parts["topic"]), asked.form.get("target", "").strip()
        place = TopicPartition(source.name, number(asked.form, "partition", 0, len(source) - 1))
        offset = number(asked.form, "offset", 0, 2**62)
        if target not in cluster.sampler.last.topics:
            raise Refused(422, "The target is not a topic of the last sample.")
        if self._masking.concerns(source.name) and target != source.name:
            raise Refused(422, "Values of this topic are masked, so its messages can't be copied to another one.")
        record = await self._read(cluster, place, offset)
        shown = self._messages.message(cluster.decoder, record)

        async def run() -> str:
            headers = [(header[0], header[1]) for header in record.headers]
            return await send(cluster, target, record.key, record.value, headers, None)

        rows = [
            ("from", f"{place} at {offset}"), ("to", target), ("key", shown.key.text()), ("value", shown.value.text()),
            *shown.headers,
        ]  # fmt: skip
        read = command(
            cluster, "consume", source.name, "--partition", place.partition, f"--from={offset}", "--count", 1
        )
        line = f"{read} | {command(cluster, 'produce', target, '--quiet')}   # without key and headers"
        return Plan(line, run, ("What", "Value"), rows, logged=f"{place} at {offset} to {target}")

    async def _read(self, cluster: WatchedCluster, place: TopicPartition, offset: int) -> Record:
        consumer = self._messages.consumer(cluster.cluster)
        try:
            end = (await consumer.end_offsets([place]))[place]
            if offset < end:
                await consumer.assign({place: offset}, until={place: offset + 1})
                for record in await consumer.poll(5.0, 1):
                    if record.offset == offset:
                        return record
        finally:
            await consumer.close()
        raise Refused(422, f"There is no message at offset {offset}.")


async def send(
    cluster: WatchedCluster, topic: str, key: bytes | None, value: bytes | None,
    headers: list[tuple[str, bytes | None]] | list[tuple[str, bytes]], partition: int | None,
) -> str:  # fmt: skip
    """Write a message. Return its partition and offset. Raises PylogdError."""
    producer = Producer(cluster.cluster)
    try:
        delivery = await producer.send(topic, value, key, partition=partition, headers=headers)
        offset = await delivery.result()
        return f"The message is in {topic}, partition {delivery.partition}, at offset {offset}."
    finally:
        await producer.close()
