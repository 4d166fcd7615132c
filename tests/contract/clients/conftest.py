"""The faces of the client, each on a real broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pylogd.local.broker import BrokerProcess
from tests.contract.clients.helpers import name
from tests.faces import FACES, Face


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if elsewhere := os.environ.get("PYLOGD_TEST_BOOTSTRAP"):
        yield elsewhere
        return
    folder: Path = tmp_path_factory.mktemp("broker")
    settings = {
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "200",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    broker = BrokerProcess(folder / "data", folder / "log", settings)
    yield broker.address
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest, address: str) -> Iterator[Face]:
    face = FACES[request.param](address)
    yield face
    face.close()


@pytest.fixture
def admin(face: Face) -> Any:
    return face.admin()


@pytest.fixture
def topic(admin: Any) -> str:
    """A new topic of two partitions."""
    made = name("topic")
    admin.create_topic(made, 2)
    assert len(admin.describe_topic(made).partitions) == 2
    return made


#: The options of a member by either group protocol, so that it notices soon what happens.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {"heartbeat_interval": 0.2, "metadata_max_age": 0.5},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.fixture(params=list(PROTOCOLS))
def member(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of a group's member, by each protocol."""
    return PROTOCOLS[request.param]
