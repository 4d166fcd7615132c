"""The errors of putting messages into a table's columns, and of reading and writing them as JSON."""

from __future__ import annotations

from pylogd.base.errors import PylogdError


class NotColumns(PylogdError):
    """A registered schema can't be the columns of a table: all of its messages go to the quarantine."""


class NoSchema(PylogdError):
    """The subject of a typed table has no version."""


class UnknownSchema(PylogdError):
    """The registry has no schema with the id that a message names."""


class Misfit(PylogdError, ValueError):
    """A message does not match its schema, or one of its values does not fit its column."""


class NotDecoded(PylogdError):
    """A message that can't be read by its schema."""


class NotEncoded(PylogdError):
    """A value that can't be written by a schema."""
