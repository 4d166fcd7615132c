"""Errors of the Spark source and sink. Where Spark's Kafka source has the same error, the text is the same."""

from __future__ import annotations

from pylogd.base.errors import PylogdError


class OptionError(PylogdError, ValueError):
    """An option is missing, invalid, unknown, or contradicts another."""


class DataLoss(PylogdError):
    """Records that the query should read no longer exist, and `failOnDataLoss` is true."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Some data may have been lost because they are not available any more: either the data was aged "
            "out or the topic was deleted before all of it was processed. If you don't want the query to fail on such "
            'cases, set the source option "failOnDataLoss" to "false".'
        )


class TopicRecreated(PylogdError):
    """A topic was deleted and created again after a part of it was read."""

    def __init__(self, topic: str, before: str, now: str, what_to_do: str) -> None:
        """`before` and `now` are the ids of the two topics, as hexadecimal digits."""
        super().__init__(
            f"topic {topic!r} was deleted and created again: it had the topic id {before} when it was read, and has "
            f"{now} now; its offsets begin again. {what_to_do}"
        )
        self.topic = topic


class InvalidTimestamp(PylogdError):
    """Spark can't represent a record's time stamp."""

    def __init__(self, topic: str, partition: int, offset: int, timestamp_ms: int) -> None:
        super().__init__(
            f"the record at offset {offset} of {topic}-{partition} has the time stamp {timestamp_ms} ms, which lies "
            "outside of the years 1 to 9999 that Spark's timestamps cover. To read it, set the source option "
            "'invalidTimestamps' to 'null': the column 'timestamp' of such records is null then, and with "
            "'includeTimestampMs' a column 'timestampMs' has the number."
        )


class PlanError(PylogdError):
    """The offsets of a query are impossible: a partition does not exist, or its end lies before its start."""


class WriteError(PylogdError):
    """Rows can't be written to a topic."""


class EpochNotCommitted(PylogdError):
    """The rows of a query, or of one of its epochs, could not be written in a transaction."""

    def __init__(self, epoch: int | None, why: str, what_to_do: str) -> None:
        """epoch: the number of a micro-batch; None in a batch query."""
        rows = "The rows of the batch query were" if epoch is None else f"Spark epoch {epoch} was"
        super().__init__(f"{rows} not committed: {why}. {what_to_do}")


class StaleCheckpoint(PylogdError):
    """A query with a transactional sink wants to write an epoch before the last one that was committed."""

    def __init__(self, epoch: int, committed: int, group: str) -> None:
        super().__init__(
            f"Spark epoch {epoch} is older than epoch {committed}, the last one that this query has committed: was an "
            "older copy of its checkpoint restored? Its rows may be in the topic already, so nothing was written. To "
            f"write from epoch {epoch} on nevertheless, delete the group {group!r}, which has the number of the last "
            "epoch; to keep exactly-once, begin with a new checkpoint behind what the topic has."
        )


class NotByConnect(PylogdError):
    """A Parquet lake is on a file system that a session of Spark Connect can't commit to."""

    def __init__(self, root: str, scheme: str) -> None:
        super().__init__(
            f"{root}: by Spark Connect, a Parquet lake has to be on a disk that this machine and Spark's share. On "
            f"{scheme}: Hadoop makes the commits in the driver's JVM, which is in the server. Use a driver of your own "
            "(--master in place of --remote), or load into an Iceberg or Delta table"
        )
