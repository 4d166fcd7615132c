"""Real brokers answer refused requests as the conformance suite says, which compared Apache Kafka with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import refusals


@pytest.mark.parametrize("brokers", refusals.SETTINGS)
def test_refused_requests(brokers: str, tmp_path: Path) -> None:
    cases = [one for one in refusals.CASES if one.brokers == brokers]
    with refusals.pylogd(tmp_path, refusals.SETTINGS[brokers]) as peer:
        found = refusals.answers(peer, cases)
    wrong = {one.title: found[one.title] for one in cases if set(found[one.title]) - {"NONE"} != one.errors}
    assert wrong == {}
