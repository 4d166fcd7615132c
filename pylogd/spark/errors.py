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


class PlanError(PylogdError):
    """Offsets that can't be what a query reads: a partition that is not there, an end before its start."""


class WriteError(PylogdError):
    """Rows that can't be written to a topic."""
