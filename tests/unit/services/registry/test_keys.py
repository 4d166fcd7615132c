"""Keys of the schemas topic in other bytes than this registry writes: what is deleted does not come back."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from pylogd.services.registry.errors import ConfigNotFound, ModeNotFound, SubjectNotFound
from pylogd.services.registry.model import TopicRecord
from pylogd.services.registry.registry import Registry
from pylogd.services.registry.settings import Mode
from tests.unit.services.registry.registries import CARRIER, DELAY_DEFAULT, Fixture, record_of

Rewrite = Callable[[dict[str, object]], bytes]
#: Other bytes of the same JSON, and of the same meaning.
REWRITES: dict[str, Rewrite] = {
    "blanks": lambda name: json.dumps(name).encode(),
    "another order": lambda name: json.dumps(dict(reversed(name.items())), separators=(",", ":")).encode(),
    "escapes": lambda name: json.dumps(name, separators=(",", ":")).replace("a", "\\u0061").encode(),
    "another member": lambda name: json.dumps({**name, "tenant": "default"}).encode(),
    "the default context": lambda name: json.dumps(
        {**name, "subject": f":.:{name['subject']}"} if name["keytype"] == "SCHEMA" else {**name, "x": 1}
    ).encode(),
    "the same bytes": lambda name: json.dumps(name, separators=(",", ":")).encode(),
}


def foreign(fixture: Fixture, rewrite: Rewrite) -> Fixture:
    """Return a registry on a topic whose keys another program wrote."""
    found = Fixture()
    for record in fixture.topic:
        moved = TopicRecord(rewrite(json.loads(record.key)), record.value)
        found.topic.append(moved)
        found.registry.state.apply(moved.key, moved.value)
    return found


def full() -> Fixture:
    fixture = Fixture()
    fixture.register("data", record_of(CARRIER))
    fixture.register("data", record_of(CARRIER, DELAY_DEFAULT))
    fixture.set_level("data", "NONE")
    fixture.write(fixture.registry.set_mode("data", Mode.READWRITE))
    fixture.set_level(None, "FULL")
    return fixture


def delete(fixture: Fixture) -> None:
    for permanent in (False, True):
        fixture.write(fixture.registry.delete_subject("data", permanent=permanent)[1])
    fixture.write(fixture.registry.remove_settings(None)[1])


def check_gone(registry: Registry) -> None:
    with pytest.raises(SubjectNotFound):
        registry.lookups.versions("data", deleted=True)
    assert registry.lookups.subjects(deleted=True) == []
    with pytest.raises(ConfigNotFound):
        registry.lookups.own_settings("data")
    with pytest.raises(ModeNotFound):
        registry.lookups.own_mode("data")
    assert None not in registry.state.settings


@pytest.mark.parametrize("name", REWRITES)
def test_what_is_deleted_does_not_come_back(name: str) -> None:
    """As it was found: after a compaction, a permanently deleted schema was there again."""
    fixture = foreign(full(), REWRITES[name])
    delete(fixture)
    check_gone(fixture.registry)
    check_gone(fixture.compacted())


@pytest.mark.parametrize("name", REWRITES)
def test_what_an_earlier_deletion_left_is_deleted_by_the_next_change(name: str) -> None:
    """A registry of an earlier version, or another one, wrote a tombstone for only one of the keys."""
    fixture = foreign(full(), REWRITES[name])
    before = Fixture()
    before.topic[:] = full().topic
    for record in before.topic:
        before.registry.state.apply(record.key, record.value)
    at = len(before.topic)
    delete(before)
    for record in before.topic[at:]:
        fixture.topic.append(record)
        fixture.registry.state.apply(record.key, record.value)
    check_gone(fixture.registry)
    fixture.register("other", record_of(CARRIER))
    fixture.write(fixture.registry.delete_subject("other", permanent=False)[1])
    fixture.write(fixture.registry.delete_subject("other", permanent=True)[1])
    check_gone(fixture.compacted())


def test_what_is_set_again_after_a_deletion_stays() -> None:
    fixture = foreign(full(), REWRITES["blanks"])
    delete(fixture)
    again = full()
    fixture.register("data", record_of(CARRIER))
    fixture.set_level("data", "BACKWARD")
    fixture.register("other", record_of(CARRIER))
    for registry in (fixture.registry, fixture.compacted()):
        assert registry.lookups.versions("data") == [max(registry.lookups.versions("data"))]
        assert registry.lookups.own_settings("data").level is not None
    assert again.registry.lookups.versions("data") == [1, 2]


@pytest.mark.parametrize("seed", range(30))
def test_random_changes_of_several_programs_survive_compaction(seed: int) -> None:
    """The state after a compaction is the state before, whatever bytes each program writes its keys in."""
    rng = random.Random(seed)
    fixture = Fixture()
    for step in range(40):
        records = _change(fixture, rng, step)
        if rng.random() < 0.4:  # another program makes the change, and knows nothing of other keys
            rewrite = rng.choice(list(REWRITES.values()))
            for made in (TopicRecord(rewrite(json.loads(each.key)), each.value) for each in records if each.value):
                fixture.topic.append(made)
                fixture.registry.state.apply(made.key, made.value)
        else:
            fixture.write(records)
    fixture.register("last", record_of(CARRIER))
    fresh = fixture.compacted()
    assert fresh.state.subjects == fixture.registry.state.subjects
    assert (fresh.state.settings, fresh.state.modes) == (fixture.registry.state.settings, fixture.registry.state.modes)


def _change(fixture: Fixture, rng: random.Random, step: int) -> list[TopicRecord]:
    registry, subject = fixture.registry, rng.choice("ab")
    which = rng.randrange(5)
    if which == 0 and registry.lookups.has_subject(subject, deleted=True):
        return registry.delete_subject(subject, permanent=not registry.lookups.has_subject(subject))[1]
    if which == 1:
        return registry.change_settings(subject, {"compatibility": rng.choice(["NONE", "FULL"])})[1]
    if which == 2 and subject in registry.state.settings:
        return registry.remove_settings(subject)[1]
    if which == 3:
        return registry.set_mode(subject, Mode.READWRITE)
    if which == 4 and subject in registry.state.modes:
        return registry.remove_mode(subject)[1]
    schema = Fixture()
    schema.register(subject, record_of(CARRIER, name=f"F{step}"))
    version = registry.state.last_versions.get(subject, 0) + 1
    (record,) = schema.topic
    key = {**json.loads(record.key), "version": version}
    value = {**json.loads(record.value or b""), "version": version, "id": step + 1}
    value.pop("guid", None)
    return [TopicRecord(json.dumps(key, separators=(",", ":")).encode(), json.dumps(value).encode())]
