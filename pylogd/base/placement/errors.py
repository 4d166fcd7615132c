"""The reasons why replicas can't be placed."""

from __future__ import annotations

from pylogd.base.errors import PylogdError


class PlacementImpossible(PylogdError):
    """Requested replicas can't be placed; the text gives the reason."""


class TooFewBrokers(PlacementImpossible):
    """There are more replicas than brokers that may have them."""


class NoRoom(PlacementImpossible):
    """A broker would get more partitions than it may hold."""
