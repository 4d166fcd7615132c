"""The parts of a sample that could not be read."""

from __future__ import annotations


class Gaps:
    """The parts of a sample that could not be read. nodes: brokers that failed. texts: for people."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.texts: list[str] = []

    def add(self, node: int | None, text: str) -> None:
        """Record a gap, and, if it was caused by a broker, the broker, which is not asked again."""
        if node is not None:
            self.nodes.add(node)
        self.texts.append(text)
