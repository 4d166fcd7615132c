"""Logs that the metadata does not know. They are found, and kept aside under another name.

A log is a stray if its topic does not exist, has another topic id or fewer partitions, or has no replica on this
broker. It is renamed to `-stray` and kept, since the metadata store may have been restored from an older copy. A log is
deleted only if this broker saw that its topic was deleted, or that its replica was moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from pylogd.broker.log.errors import StorageError
from pylogd.broker.metadata.image import Topic, id_to_text
from pylogd.broker.replica.disk_calls import DiskCalls
from pylogd.store.errors import StoreError

if TYPE_CHECKING:
    from pylogd.broker.log.log import Log
    from pylogd.broker.log.manager import LogManager
    from pylogd.broker.metadata.topics import TopicRegistry

log = Logger()

_NO_ID = bytes(16)


class StrayLogs:
    """Finds the stray logs of a broker and renames them."""

    def __init__(self, logs: LogManager, topics: TopicRegistry, node_id: int, disk_calls: DiskCalls) -> None:
        self._logs = logs
        self._topics = topics
        self._node_id = node_id
        self._disk_calls = disk_calls

    async def find(self) -> list[tuple[tuple[str, int], str]]:
        """Read the metadata again, and return the (topic, index) of each stray log with the reason.

        Returns none if the metadata can't be read.
        """
        try:
            await self._topics.catch_up()
        except StoreError as error:
            log.warn("Not looking for stray logs: the metadata can't be read at present: {error}", error=error)
            return []
        # Iterate over a copy, since a thread removes the logs of a directory that fails.
        get = self._topics.get
        reasons = [(key, self.reason(stored, get(key[0]))) for key, stored in list(self._logs.logs.copy().items())]
        return [(key, reason) for key, reason in reasons if reason is not None]

    def reason(self, stored: Log, topic: Topic | None) -> str | None:
        """Return why a log of a topic is a stray; None if it is not, or if the topic's metadata can't be read."""
        if topic is None:
            return None if stored.topic in self._topics.unreadable else "there is no such topic"
        if stored.topic_id != topic.topic_id and stored.topic_id != _NO_ID:
            return f"its topic id is {id_to_text(stored.topic_id)}, the topic's {id_to_text(topic.topic_id)}"
        if stored.partition >= len(topic.partitions):
            return f"the topic has {len(topic.partitions)} partitions"
        replicas = topic.partitions[stored.partition].replicas
        return None if self._node_id in replicas else f"its replicas are on the brokers {list(replicas)}"

    async def keep_aside(self, key: tuple[str, int], reason: str) -> None:
        """Rename a log so that it is not served, and log the reason."""
        try:
            path = await self._disk_calls.at(self._logs.path_of(key), self._logs.keep_aside, *key)
        except StorageError as error:
            log.error("Could not rename the stray log of {t}-{i}: {error}", t=key[0], i=key[1], error=error)
            return
        if path is not None:
            log.error(
                "{topic}-{index} is not known to the metadata: {reason}. Its log is kept as {path} and not served. "
                "If the metadata is right, remove that directory. If it is an older copy, stop this broker, put the "
                "newer one back, and rename the directory to {topic}-{index}",
                topic=key[0], index=key[1], reason=reason, path=path,
            )  # fmt: skip
