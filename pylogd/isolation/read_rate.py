"""Control how many bytes per second lagging consumers may read from one disk, by how busy the disk is.

Strategy: a proportional controller with a dead band. Once a second it is told the disk's utilisation, which it smooths
(half the new value, half the old). Above the band the rate is multiplied by target / utilisation, where the target is
the middle of the band; below it, by the same while somebody waits, but by 1.25 at most. Within the band it stays. The
smoothed value follows the real one by about two seconds, so cuts are bounded too; and below half of the read rate at
which the disk would be in the band they are small, since then what is read was granted earlier, or is read by others.

Rules: there is no limit until the disk is above the band, and none again when it is below and nobody has had to wait
for `QUIET_SECONDS`. The rate is never below `least`, whatever keeps the disk busy. It does not grow above twice what is
used, so that a limit that nobody has reached for a while still means something when somebody does.

tests/property/test_read_rate.py has simulated disks.
Source: the talk's band, 60 to 70 % of utilisation.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: After so many seconds below the band in which nobody had to wait, the limit is lifted.
QUIET_SECONDS: Final = 10
_NEW_SHARE: Final = 0.5  # of a smoothed value, in the next one
_LEAST_FACTOR: Final = 0.6
_GENTLE_FACTOR: Final = 0.9
_MOST_FACTOR: Final = 1.25
#: A limit of so much of what would bring the disk into the band by itself is low enough: a lower one may be too low.
_PLAUSIBLE_SHARE: Final = 0.5
_MOST_UNUSED: Final = 2.0


class Band(NamedTuple):
    """The lowest and the highest utilisation of a disk to aim at; 1.0 is a disk that is always busy."""

    low: float
    high: float

    @property
    def target(self) -> float:
        """The middle."""
        return (self.low + self.high) / 2


class ReadRate:
    """The limit of one disk. limit: bytes per second, None without a limit. utilisation: smoothed, 0 to 1."""

    __slots__ = ("_quiet", "limit", "utilisation")

    def __init__(self) -> None:
        self.limit: float | None = None
        self.utilisation = 0.0
        self._quiet = 0

    def observe(
        self, utilisation: float, read_rate: float, granted: float, waited: bool, band: Band, least: float
    ) -> None:
        """Adjust the limit after a second.

        utilisation: the share of the second in which the disk was busy. read_rate: bytes that were read from it in all.
        granted: those of lagging consumers. waited: whether one of these had to wait. least: the lowest limit.
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
