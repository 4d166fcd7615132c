"""What a long garbage collection leaves is not searched again for a while."""

from __future__ import annotations

from pylogd.process.tuning import LongCollections


class Collector:
    """Stands for the module `gc`, with its clocks. calls: what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.used = self.now = 0.0
        self.callback = LongCollections(self, lambda: self.used, lambda: self.now)

    def freeze(self) -> None:
        self.calls.append("freeze")

    def unfreeze(self) -> None:
        self.calls.append("unfreeze")

    def collect(self, generation: int, seconds: float) -> list[str]:
        """Run a collection. Return what was called meanwhile."""
        self.calls = []
        self.callback("start", {"generation": generation})
        self.used += seconds
        self.callback("stop", {"generation": generation})
        return self.calls


def test_what_a_long_collection_leaves_is_frozen() -> None:
    collector = Collector()
    assert collector.collect(2, 0.001) == []
    assert collector.collect(2, 0.4) == ["freeze"]
    assert collector.collect(2, 0.001) == []
    assert collector.collect(1, 0.05) == ["freeze"]


def test_everything_is_searched_now_and_then() -> None:
    collector = Collector()
    collector.collect(2, 0.4)
    collector.now = 599.0
    assert collector.collect(2, 0.4) == ["freeze"]
    collector.now = 600.0
    assert collector.collect(1, 0.001) == [], "it would search the young only"
    assert collector.collect(2, 0.4) == ["unfreeze", "freeze"]
    collector.now = 1199.0
    assert collector.collect(2, 0.001) == []
    collector.now = 1200.0
    assert collector.collect(2, 0.001) == ["unfreeze"]
    collector.now = 5000.0
    assert collector.collect(2, 0.001) == [], "nothing is frozen"
