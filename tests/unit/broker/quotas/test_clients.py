"""Which quota applies to a client, and which clients share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from pylogd.broker.metadata.entity_configs import DEFAULT_NAME, Entity
from pylogd.broker.quotas.clients import ClientQuotas, Usage, describe
from pylogd.broker.quotas.limits import QuotaKind, QuotaTable, read_limit, write_limit
from pylogd.config import Settings

NAMES = ["a", "b", "c"]
_NAME = st.sampled_from([None, DEFAULT_NAME, *NAMES])
_ENTITIES = st.builds(Entity, _NAME, _NAME, st.none()).filter(lambda entity: entity != Entity())


class Configs:
    """Settings of entities that the test sets."""

    def __init__(self) -> None:
        self.configs: dict[Entity, Mapping[str, str]] = {}
        self.listeners: list[Any] = []

    def subscribe(self, listener: Any) -> None:
        self.listeners.append(listener)

    def put(self, entity: Entity, **values: object) -> None:
        self.configs[entity] = {name: str(value) for name, value in values.items()}
        self.tell()

    def tell(self) -> None:
        for listener in self.listeners:
            listener(())


class Case:
    def __init__(self, **settings: object) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.time = Clock()
        self.configs = Configs()
        self.quotas = ClientQuotas(
            cast(Any, self.configs), Settings({"node.id": 1, "log.dirs": "/data", **named}), self.time.seconds
        )

    def produce(self, size: float, user: str = "ann", client_id: str | None = "app") -> float:
        return self.quotas.charge(QuotaKind.PRODUCE, user, client_id, size)


def oracle(limits: Mapping[Entity, float], user: str, client_id: str) -> float | None:
    """Return the quota by the table of Kafka's documentation, read from top to bottom."""
    for level in (
        (user, client_id), (user, DEFAULT_NAME), (user, None), (DEFAULT_NAME, client_id),
        (DEFAULT_NAME, DEFAULT_NAME), (DEFAULT_NAME, None), (None, client_id), (None, DEFAULT_NAME),
    ):  # fmt: skip
        for entity, limit in limits.items():
            if (entity.user, entity.client_id) == level:
                return limit
    return None


@given(
    limits=st.dictionaries(_ENTITIES, st.integers(1, 100).map(float)),
    user=st.sampled_from([*NAMES, "d"]),
    client_id=st.sampled_from([*NAMES, "d", DEFAULT_NAME]),
)
def test_the_first_of_eight_levels_decides(limits: dict[Entity, float], user: str, client_id: str) -> None:
    found = QuotaTable(limits).find(user, client_id)
    assert (None if found is None else found[1]) == oracle(limits, user, client_id)
    assert found is None or QuotaTable(limits).limit_of(found[0]) == found[1]


@given(
    limits=st.dictionaries(_ENTITIES, st.integers(1, 100).map(float)),
    users=st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)),
    clients=st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)),
)
def test_clients_share_a_quota_only_at_its_level(
    limits: dict[Entity, float], users: tuple[str, str], clients: tuple[str, str]
) -> None:
    """A user's quota is shared by the clients of the user, a client id's by its users, one for both by nobody else."""
    table = QuotaTable(limits)
    one, other = (table.find(user, client) for user, client in zip(users, clients, strict=True))
    if one is None or other is None:
        return
    same_user, same_client = users[0] == users[1], clients[0] == clients[1]
    shapes = {(counted.user is None, counted.client_id is None) for counted, _ in (one, other)}
    if shapes == {(False, True)}:
        shared = same_user
    elif shapes == {(True, False)}:
        shared = same_client
    else:
        shared = len(shapes) == 1 and same_user and same_client
    assert (one[0] == other[0]) is shared


def test_nothing_is_counted_without_a_quota() -> None:
    case = Case()
    assert not case.quotas.active
    assert case.produce(1 << 40) == 0
    assert not case.quotas._kinds[QuotaKind.PRODUCE].counters


def test_each_kind_is_looked_up_by_itself() -> None:
    case = Case()
    case.configs.put(Entity("ann", "app"), consumer_byte_rate=7)
    case.configs.put(Entity(user="ann"), producer_byte_rate=100)
    assert case.quotas.active
    assert case.produce(200) == pytest.approx(1)
    assert case.quotas.most_at_once(QuotaKind.FETCH, "ann", "app") == 7
    assert case.quotas.most_at_once(QuotaKind.FETCH, "ann", "other") is None


def test_a_changed_quota_holds_for_what_was_used_before() -> None:
    case = Case()
    case.configs.put(Entity(user="ann"), producer_byte_rate=100)
    assert case.produce(90) == 0
    case.configs.put(Entity(user="ann"), producer_byte_rate=50)
    assert case.produce(0) == pytest.approx(90 / 50 - 1)
    case.configs.configs.clear()
    case.configs.tell()
    assert not case.quotas.active
    assert case.produce(1 << 40) == 0


@pytest.mark.parametrize(("seconds", "number"), [(1, 11), (5, 11), (2, 3)])
def test_the_windows_are_those_of_the_settings(seconds: int, number: int) -> None:
    """A client may use the bytes of one window at once, and the request time of all windows but the present one."""
    case = Case(quota_window_size_seconds=seconds, quota_window_num=number)
    case.configs.put(Entity(user="ann"), producer_byte_rate=100, request_percentage=10)
    assert case.produce(100 * seconds) == 0
    assert case.produce(100) == pytest.approx(1)
    percent = 10 * seconds * (number - 1)
    assert case.quotas.charge(QuotaKind.REQUEST, "ann", "app", percent) == 0
    assert case.quotas.charge(QuotaKind.REQUEST, "ann", "app", 5) == pytest.approx(0.5)
    case.time.advance(seconds * number)
    assert case.quotas.charge(QuotaKind.REQUEST, "ann", "app", percent) == 0


def test_listeners_are_notified_when_counting_begins_and_ends() -> None:
    case = Case()
    heard: list[bool] = []
    case.quotas.subscribe(heard.append)
    case.configs.put(Entity(ip="10.0.0.1"), connection_creation_rate=3)
    case.configs.put(Entity(user="ann"), request_percentage=50)
    case.configs.put(Entity(user="bob"), request_percentage=50)
    case.configs.configs.clear()
    case.configs.tell()
    assert heard == [True, False]
    case.configs.put(Entity(user="ann"), producer_byte_rate=50)
    assert not case.quotas.times_requests
    case.configs.put(Entity(user="bob"), request_percentage=50)
    assert case.quotas.times_requests
    assert heard == [True, False, True, True]


def test_the_settings_limit_each_client_id_that_has_no_quota() -> None:
    case = Case(quota_producer_default=100)
    case.configs.put(Entity(client_id="other"), producer_byte_rate=1000)
    assert case.produce(200, "ann") == pytest.approx(1)
    assert case.produce(100, "bob") == pytest.approx(2)  # the same client id
    assert case.produce(200, client_id="other") == 0
    assert case.produce(200, client_id="third") == pytest.approx(1)


def test_a_client_without_an_id_has_the_default_quota() -> None:
    case = Case()
    case.configs.put(Entity(client_id=DEFAULT_NAME), producer_byte_rate=100)
    assert case.produce(200, client_id=None) == pytest.approx(1)
    assert case.produce(100, client_id="") == pytest.approx(2)


def test_request_time_is_never_owed_for_longer_than_a_window() -> None:
    case = Case()
    case.configs.put(Entity(user="ann"), request_percentage=10)
    assert case.quotas.charge(QuotaKind.REQUEST, "ann", "app", 100) == 0
    assert case.quotas.charge(QuotaKind.REQUEST, "ann", "app", 5) == pytest.approx(0.5)
    assert case.quotas.charge(QuotaKind.REQUEST, "ann", "app", 1000) == 1


def test_a_strict_quota_of_changes_refuses_until_there_are_tokens() -> None:
    case = Case()
    case.configs.put(Entity(user="ann"), controller_mutation_rate=2)
    change = case.quotas.change_topics
    assert change("ann", "app", 30, strict=True) == (True, 0)  # 22 tokens
    assert change("ann", "app", 1, strict=True) == (False, 4)
    assert change("bob", "app", 1, strict=True) == (True, 0)
    case.time.advance(4)
    assert change("ann", "app", 1, strict=True) == (True, 0)


def test_a_permissive_quota_of_changes_makes_wait() -> None:
    case = Case()
    case.configs.put(Entity(user="ann"), controller_mutation_rate=2)
    assert case.quotas.change_topics("ann", "app", 30, strict=False) == (True, 4)
    assert case.quotas.change_topics("ann", "app", 2, strict=False) == (True, 5)


def test_addresses_have_a_rate_of_their_own_or_the_default() -> None:
    case = Case()
    assert case.quotas.connection_rate("10.0.0.1") is None
    case.configs.put(Entity(ip=DEFAULT_NAME), connection_creation_rate=5)
    case.configs.put(Entity(ip="10.0.0.1"), connection_creation_rate=50)
    assert case.quotas.connection_rate("10.0.0.1") == 50
    assert case.quotas.connection_rate("10.0.0.2") == 5
    assert not case.quotas.active


def test_an_address_over_its_rate_is_refused_and_not_counted() -> None:
    case = Case()
    admit = case.quotas.admit_connection
    assert admit("10.0.0.1")
    case.configs.put(Entity(ip=DEFAULT_NAME), connection_creation_rate=2)
    assert [admit("10.0.0.1") for _ in range(22)] == [True] * 2 + [False] * 20
    assert admit("10.0.0.2")
    case.time.advance(0.9)
    assert not admit("10.0.0.1")
    case.time.advance(0.1)
    assert [admit("10.0.0.1") for _ in range(2)] == [True, False]


def test_invented_client_ids_are_forgotten_after_the_windows() -> None:
    case = Case()
    case.configs.put(Entity(client_id=DEFAULT_NAME), producer_byte_rate=100)
    for number in range(3000):
        case.produce(10, client_id=str(number))
    assert len(case.quotas._kinds[QuotaKind.PRODUCE].counters) == 3000
    case.produce(1050, client_id="busy")
    case.time.advance(10)
    case.produce(150, client_id="busy")
    case.time.advance(2)
    for number in range(3000):
        case.produce(10, client_id=f"new {number}")
    kept = case.quotas._kinds[QuotaKind.PRODUCE].counters
    assert Entity(client_id="busy") in kept
    assert len(kept) <= 3001


def test_what_was_used_is_told_beside_the_present_limit_while_there_is_one() -> None:
    case = Case(quota_producer_default=500)
    case.configs.put(Entity("ann"), consumer_byte_rate=100, request_percentage=10)
    case.configs.put(Entity(ip="::1"), connection_creation_rate=7)
    case.configs.put(Entity(DEFAULT_NAME, DEFAULT_NAME), controller_mutation_rate=2)
    case.produce(30)
    case.produce(40)
    case.quotas.charge(QuotaKind.FETCH, "ann", "app", 60)
    case.quotas.charge(QuotaKind.FETCH, "bob", "app", 60)
    case.quotas.change_topics("ann", None, 3, strict=True)
    assert case.quotas.admit_connection("::1")
    assert list(case.quotas.usage(10)) == [
        Usage(QuotaKind.PRODUCE, Entity(client_id="app"), 70, 500),
        Usage(QuotaKind.FETCH, Entity("ann"), 60, 100),
        Usage(QuotaKind.MUTATION, Entity("ann", ""), 3, 2),
        Usage(QuotaKind.CONNECTION, Entity(ip="::1"), 1, 7),
    ]
    assert case.quotas.counted() == {
        QuotaKind.PRODUCE: 1, QuotaKind.FETCH: 1, QuotaKind.REQUEST: 0, QuotaKind.MUTATION: 1, QuotaKind.CONNECTION: 1,
    }  # fmt: skip
    case.configs.put(Entity("ann"), consumer_byte_rate=200)
    assert Usage(QuotaKind.FETCH, Entity("ann"), 60, 200) in case.quotas.usage(10)
    case.configs.put(Entity("ann"))
    assert QuotaKind.FETCH not in {one.kind for one in case.quotas.usage(10)}
    assert QuotaKind.FETCH not in case.quotas.counted()


def test_of_each_kind_a_bounded_number_of_entities_is_told() -> None:
    case = Case(quota_producer_default=500, quota_consumer_default=500)
    for number in range(20):
        case.produce(1, client_id=f"c{number}")
        case.quotas.charge(QuotaKind.FETCH, "ann", f"c{number}", 1)
    found = [one.kind for one in case.quotas.usage(3)]
    assert found == [QuotaKind.PRODUCE] * 3 + [QuotaKind.FETCH] * 3
    assert set(case.quotas.counted().values()) == {20}


def test_a_stored_value_that_is_no_quota_is_left_out() -> None:
    case = Case()
    case.configs.put(Entity(user="ann"), producer_byte_rate="fast", request_percentage="-1", password="x")
    assert not case.quotas.active


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1.5, 1e30])
def test_byte_rates_that_make_no_sense_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="producer_byte_rate must be"):
        write_limit(QuotaKind.PRODUCE, value)


def test_values_are_stored_as_kafka_stores_them() -> None:
    assert write_limit(QuotaKind.PRODUCE, 1048576.0) == "1048576"
    assert write_limit(QuotaKind.REQUEST, 12.5) == "12.5"
    assert write_limit(QuotaKind.MUTATION, 10.0) == "10.0"
    assert read_limit("10.0") == 10
    assert read_limit("ten") is None


def test_entities_are_described_for_people() -> None:
    assert describe(Entity("ann", DEFAULT_NAME)) == "user ann, client id <default>"
    assert describe(Entity(ip="::1")) == "IP address ::1"


def test_very_long_client_ids_are_told_apart_by_their_beginning_only() -> None:
    case = Case()
    case.configs.put(Entity(client_id=DEFAULT_NAME), producer_byte_rate=1000)
    for number in range(3000):
        case.produce(1, client_id="x" * 30_000 + str(number))
    kept = case.quotas._kinds[QuotaKind.PRODUCE]
    assert len(kept.counters) == 1
    assert sum(len(client_id) for _, client_id in kept._found) < 1000
    assert case.produce(1_000_000, client_id="x" * 30_000) > 0
