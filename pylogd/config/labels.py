"""The settings of placement: the labels that a broker carries, and the label that a topic names.

A topic that names a label (`placement.label`) has its replicas only on brokers that carry it (`broker.labels`).
`metadata.labels` has the rule; `docs/labels.md` explains it. `BROKER_LABELS` and `DEFAULT_LABEL` are parts of the table
in `broker`; `PLACEMENT_LABEL` is a part of the table in `topic`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pylogd.config.values import ConfigError, ConfigType, Mode, Setting

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")

BROKER_LABELS: Final = Setting(
    "broker.labels",
    ConfigType.LIST,
    (),
    "The labels that the broker carries, such as `online,ssd`. A topic whose `placement.label` is one of these "
    "labels has its replicas only on brokers that carry this label. If a broker loses a label, its replicas stay "
    "where they are, and `pylogd cluster describe` lists them as misplaced. (Only in pylogd; see docs/labels.md.)",
    "Identity and addresses",
    mode=Mode.DYNAMIC,
)

DEFAULT_LABEL: Final = Setting(
    "default.placement.label",
    ConfigType.STRING,
    "",
    "The label of topics that are created without a `placement.label`: by clients, automatically, or by brokers for "
    "their own state. It becomes a setting of the topic, so later changes of the default do not affect the topic. "
    "Empty: any broker. Set it to the same value on all brokers. (Only in pylogd.)",
    "Topics",
    mode=Mode.DYNAMIC,
)

PLACEMENT_LABEL: Final = Setting(
    "placement.label",
    ConfigType.STRING,
    "",
    "The label of the brokers that may have replicas of the topic (`broker.labels`); empty for any broker. Accepted "
    "only if all replicas are on brokers that carry the label: `pylogd topics relabel` moves them and changes the "
    "label in one step. The default for a new topic is the broker's `default.placement.label`. (Only in pylogd.)",
    "Topic",
    mode=Mode.DYNAMIC,
)


def check_label(label: str, setting: str) -> None:
    """Raise ConfigError unless `label`, a value of a setting or a part of one, is a valid name of a label."""
    if not _LEGAL.fullmatch(label):
        legal = 'a label has 1 to 100 letters, digits, ".", "_" and "-"'
        raise ConfigError(f'{setting} = "{label[:200]}" is not allowed: {legal}', setting)


def check_labels(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if one of a broker's labels is invalid."""
    for label in values[BROKER_LABELS.name]:
        check_label(label, BROKER_LABELS.name)
    if values[DEFAULT_LABEL.name]:
        check_label(values[DEFAULT_LABEL.name], DEFAULT_LABEL.name)
