"""What the source refuses. The texts are those of Spark's Kafka source where it has one."""

from __future__ import annotations

from pylogd.errors import PylogdError


class OptionError(PylogdError, ValueError):
    """An option that is missing, contradicts another, or can't be read."""


class DataLoss(PylogdError):
    """Records that the query should read are gone, and `failOnDataLoss` is true."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Some data may have been lost because they are not available any more: either the data was aged "
            "out or the topic was deleted before all of it was processed. If you don't want the query to fail on such "
            'cases, set the source option "failOnDataLoss" to "false".'
        )


class TopicRecreated(PylogdError):
    """A topic of which a part was read was deleted, and another one was created with its name."""

    def __init__(self, topic: str, before: str, now: str, what_to_do: str) -> None:
        """`before` and `now` are the ids of the two topics, as hexadecimal digits."""
        super().__init__(
            f"topic {topic!r} was deleted and created again: what was read of it had the topic id {before}, and the "
            f"topic of that name has {now} now, with offsets of its own. {what_to_do}"
        )
        self.topic = topic


class InvalidTimestamp(PylogdError):
    """A record's time stamp is none that Spark can represent."""

    def __init__(self, topic: str, partition: int, offset: int, timestamp_ms: int) -> None:
        super().__init__(
            f"the record at offset {offset} of {topic}-{partition} has the time stamp {timestamp_ms} ms, which lies "
            "outside of the years 1 to 9999 that Spark's timestamps cover. To read it, set the source option "
            "'invalidTimestamps' to 'null': the column 'timestamp' of such records is null then, and with "
            "'includeTimestampMs' a column 'timestampMs' has the number."
        )


class PlanError(PylogdError):
    """Offsets that can't be what a query reads: a partition that is not there, an end before its start."""


class WriteError(PylogdError):
    """Rows that can't be written to a topic."""
