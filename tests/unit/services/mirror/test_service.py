"""The mirror's process: what it does when it is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.task import Clock

from pylogd.services.mirror.copying import Copier
from pylogd.services.mirror.feeds import RouteFigures
from pylogd.services.mirror.service import MirrorService
from tests.fakes.metadata import InlineStore, result_of

_FILE = """
metadata.store = "."
[cluster.a]
bootstrap.servers = "127.0.0.1:1"
[cluster.b]
bootstrap.servers = "127.0.0.1:2"
[[route]]
source = "a"
target = "b"
topics = ".*"
"""


class _SlowCopier:
    """A copier whose last commit takes until `has_ended` is set."""

    has_ended = stopped = False
    held: frozenset[Any] = frozenset()

    def stop(self) -> None:
        self.stopped = True

    def figures(self) -> dict[str, RouteFigures]:
        return {}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MirrorService:
    (tmp_path / "mirror.toml").write_text(_FILE)
    store = InlineStore(tmp_path / "store")
    monkeypatch.setattr("pylogd.services.mirror.service.open_store", lambda *_: store)
    made = MirrorService(clock, tmp_path / "mirror.toml", controls=False)
    result_of(made.start())
    return made


def test_a_stop_waits_for_the_last_commit_however_long_it_takes(service: MirrorService, clock: Clock) -> None:
    """The file is looked at each second, which must not end the copying meanwhile."""
    copier, worker = _SlowCopier(), service.worker
    assert worker is not None
    worker.copiers["b"] = cast(Copier, copier)
    stopped = service.stop()
    for _ in range(5):
        clock.advance(1)
        assert copier.stopped and not stopped.called and service.worker is worker
    copier.has_ended = True
    clock.pump([0.5] * 4)
    result_of(stopped)
    assert service.worker is None
