"""Helpers for tests of the producer."""

from __future__ import annotations

from collections.abc import Callable

from pylogd.client import (
    Producer,
)

Make = Callable[..., Producer]
