"""What a drill needs: processes that run, what Prometheus scrapes of them, and the faults that they can have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.alerts.prometheus import Rules


class Fault(NamedTuple):
    """A fault. expected: alerts that have to fire. allowed: alerts that may fire too. about: what it is, for people."""

    about: str
    begin: Callable[[], object]
    end: Callable[[], object]
    expected: frozenset[str]
    allowed: frozenset[str] = frozenset()


class Scene(NamedTuple):
    """Processes that run. targets: the ports of their metrics, by name. faults: in the order of the drill."""

    rules: Rules
    targets: Mapping[str, int]
    faults: list[Fault]
