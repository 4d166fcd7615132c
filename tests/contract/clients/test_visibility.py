"""What every face of the client promises after a change: all brokers show it, also the last that learns of it."""

from __future__ import annotations

import pytest

from tests.faces import FACES
from tests.fakes.late_brokers import CHANGES, LATE_ANSWERS, late_brokers


@pytest.mark.parametrize("kind", list(FACES))
@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change_is_done_when_all_brokers_show_it(kind: str, name: str) -> None:
    change = CHANGES[name]
    with late_brokers(change) as late:
        face = FACES[kind](late.address)
        try:
            change.make(face.admin())
            assert late.all_show_it
            assert len(late.answers[3]) > LATE_ANSWERS
        finally:
            face.close()
