"""Fixtures for clients of several fake brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pylogd.client import Admin
from pylogd.client.blocking.cluster import Cluster
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.metadata import MetadataResponse, MetadataResponseBroker
from tests.fakes.broker import FakeBroker
from tests.fakes.clock import FakeClock

_NOWHERE = ("127.0.0.1", 1)
_MOST_QUESTIONS = 200


@pytest.fixture
def brokers() -> Iterator[dict[int, FakeBroker]]:
    """Brokers 1, 2 and 3; 4 is known too, and nobody listens at its address."""
    with FakeBroker() as one, FakeBroker() as two, FakeBroker() as three:
        made = {1: one, 2: two, 3: three}
        known = [MetadataResponseBroker(node, each.host, each.port) for node, each in made.items()]
        known.append(MetadataResponseBroker(4, *_NOWHERE))
        for each in made.values():
            each.on(ApiKey.METADATA, *[lambda _: MetadataResponse(brokers=known, controller_id=1)] * _MOST_QUESTIONS)
        yield made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def admin(brokers: dict[int, FakeBroker], clock: FakeClock) -> Iterator[Admin]:
    with Cluster(brokers[1].address, clock=clock) as cluster, Admin(cluster) as admin:
        yield admin
