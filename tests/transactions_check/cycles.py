"""Find cycles of transactions: orders that contradict each other, in the style of Elle, which checks for Jepsen.

Strategy: a graph of moments. A transaction has its steps, in the order of its producer; the moment at which each of its
records is written, between sending and acknowledgement; and the moment at which it is decided to be committed. Then:

- write-write: the records of a partition are written in the order of their offsets;
- write-read: a transaction is decided before any of its records is read;
- real time: what was done before something else began is before it, by one clock.

A cycle of the first two alone is sought first, then one with real time.

What is allowed: two transactions that are open at the same time may overtake each other from partition to partition,
since Kafka orders partitions, not transactions. That is a cycle (G0) for a database, and Jepsen allows it for Kafka. In
this graph it is none, because their moments of writing lie side by side. `overtaking` counts such pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, pairwise

from tests.transactions_check.history import Action, History, Position, Value

#: ("step", transaction, index), ("write", transaction, number), or ("decided", transaction, 0)
Moment = tuple[str, str, int]
#: By moment: what is before it, and why.
Graph = dict[Moment, dict[Moment, str]]
_WRITES, _READS, _TIME = "write-write", "write-read", "real time"


def cycles(history: History) -> Iterator[str]:
    """Yield a sentence for a cycle without real time, and for one with it, if there are any."""
    graph = _graph(history)
    found = _cycle(graph)
    if found is None:
        _add_real_time(graph, history)
        found = _cycle(graph)
    if found is not None:
        yield found


def overtaking(history: History) -> int:
    """Return how many pairs of transactions wrote next to each other in both orders, in different partitions."""
    orders = {(first, second) for first, second in _neighbours(history) if first != second}
    return sum((second, first) in orders for first, second in orders) // 2


def _in_order(history: History) -> Iterator[list[tuple[Position, Value]]]:
    """Yield the committed records of each partition in the order of their offsets, of duplicates the first."""
    once: dict[str, tuple[Position, Value]] = {}
    for one in sorted(history.final):
        once.setdefault(one[1].name, one)
    for _, group in groupby(once.values(), lambda one: one[0][:2]):
        yield list(group)


def _neighbours(history: History) -> Iterable[tuple[str, str]]:
    for partition in _in_order(history):
        yield from ((first.transaction, second.transaction) for (_, first), (_, second) in pairwise(partition))


def _graph(history: History) -> Graph:
    graph: Graph = defaultdict(dict)
    committed = {value.transaction for _, value in history.final}
    for transaction in committed:
        decided = "decided", transaction, 0
        previous: Moment | None = None
        for index, step in enumerate(history.steps.get(transaction, ())):
            moment = "step", transaction, index
            if previous is not None:
                graph[moment][previous] = ""
            previous = moment
            if step.action is Action.SEND:
                graph["write", transaction, step.number][moment] = ""
            elif step.action is Action.ACKNOWLEDGED:
                graph[moment]["write", transaction, step.number] = ""
            elif step.action is Action.COMMIT:
                graph[decided][moment] = ""
            elif step.action is Action.COMMITTED:
                graph[moment][decided] = ""
            for other in step.read & committed:
                graph[moment]["decided", other, 0] = _READS
    for partition in _in_order(history):
        for _, value in partition:
            graph["decided", value.transaction, 0].setdefault(("write", value.transaction, value.number), "")
        for (_, first), (_, second) in pairwise(partition):
            why = _WRITES if first.transaction != second.transaction else ""
            before = "write", first.transaction, first.number
            graph["write", second.transaction, second.number].setdefault(before, why)
    return graph


def _add_real_time(graph: Graph, history: History) -> None:
    """Put all steps that are in the graph into one order."""
    committed = {value.transaction for _, value in history.final}
    steps: list[tuple[float, Moment]] = [
        (step.at, ("step", transaction, index))
        for transaction in committed
        for index, step in enumerate(history.steps.get(transaction, ()))
    ]
    for (_, before), (_, after) in pairwise(sorted(steps)):
        graph[after].setdefault(before, _TIME)


def _cycle(graph: Graph) -> str | None:
    """Return a sentence for a cycle of a graph, None if it has none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        moments: list[Moment] = error.args[1]
        found = [(before[1], graph[after][before], after[1]) for before, after in pairwise(moments)]
        kinds = sorted({why for _, why, _ in found if why})
        steps = [f"{first} is before {second} ({why})" for first, why, second in found if why and first != second]
        return f"cycle ({', '.join(kinds) or 'order of a producer'}): {'; '.join(steps) or moments}"
    return None
