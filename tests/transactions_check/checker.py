"""Find what transactions must not allow, in a history: in the style of Jepsen's Kafka workload.

Looked for: lost writes, aborted reads, intermediate reads, torn transactions, duplicates, copies that are missing or
double, records out of order, reads that were taken back, last stable offsets that go back, and cycles of transactions
(`cycles`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.transactions_check.cycles import cycles
from tests.transactions_check.history import History, Outcome, Reading


def check(history: History, sources: set[str], copies: set[str]) -> list[str]:
    """Return a sentence for each anomaly.

    sources: the topics whose records are copied. copies: the topics that have to have a copy of each of them.
    """
    return [
        *_lost(history),
        *_aborted(history),
        *_torn(history),
        *_duplicates(history),
        *_copies(history, sources, copies),
        *_taken_back(history),
        *_order(history),
        *_stable_offsets(history),
        *cycles(history),
    ]


def _numbers(reading: Reading) -> dict[str, Counter[int]]:
    """Return how often each number of each transaction is in a reading."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for _, value in reading:
        found[value.transaction][value.number] += 1
    return found


def _lost(history: History) -> Iterator[str]:
    there = _numbers(history.final)
    for transaction, outcome in history.outcomes.items():
        if outcome is Outcome.COMMITTED and transaction not in there:
            yield f"lost write: {transaction} was committed, and nothing of it is there"


def _aborted(history: History) -> Iterator[str]:
    for reader, reading in {**history.readings, "the end": history.final}.items():
        for place, value in reading:
            if history.outcomes.get(value.transaction) is Outcome.ABORTED:
                yield f"aborted read: {reader} got {value.name}, which was aborted, at {tuple(place)}"


def _torn(history: History) -> Iterator[str]:
    """Of each transaction that is there, everything has to be there, whatever its producer was told."""
    sizes = {value.transaction: value.of for _, value in history.final}
    for transaction, numbers in _numbers(history.final).items():
        missing = set(range(sizes[transaction])) - set(numbers)
        if missing:
            yield f"torn transaction: of {transaction}, of {sizes[transaction]} records, {sorted(missing)} are missing"


def _duplicates(history: History) -> Iterator[str]:
    for transaction, numbers in _numbers(history.final).items():
        for number, count in numbers.items():
            if count > 1:
                yield f"duplicate: {transaction}#{number} is there {count} times"
    for reader, reading in history.readings.items():
        for place, count in Counter(place for place, _ in reading).items():
            if count > 1:
                yield f"duplicate: {reader} got {tuple(place)} {count} times"


def _copies(history: History, sources: set[str], copies: set[str]) -> Iterator[str]:
    originals = {value.name for place, value in history.final if place.topic in sources}
    for topic in sorted(copies):
        copied = Counter(value.cause for place, value in history.final if place.topic == topic)
        for name in sorted(originals - copied.keys()):
            yield f"lost copy: {topic} has no copy of {name}, though its offset is committed"
        for name in sorted(copied.keys() - originals):
            yield f"aborted read: {topic} has a copy of {name}, which is not committed"
        for name, count in copied.items():
            if count > 1:
                yield f"duplicate: {topic} has {count} copies of {name}"


def _taken_back(history: History) -> Iterator[str]:
    """What a reader of committed records got has to be there at the end, at the same place."""
    final = dict(history.final)
    for reader, reading in history.readings.items():
        for place, value in reading:
            if final.get(place) != value:
                yield f"intermediate read: {reader} got {value.name} at {tuple(place)}, where now is {final.get(place)}"


def _order(history: History) -> Iterator[str]:
    """Records of a producer have its order in each partition; readers get ascending offsets."""
    last: dict[tuple[str, int, str], tuple[int, int]] = {}
    for place, value in sorted(history.final):
        producer, _, number = value.transaction.rpartition("-")
        key = place.topic, place.partition, producer
        at = int(number), value.number
        if at < last.get(key, (-1, -1)):
            yield f"out of order: {value.name} at {tuple(place)} stands behind a later record of its producer"
        last[key] = at
    for reader, reading in history.readings.items():
        seen: dict[tuple[str, int], int] = {}
        for place, _ in reading:
            if place.offset <= seen.get(place[:2], -1):
                yield f"out of order: {reader} got offset {place.offset} of {place[:2]} after {seen[place[:2]]}"
            seen[place[:2]] = place.offset


def _stable_offsets(history: History) -> Iterator[str]:
    """What is committed and shown to be so stays (KIP-207 also for a new leader)."""
    for watcher, told in history.stable.items():
        known: dict[tuple[str, int], int] = {}
        for topic, partition, offset in told:
            before = known.get((topic, partition), 0)
            if offset < before:
                yield f"stable offset went back: {watcher} was told {offset} of {topic}-{partition} after {before}"
            known[topic, partition] = offset
