"""The parts of a sample that could not be read."""

from __future__ import annotations


class Gaps:
    """The parts of a sample that could not be read.

    nodes: the brokers that failed.
    texts: descriptions for users.
    """

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.texts: list[str] = []

    def add(self, node: int | None, text: str) -> None:
        """Record a gap, and the broker that caused it, if any, which is not asked again."""
        if node is not None:
            self.nodes.add(node)
        self.texts.append(text)
