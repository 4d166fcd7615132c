"""Control how many bytes per second lagging consumers may read from one disk, by how busy the disk is.

Strategy: this is a proportional controller with a dead band. Once a second it gets the disk's utilisation, which it
smooths (half the new value, half the old). Above the band the rate is multiplied by target / utilisation, where the
target is the middle of the band. Below the band, while a connection waits, it is multiplied by the same, but by 1.25 at
most. Within the band it does not change. The smoothed value is about two seconds behind the real one, so cuts are
bounded too. Below half of the read rate at which the disk would be in the band, cuts are small, since then the reads
were granted earlier, or are made by others.

Rules: there is no limit until the disk is above the band. The limit is lifted when the disk has been below the band,
and no connection had to wait, for `QUIET_SECONDS`. The rate is never below `least`, whatever keeps the disk busy. It
does not grow above twice the rate in use, so that a limit that was not reached for a while still has an effect later.

tests/property/test_read_rate.py has simulated disks.
Source: the talk's band, 60 to 70 % of utilisation.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: The limit is lifted after this many seconds below the band in which no connection had to wait.
QUIET_SECONDS: Final = 10
_NEW_SHARE: Final = 0.5  # the weight of the new value in a smoothed one
_LEAST_FACTOR: Final = 0.6
_GENTLE_FACTOR: Final = 0.9
_MOST_FACTOR: Final = 1.25
#: A limit of this share of the rate that would alone bring the disk into the band is low enough; a lower one may be too
#: low.
_PLAUSIBLE_SHARE: Final = 0.5
_MOST_UNUSED: Final = 2.0


class Band(NamedTuple):
    """The lowest and the highest utilisation of a disk to aim at; 1.0 is a disk that is always busy."""

    low: float
    high: float

    @property
    def target(self) -> float:
        """The middle of the band."""
        return (self.low + self.high) / 2


class ReadRate:
    """The limit of one disk.

    limit: bytes per second, None without a limit.
    utilisation: the smoothed utilisation, 0 to 1.
    """

    __slots__ = ("_quiet", "limit", "utilisation")

    def __init__(self) -> None:
        self.limit: float | None = None
        self.utilisation = 0.0
        self._quiet = 0

    def observe(
        self, utilisation: float, read_rate: float, granted: float, waited: bool, band: Band, least: float
    ) -> None:
        """Adjust the limit after a second.

        utilisation: the share of the second in which the disk was busy.
        read_rate: the bytes that were read from the disk in total.
        granted: the bytes that lagging consumers read.
        waited: whether a lagging consumer had to wait.
        least: the lowest limit.
        """
        self.utilisation += (utilisation - self.utilisation) * _NEW_SHARE
        if self.limit is None:
            if self.utilisation > band.high:
                self._quiet = 0
                self.limit = max(read_rate * band.target / self.utilisation, least)
            return
        self._quiet = 0 if waited or self.utilisation >= band.low else self._quiet + 1
        if self._quiet >= QUIET_SECONDS:
            self.limit = None
            return
        factor = band.target / max(self.utilisation, 0.01)
        limit = self.limit
        if self.utilisation > band.high:
            most = _PLAUSIBLE_SHARE * read_rate * factor
            limit = min(limit, _MOST_UNUSED * granted) * max(factor, _LEAST_FACTOR if limit > most else _GENTLE_FACTOR)
        elif self.utilisation < band.low and waited:
            limit *= min(factor, _MOST_FACTOR)
        self.limit = max(limit, least)
