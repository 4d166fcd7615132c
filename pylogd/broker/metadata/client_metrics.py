"""Subscriptions to the metrics of clients, in the nodes `/config/client-metrics/<subscription>`.

Must not know: clients, what they push, requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from pylogd.base.limits.expressions import InvalidExpression, check
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.named_configs import NamedConfigs
from pylogd.config import ConfigError
from pylogd.config.client_metrics import MATCH, check_subscription, parse_match
from pylogd.config.tables import CLIENT_METRICS_SETTINGS
from pylogd.store.interfaces import IMetadataStore
from pylogd.store.paths import CLIENT_METRICS_CONFIGS


class ClientMetricsConfigs(NamedConfigs):
    """The settings of all subscriptions, kept up to date. A subscription exists as long as it has settings."""

    def __init__(self, store: IMetadataStore, feed: ChangeFeed) -> None:
        super().__init__(store, feed, CLIENT_METRICS_CONFIGS, CLIENT_METRICS_SETTINGS, _checked)


def _checked(overrides: Mapping[str, str]) -> dict[str, str]:
    checked = check_subscription(overrides)
    for attribute, expression in parse_match(checked.get(MATCH, "")).items():
        try:
            check(expression)
        except InvalidExpression as error:
            raise ConfigError(f"match: {attribute}: {error}", MATCH) from error
    return checked
