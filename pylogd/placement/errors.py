"""The reasons why replicas can't be placed."""

from __future__ import annotations

from pylogd.errors import PylogdError


class PlacementImpossible(PylogdError):
    """The replicas that were asked for have no place; the text says why."""


class TooFewBrokers(PlacementImpossible):
    """There are more replicas than brokers that may have them."""


class NoRoom(PlacementImpossible):
    """A broker would get more partitions than it may hold."""
