"""Two schema registry processes that share a topic and are written to at the same time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as ConfluentProducer

from pylogd.local.broker import BrokerProcess
from pylogd.services.registry.store import PRODUCER_ID
from pylogd.wire.records import encode_batch
from tests.integration.conftest import StartBroker
from tests.rawclient import RawClient, produce, wait_until
from tests.registries import AT_ONCE, SECONDS, RegistryProcess, ask, made

SCHEMAS = 40
SESSION = 2.0


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    return start_broker(settings={**AT_ONCE, "group.min.session.timeout.ms": str(int(SESSION * 1000))})


@pytest.fixture
def registries(broker: BrokerProcess, tmp_path: Path) -> Iterator[list[RegistryProcess]]:
    options = ["--session-timeout", str(SESSION)]
    processes = [RegistryProcess(broker.address, tmp_path / f"registry{number}.log", *options) for number in range(2)]
    yield processes
    for number, process in enumerate(processes):
        if process.process.poll() is None:
            assert process.stop() == 0
        assert "Traceback" not in (tmp_path / f"registry{number}.log").read_text()


def enum(number: int) -> str:
    return json.dumps({"type": "enum", "name": f"E{number}", "symbols": ["A"]}, separators=(",", ":"))


def register(registry: RegistryProcess, subject: str, schema: str) -> int:
    status, answer = ask(f"{registry.url}/subjects/{subject}/versions", "POST", {"schema": schema})
    assert status == 200, answer
    return int(answer["id"])


def knows(registry: RegistryProcess, ids: dict[str, int]) -> bool:
    found = [ask(f"{registry.url}/schemas/ids/{schema_id}") for schema_id in ids.values()]
    return [answer.get("schema") for _, answer in found] == list(ids)


def test_ids_are_unique_across_registries(
    broker: BrokerProcess, registries: list[RegistryProcess], tmp_path: Path
) -> None:
    """Each schema is registered with one registry, then with both, and always has the same id."""

    def work(number: int) -> tuple[str, int]:
        schema = enum(number)
        return schema, register(registries[number % 2], f"s{number}", schema)

    with ThreadPoolExecutor(8) as pool:
        ids = dict(pool.map(work, range(SCHEMAS)))
        assert sorted(ids.values()) == list(range(1, SCHEMAS + 1))
        others = pool.map(lambda at: register(registries[1 - at % 2], f"s{at}", enum(at)), range(SCHEMAS))
        assert list(others) == list(ids.values())
    for registry in registries:
        wait_until(partial(knows, registry, ids), "a registry that knows all schemas")
    third = RegistryProcess(broker.address, tmp_path / "third.log")
    try:
        assert knows(third, ids)
    finally:
        assert third.stop() == 0


def test_versions_of_a_subject_that_both_registries_write_are_consecutive(registries: list[RegistryProcess]) -> None:
    assert ask(f"{registries[0].url}/config", "PUT", {"compatibility": "NONE"})[0] == 200
    wait_until(lambda: ask(f"{registries[1].url}/config")[1] == {"compatibilityLevel": "NONE"}, "the level")

    def work(number: int) -> tuple[int, int]:  # registers every schema with both registries
        return number // 2, register(registries[number % 2], "s", enum(number // 2))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(20)))
    ids = dict(answers)
    assert all(ids[schema] == schema_id for schema, schema_id in answers), "both have the same id for a schema"
    assert sorted(ids.values()) == list(range(1, 11))
    numbers = list(range(1, 11))
    wait_until(lambda: all(ask(f"{one.url}/subjects/s/versions")[1] == numbers for one in registries), "ten versions")
    described = [[ask(f"{registry.url}/subjects/s/versions/{number}") for number in numbers] for registry in registries]
    assert described[0] == described[1]


def test_a_registry_continues_after_a_record_without_sequence_header(
    broker: BrokerProcess, registries: list[RegistryProcess]
) -> None:
    """The header is missing too when the last records of the topic were deleted."""
    assert register(registries[0], "a", enum(1)) == 1
    wait_until(lambda: ask(f"{registries[1].url}/subjects")[1] == ["a"], "the other registry's schema")
    noop = [(b'{"keytype":"NOOP","magic":0}', b'{"lastId":5}', 0, ())]
    with RawClient(broker.address) as client:
        batch = encode_batch(noop, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=1)
        (answer,) = produce(client, "_schemas", [batch])
        assert answer.error_code == 0
    with ThreadPoolExecutor(2) as pool:
        ids = list(pool.map(lambda number: register(registries[number], f"b{number}", enum(2 + number)), range(2)))
    assert sorted(ids) == [6, 7]


def test_an_unreadable_record_is_logged_and_its_id_is_not_reused(
    broker: BrokerProcess, registries: list[RegistryProcess], tmp_path: Path
) -> None:
    first = register(registries[0], "a", enum(1))
    producer = ConfluentProducer({"bootstrap.servers": broker.address})
    producer.produce("_schemas", b"{}", key=b"[" * 100_000, partition=0)
    assert producer.flush(SECONDS) == 0
    second = register(registries[1], "b", enum(2))
    for registry in registries:
        assert registry.stop() == 0
    third = RegistryProcess(broker.address, tmp_path / "registry0.log")
    assert register(third, "c", enum(3)) == second + 1 == first + 2
    assert knows(third, {enum(1): first, enum(2): second, enum(3): second + 1})
    assert third.stop() == 0
    assert "skipping the record at offset 1 of the schemas topic" in (tmp_path / "registry0.log").read_text()


def test_ids_versions_and_modes_of_requests_are_checked(registries: list[RegistryProcess]) -> None:
    url = registries[0].url

    def post(subject: str, **body: Any) -> tuple[int, Any]:
        return ask(f"{url}/subjects/{subject}/versions", "POST", body)

    refused = post("s", schema='"int"', id=7, version=3)
    assert (refused[0], refused[1]["error_code"]) == (422, 42205)
    refused = post("s", schema='"int"', version=3)
    assert (refused[0], refused[1]["error_code"]) == (422, 42201)
    assert ask(f"{url}/mode", "PUT", {"mode": "IMPORT"}) == (200, {"mode": "IMPORT"})
    assert made(post("s", schema='"int"', id=7, version=3)) == (200, 7, 3)
    assert post("s", schema='"string"', id=7, version=4)[1]["error_code"] == 42205
    assert post("s", schema='"string"')[1]["error_code"] == 42205
    assert post("s", schema='"string"', id="x")[1]["error_code"] == 422
    assert ask(f"{url}/subjects/s/versions/3")[1]["id"] == 7
    assert ask(f"{url}/mode", "PUT", {"mode": "READWRITE"}) == (200, {"mode": "READWRITE"})
    assert made(post("t", schema='"string"')) == (200, 8, 1)
    assert ask(f"{url}/mode", "PUT", {"mode": "IMPORT"})[1]["error_code"] == 42205
    assert ask(f"{url}/mode", "PUT", {"mode": "SIDEWAYS"})[1]["error_code"] == 42204
    assert ask(f"{url}/mode/t")[1]["error_code"] == 40409
    assert ask(f"{url}/mode/t?defaultToGlobal=true") == (200, {"mode": "READWRITE"})
    assert ask(f"{url}/mode/t", "PUT", {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    assert post("t", schema='"bytes"')[1]["error_code"] == 42205
    assert ask(f"{url}/mode/t", "DELETE") == (200, {"mode": "READONLY"})


def leader_of(registries: list[RegistryProcess], tmp_path: Path) -> int:
    """Return which of the registries leads, by the log of the last one that is alive."""
    urls = [registry.url for registry in registries]
    logs = [tmp_path / f"registry{number}.log" for number, one in enumerate(registries) if one.process.poll() is None]
    named = [line.split()[-1] for line in logs[-1].read_text().splitlines() if "The leader of the registries" in line]
    return urls.index(named[-1]) if named else -1


def test_a_killed_leader_is_followed_by_another(
    broker: BrokerProcess, registries: list[RegistryProcess], tmp_path: Path
) -> None:
    """Every registration is answered, by whichever registry it is sent to, and no id is given twice."""
    ids: dict[str, int] = {}
    for number in range(10):
        ids[enum(number)] = register(registries[number % 2], f"s{number}", enum(number))
    before = leader_of(registries, tmp_path)
    assert before in (0, 1)
    registries[before].kill()
    other = registries[1 - before]
    for number in range(10, 15):
        ids[enum(number)] = register(other, f"s{number}", enum(number))
    assert leader_of(registries, tmp_path) == 1 - before
    assert sorted(ids.values()) == list(range(1, 16))
    assert knows(other, ids)


def test_a_registry_that_never_leads_sends_changes_on(broker: BrokerProcess, tmp_path: Path) -> None:
    options = ["--session-timeout", str(SESSION), "--never-leader"]
    first = RegistryProcess(broker.address, tmp_path / "first.log", *options)
    second = RegistryProcess(broker.address, tmp_path / "second.log", "--session-timeout", str(SESSION))
    try:
        assert register(first, "s", enum(1)) == 1
        assert ask(f"{first.url}/subjects/s/versions") == (200, [1]), "what was changed is known where it was asked for"
        assert ask(f"{first.url}/config/s", "PUT", {"compatibility": "NONE"}) == (200, {"compatibility": "NONE"})
        assert ask(f"{first.url}/subjects/s/versions/7", "DELETE")[1]["error_code"] == 40402, "errors come back as well"
        assert ask(f"{first.url}/subjects/s/versions/1", "DELETE") == (200, 1)
    finally:
        assert (first.stop(), second.stop()) == (0, 0)
    assert second.url in (tmp_path / "first.log").read_text()
