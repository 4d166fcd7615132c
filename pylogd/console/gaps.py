"""What a sample of a cluster could not find out."""

from __future__ import annotations


class Gaps:
    """What a sample could not find out. nodes: brokers that failed. texts: for people."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.texts: list[str] = []

    def add(self, node: int | None, text: str) -> None:
        """Note a gap, and the broker that is not to be asked again if there is one."""
        if node is not None:
            self.nodes.add(node)
        self.texts.append(text)
