"""The setting `coordinator.labels`: the partitions of an internal topic that belong to a label, and the names in them.

A name is the id of a group, or a transactional id. Its coordinator is the leader of the partition that stores it. Only
brokers with a label have the label's own partitions, so only these brokers coordinate the label's names.
`metadata.labels` places the partitions, `replica.internal_topic` finds the partition of a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from pylogd.config.labels import DEFAULT_LABEL, check_label
from pylogd.config.values import ConfigError, ConfigType, Mode, Setting

_NAME: Final = "coordinator.labels"
_ENTRY: Final = re.compile(r"([^:]+):(\d{1,6})-(\d{1,6}):(.+)")

COORDINATOR_LABELS: Final = Setting(
    _NAME,
    ConfigType.LIST,
    (),
    "Which brokers coordinate which groups and transactional ids, such as `online:0-19:pay-,online:0-19:shop-,"
    "logs:20-39:log-`: each entry is a label, the first and the last of its partitions, and a prefix of ids. Ids with "
    "the prefix are stored in these partitions of `__consumer_offsets` and `__transaction_state`, which are only on "
    "brokers that carry the label; all other ids in the partitions that no entry names. Of several prefixes the "
    "longest counts. It becomes a setting of these topics when they are created, and can't be changed then. Empty: any "
    "broker may coordinate. Set it to the same value on all brokers. (Only in pylogd; see docs/labels.md.)",
    "Topics",
)

#: The setting that brokers give to topics that they create.
LABELS_OF_NEW_TOPICS: Final = (DEFAULT_LABEL, COORDINATOR_LABELS)

TOPIC_COORDINATOR_LABELS: Final = COORDINATOR_LABELS._replace(
    group="Topic",
    mode=Mode.DYNAMIC,
    doc="The `coordinator.labels` of the brokers, as they were when `__consumer_offsets` or `__transaction_state` was "
    "created. Other topics can't have it, and it can't be changed: groups would lose their offsets. (Only in pylogd.)",
)


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
