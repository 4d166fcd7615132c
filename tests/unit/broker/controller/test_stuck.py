"""A controller whose decisions do not get on is no controller: others have to learn of it."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from tests.unit.broker.controller.conftest import FakeCluster


def test_a_controller_whose_decisions_do_not_get_on_says_so_and_ends_its_term(
    three: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that never comes: the reactor runs on, so nothing else shows that nobody handles deaths."""
    three.make()
    controller = three.active
    assert controller is not None
    assert not controller.is_stuck(16.0)
    with monkeypatch.context() as patched:
        patched.setattr(three.store, "get", lambda *_: Deferred())
        controller._all_dirty = True
        controller._wake()
        three.settle()
        assert not controller.is_stuck(16.0), "it has just begun"
        three.clock.advance(15.9)
        assert not controller.is_stuck(16.0)
        three.clock.advance(0.2)
        assert controller.is_stuck(16.0)
        three.clock.advance(16.0)
        assert not controller.is_stuck(16.0)
        assert not controller.active


def test_a_controller_with_nothing_to_decide_is_never_stuck(three: FakeCluster) -> None:
    controller = three.active
    assert controller is not None
    three.clock.advance(1000.0)
    assert not controller.is_stuck(16.0)
