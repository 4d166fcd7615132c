"""Labels: those that a broker carries, that a topic names, and that groups and transactional ids have.

A topic that names a label (`placement.label`) has its replicas only on brokers that carry it (`broker.labels`).
`metadata.labels` has the rule; `docs/labels.md` explains it.

`coordinator.labels` has the partitions of an internal topic that belong to a label, and the names in them. A name is
the id of a group, or a transactional id. Its coordinator is the leader of the partition that stores it. Only brokers
with a label have the label's own partitions, so only these brokers coordinate the label's names. `metadata.labels`
places the partitions, `replica.internal_topic` finds the partition of a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from pylogd.config.tables import SETTINGS, TOPIC_SETTINGS
from pylogd.config.values import ConfigError

PLACEMENT_LABEL: Final = TOPIC_SETTINGS["placement.label"]
COORDINATOR_LABELS: Final = SETTINGS["coordinator.labels"]
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_NAME: Final = COORDINATOR_LABELS.name
_ENTRY: Final = re.compile(r"([^:]+):(\d{1,6})-(\d{1,6}):(.+)")


def check_label(label: str, setting: str) -> None:
    """Raise ConfigError unless `label`, a value of a setting or a part of one, is a valid name of a label."""
    if not _LEGAL.fullmatch(label):
        legal = 'a label has 1 to 100 letters, digits, ".", "_" and "-"'
        raise ConfigError(f'{setting} = "{label[:200]}" is not allowed: {legal}', setting)


def check_labels(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if one of a broker's labels is invalid."""
    for label in values["broker.labels"]:
        check_label(label, "broker.labels")
    if values["default.placement.label"]:
        check_label(values["default.placement.label"], "default.placement.label")


@dataclass(frozen=True, slots=True)
class CoordinatorLabels:
    """A parsed value.

    ranges: the first and the last partition of each label.
    prefixes: the label of each prefix.
    """

    ranges: Mapping[str, tuple[int, int]]
    prefixes: Mapping[str, str]

    def label_at(self, index: int) -> str | None:
        """Return the label that has a partition; None if none has."""
        return next((label for label, (first, last) in self.ranges.items() if first <= index <= last), None)

    def label_of(self, name: str) -> str | None:
        """Return the label of an id; None if no prefix matches."""
        fitting = [prefix for prefix in self.prefixes if name.startswith(prefix)]
        return self.prefixes[max(fitting, key=len)] if fitting else None

    def partitions(self, name: str, count: int) -> Sequence[int]:
        """Return those of `count` partitions that may store an id, in ascending order."""
        label = self.label_of(name)
        return [index for index in range(count) if self.label_at(index) == label]

    def check_count(self, count: int) -> None:
        """Raise ConfigError unless `count` partitions include those of all labels, and some without a label."""
        for label, (first, last) in self.ranges.items():
            if last >= count:
                raise _wrong(f"the label {label} has the partitions {first}-{last}, and the topic has only {count}")
        if self.ranges and all(self.label_at(index) is not None for index in range(count)):
            raise _wrong(f"all {count} partitions have labels: leave some for ids without one of the prefixes")


@lru_cache(maxsize=16)
def parse_coordinators(text: str) -> CoordinatorLabels:
    """Parse a value with commas between the entries. Raises ConfigError."""
    ranges: dict[str, tuple[int, int]] = {}
    prefixes: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        found = _ENTRY.fullmatch(entry)
        if found is None:
            raise _wrong(f'"{entry[:200]}" is not LABEL:FIRST-LAST:PREFIX')
        label, first, last, prefix = found[1], int(found[2]), int(found[3]), found[4]
        check_label(label, _NAME)
        if first > last:
            raise _wrong(f"{first}-{last} is no range of partitions")
        if ranges.setdefault(label, (first, last)) != (first, last):
            raise _wrong(f"the label {label} has two ranges of partitions: give it one")
        if prefixes.setdefault(prefix, label) != label:
            raise _wrong(f'the prefix "{prefix[:200]}" has two labels')
    ordered = sorted((first, last, label) for label, (first, last) in ranges.items())
    for (_, end, one), (begin, _, other) in pairwise(ordered):
        if begin <= end:
            raise _wrong(f"the labels {one} and {other} both have partition {begin}")
    return CoordinatorLabels(ranges, prefixes)


def _wrong(why: str) -> ConfigError:
    return ConfigError(f"{_NAME}: {why}", _NAME)
