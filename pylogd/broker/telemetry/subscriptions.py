"""Decide which metrics a client is asked for, by the subscriptions that match it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from pylogd.base.limits.expressions import InvalidExpression, check
from pylogd.base.limits.names import MAX_CLIENT_ID
from pylogd.base.limits.shares import NOBODY, Share
from pylogd.broker.metadata.named_configs import ClientMetricsConfigs
from pylogd.config.client_metrics import ALL, INTERVAL, MATCH, METRICS, parse_match, parse_metrics

#: The milliseconds between two requests of a client that no subscription matches.
DEFAULT_INTERVAL_MS: Final = 300_000


class ClientIdentity(NamedTuple):
    """The attributes of a client for `match`.

    instance: the client instance id, 16 bytes.
    software: name and version; empty if they are unknown.

    share: the share in which it counts, which `match` does not use.
    """

    instance: bytes
    client_id: str
    software: tuple[str, str]
    host: str
    port: int
    share: Share = NOBODY

    def attributes(self) -> Mapping[str, str]:
        """Return the values that `match` expressions of subscriptions are compared with."""
        name, version = self.software
        return {
            "client_instance_id": str(UUID(bytes=self.instance)),
            "client_id": self.client_id[:MAX_CLIENT_ID],
            "client_software_name": name[:MAX_CLIENT_ID],
            "client_software_version": version[:MAX_CLIENT_ID],
            "client_source_address": self.host,
            "client_source_port": str(self.port),
        }


class Wanted(NamedTuple):
    """The metrics that a client is asked for.

    metrics: the prefixes of names, in order; an empty tuple means no metrics.
    """

    metrics: tuple[str, ...]
    interval_ms: int


def wanted_of(configs: ClientMetricsConfigs, client: ClientIdentity) -> Wanted:
    """Return the union of all subscriptions that match a client."""
    metrics: set[str] = set()
    interval = DEFAULT_INTERVAL_MS
    attributes = client.attributes()
    for subscription in _matching(configs, attributes):
        metrics.update(parse_metrics(subscription.get(METRICS, "")))
        interval = min(interval, int(subscription.get(INTERVAL, DEFAULT_INTERVAL_MS)))
    return Wanted((ALL,) if ALL in metrics else tuple(sorted(metrics)), interval)


def _matching(configs: ClientMetricsConfigs, attributes: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    for name in configs.names():
        subscription = configs.get(name)
        expressions = parse_match(subscription.get(MATCH, ""))
        if all(_matches(expression, attributes[attribute]) for attribute, expression in expressions.items()):
            yield subscription


def _matches(expression: str, text: str) -> bool:
    try:
        return check(expression).fullmatch(text) is not None
    except InvalidExpression:  # this broker lacks a package that the subscription's first broker had
        return False
