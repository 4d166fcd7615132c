"""Check, parse and describe the settings of subscriptions to the metrics of clients (KIP-714).

A subscription says which clients push which of their metrics to the broker, and how often. docs/monitoring.md explains
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pylogd.config.lookup import known
from pylogd.config.settings import ConfigEntry, ConfigSource, ConfigSynonym
from pylogd.config.tables import CLIENT_METRICS_SETTINGS
from pylogd.config.values import ConfigError

METRICS: Final = "metrics"
INTERVAL: Final = "interval.ms"
MATCH: Final = "match"
#: The metric that means all metrics.
ALL: Final = "*"
#: The attributes that `match` can compare.
ATTRIBUTES: Final = (
    "client_id", "client_instance_id", "client_software_name", "client_software_version", "client_source_address",
    "client_source_port",
)  # fmt: skip
_NUMBER: Final = re.compile(r"\s*-?[0-9]+\s*")


class ImpossibleSubscription(ConfigError):
    """A setting that subscriptions do not have, or an interval out of range. Kafka has an error code for both."""


def check_subscription(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a subscription in canonical spelling. Raises ConfigError, or ImpossibleSubscription.

    The code that matches expressions checks whether they are valid.
    """
    checked: dict[str, str] = {}
    for name, raw in overrides.items():
        try:
            setting = known(CLIENT_METRICS_SETTINGS.get, CLIENT_METRICS_SETTINGS, name, "setting of client metrics")
        except ConfigError as error:
            raise ImpossibleSubscription(str(error), name) from error
        try:
            checked[name] = setting.format(setting.parse(raw)) or ""
        except ConfigError as error:
            if _NUMBER.fullmatch(raw):
                raise ImpossibleSubscription(str(error), name) from error
            raise
    parse_match(checked.get(MATCH, ""))
    return checked


def parse_metrics(text: str) -> tuple[str, ...]:
    """Return the prefixes of `metrics`. Raises ConfigError."""
    return _members(METRICS, text)


def _members(name: str, text: str) -> tuple[str, ...]:
    members = CLIENT_METRICS_SETTINGS[name].parse(text)
    assert isinstance(members, tuple)
    return members


def parse_match(text: str) -> dict[str, str]:
    """Return the expressions of `match` by their attributes. Raises ConfigError."""
    found: dict[str, str] = {}
    for member in _members(MATCH, text):
        attribute, equals, expression = (part.strip() for part in member.partition("="))
        if attribute not in ATTRIBUTES or not equals or not expression:
            allowed = ", ".join(ATTRIBUTES)
            raise ConfigError(f'match: "{member[:200]}" is not ATTRIBUTE=EXPRESSION with one of {allowed}', MATCH)
        if attribute in found:
            raise ConfigError(f"match has {attribute} twice", MATCH)
        found[attribute] = expression
    return found


def describe_subscription(overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Return every setting of a subscription in the form of DescribeConfigs."""
    entries = []
    for name, setting in CLIENT_METRICS_SETTINGS.items():
        synonyms = [ConfigSynonym(name, setting.format(setting.default), ConfigSource.DEFAULT)]
        if name in overrides:
            synonyms.insert(0, ConfigSynonym(name, overrides[name], ConfigSource.CLIENT_METRICS))
        first = synonyms[0]
        entries.append(
            ConfigEntry(name, first.value, first.source, False, False, setting.type, setting.doc, tuple(synonyms))
        )
    return entries
