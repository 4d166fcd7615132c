"""Ask several brokers at the same time, and ask a broker that does not answer only once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pylogd.base.errors import KafkaError, PylogdError, UnsupportedByBroker
from pylogd.client.core.admin.calls import Calls, Question


class Answers:
    """The answers of brokers to one operation.

    silent: brokers that did not answer, during this operation or before it.
    missed: the silent brokers that this operation needed.
    """

    def __init__(self, calls: Calls, silent: Iterable[int], timeout: float | None) -> None:
        """Do not ask `silent` brokers. Wait `timeout` seconds for answers; None means the client's timeout."""
        self.silent = set(silent)
        self.missed: set[int] = set()
        self._calls = calls
        self._timeout = timeout

    async def of(self, questions: Sequence[tuple[int, Question]]) -> list[Any]:
        """Return the answer to each question. Each has a broker's id and the request.

        The answer is None if the broker does not answer, and is silent from now on, or if it does not know the API.
        """
        silent = set(self.silent)
        asked = [one for node, one in questions if node not in silent]
        answers = iter(await self._calls.send_all(asked, self._timeout) if asked else [])
        found = []
        for node, _ in questions:
            answer = None if node in silent else next(answers)
            if isinstance(answer, PylogdError):
                if not isinstance(answer, (KafkaError, UnsupportedByBroker)):
                    self.silent.add(node)
                answer = None
            if node in self.silent:
                self.missed.add(node)
            found.append(answer)
        return found

    async def of_first(self, nodes: Iterable[int], ask: Callable[[int], Sequence[Question]]) -> list[Any] | None:
        """Return the answers of the first broker that answers all questions; None if no broker does.

        ask: returns the questions for a broker.
        """
        for node in nodes:
            if node not in self.silent:
                answers = await self.of([(node, one) for one in ask(node)])
                if all(answer is not None for answer in answers):
                    return answers
        return None
