"""A small fleet: 36 partitions, three faults, expansion. `make fleet` has 1,000, and all faults.

The machine may be busy, so the bound is not the talk's; what is always true is that nothing acknowledged is lost, that
labels and racks are kept, and that everything is in use again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import preload
from tests.fleet.faults import FAULTS
from tests.fleet.load import compare
from tests.fleet.outage import LONGEST_SECONDS
from tests.fleet.run import FleetRun, Plan

ACTED = ("reactor", "disk of controller", "cut off")


@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(preload.why_not()), reason=preload.why_not() or "-")
def test_a_small_fleet_fails_over_and_loses_nothing(tmp_path: Path) -> None:
    faults = tuple(fault for fault in FAULTS if fault.short in ACTED)
    plan = Plan(36, 1, 1.0, bound=LONGEST_SECONDS, faults=faults, topics=1, mirrors=False)
    said: list[str] = []
    outcome = FleetRun(tmp_path, plan, said.append).run()
    assert outcome.faults == [], "\n".join(said)
    assert [len(one.outage.led) > 0 for one in outcome.outages] == [True] * len(ACTED)
    assert outcome.acknowledged > 0


def test_what_is_read_is_compared() -> None:
    place = "t", 0
    seen = [(0, b"a:0"), (1, b"probe:0"), (2, b"a:1")]
    assert compare(place, {0: b"a:0", 2: b"a:1", 1: b"probe:0"}, seen) == []
    (lost,) = compare(place, {0: b"a:0", 3: b"a:2"}, seen)
    assert "1 acknowledged records are lost, the first at offset 3" in lost
    (other,) = compare(place, {2: b"a:2"}, seen)
    assert "lost" in other
    (twice,) = compare(place, {}, [(0, b"a:0"), (1, b"a:0")])
    assert "twice" in twice
    (gap,) = compare(place, {}, [(0, b"a:0"), (2, b"a:1")])
    assert "gaps" in gap
