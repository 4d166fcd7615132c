"""The bytes that the answer to one request may have, without records.

A handler whose answer can be much larger than its request asks the budget before it builds each part. A part that no
longer fits is answered with an error that names the setting, so the client can ask for less at a time.
"""

from __future__ import annotations


class AnswerBudget:
    """The bytes that an answer may still have.

    most: the limit (`response.max.bytes`).
    spent: the bytes taken so far.
    """

    __slots__ = ("most", "spent")

    def __init__(self, most: int) -> None:
        self.most = most
        self.spent = 0

    def take(self, size: int) -> bool:
        """Take `size` bytes of the limit. Return False, and take nothing, if fewer bytes are left."""
        if self.spent + size > self.most:
            return False
        self.spent += size
        return True

    @property
    def refusal(self) -> str:
        """The text for a client that asked for more than fits."""
        return (
            f"The answer would have more than {self.most} bytes (response.max.bytes of the broker); "
            "ask for less in one request."
        )
