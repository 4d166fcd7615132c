"""Options of a producer, checked once for all faces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pylogd.client.core.producer.idempotence import MAX_IN_FLIGHT

#: sent with InitProducerId, which requires it; it has no meaning without transactions
TRANSACTION_TIMEOUT_MS = 60_000

Acks = Literal["all", 0, 1, -1]
_ACKS = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}


def check_options(acks: Acks, idempotence: bool | None, retry: bool, max_in_flight: int) -> tuple[int, bool]:
    """The number for `acks`, and whether to be idempotent, which by default is so where it can be. ValueError: options
    that contradict each other.
    """
    if acks not in _ACKS:
        raise ValueError(f'acks is "all", 0 or 1, not {acks!r}')
    possible = _ACKS[acks] == -1 and retry and max_in_flight <= MAX_IN_FLIGHT
    if idempotence and not possible:
        raise ValueError(f'idempotence needs acks="all", retries, and at most {MAX_IN_FLIGHT} requests in flight')
    return _ACKS[acks], possible if idempotence is None else idempotence


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """As the producer's options of the same names; times in seconds."""

    acks: int
    compression: int
    compression_level: int | None
    max_in_flight: int
    request_timeout: float
    metadata_max_age: float
