"""The registry's state: subjects, versions, ids, levels and modes, with a list as the topic."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pylogd.services.registry.contexts import EVERY
from pylogd.services.registry.errors import (
    ConfigNotFound,
    IdDoesNotMatch,
    InvalidCompatibility,
    InvalidMode,
    InvalidSchema,
    InvalidVersion,
    ModeNotFound,
    OperationNotPermitted,
    ReferenceExists,
    SchemaNotFound,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
)
from pylogd.services.registry.formats import format_of
from pylogd.services.registry.model import AVRO, Compatibility, Definition, NotCompared, Reference
from pylogd.services.registry.registry import Registry
from pylogd.services.registry.settings import Mode
from tests.unit.services.registry.registries import CARRIER, DELAY, DELAY_DEFAULT, Fixture, conflicts, read, record_of


def test_ids_and_versions() -> None:
    fixture = Fixture()
    first = record_of(CARRIER)
    assert fixture.register("a", first) == 1
    assert fixture.register("a", "  " + first) == 1, "the same schema is the same version"
    assert len(fixture.topic) == 1
    assert fixture.register("b", first) == 1, "and has the same id in another subject"
    assert fixture.register("a", record_of(CARRIER, DELAY_DEFAULT)) == 2
    registry = fixture.registry
    assert registry.lookups.subjects() == ["a", "b"]
    assert registry.lookups.versions("a") == [1, 2]
    assert {registry.lookups.version("a", which).id for which in ("latest", "-1", "2")} == {2}
    assert json.loads(registry.lookups.by_id(1).text) == json.loads(first)
    assert [(use.subject, use.version) for use in registry.lookups.uses_of(1)] == [("a", 1), ("b", 1)]
    reordered = json.dumps(dict(reversed(json.loads(first).items())))
    found = registry.lookups.find("a", read(registry, reordered))
    assert found is not None and found.version == 1


def test_missing_subjects_versions_and_schemas_are_errors() -> None:
    registry = Fixture().registry
    for call in (
        lambda: registry.lookups.versions("a"),
        lambda: registry.lookups.version("a", "1"),
        lambda: registry.delete_subject("a", permanent=False),
    ):
        with pytest.raises(SubjectNotFound):
            call()
    with pytest.raises(SchemaNotFound):
        registry.lookups.by_id(1)
    with pytest.raises(ConfigNotFound):
        registry.lookups.own_settings("a")
    fixture = Fixture()
    fixture.register("a", '"string"')
    with pytest.raises(VersionNotFound):
        fixture.registry.lookups.version("a", "2")
    for name in ("0", "x", "1.0", "-2", "", "99999999999"):
        with pytest.raises(InvalidVersion):
            fixture.registry.lookups.version("a", name)


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"type": "record"}', '"nothing"', '{"type": "record", "name": "1", "fields": []}', "[]{}", None, 7],
)
def test_texts_that_are_no_schema_are_refused(text: object) -> None:
    with pytest.raises(InvalidSchema):
        read(Fixture().registry, text)


def test_other_schema_types_are_refused() -> None:
    with pytest.raises(InvalidSchema, match="Invalid schema type THRIFT: use one of AVRO, JSON, PROTOBUF"):
        read(Fixture().registry, '"string"', "THRIFT")


@pytest.mark.parametrize(
    ("level", "adds_default", "adds_plain", "removes"),
    [
        ("NONE", True, True, True),
        ("BACKWARD", True, False, True),
        ("FORWARD", True, True, False),
        ("FULL", True, False, False),
    ],
)
def test_levels(level: str, adds_default: bool, adds_plain: bool, removes: bool) -> None:
    fixture = Fixture()
    fixture.set_level("a", level.lower())
    fixture.register("a", record_of(CARRIER, {"name": "year", "type": "int"}))
    for fields, allowed in (
        ((CARRIER, {"name": "year", "type": "int"}, DELAY_DEFAULT), adds_default),
        ((CARRIER, {"name": "year", "type": "int"}, DELAY), adds_plain),
        ((CARRIER,), removes),
    ):
        assert (not conflicts(fixture.registry, "a", read(fixture.registry, record_of(*fields)))) is allowed, fields
    with pytest.raises(InvalidCompatibility):
        Compatibility.named("SIDEWAYS")


def test_a_transitive_level_compares_with_every_version() -> None:
    fixture = Fixture()
    fixture.register("a", record_of(CARRIER, DELAY))
    fixture.register("a", record_of(CARRIER))
    third = read(fixture.registry, record_of(CARRIER, {"name": "delay", "type": "string", "default": ""}))
    assert not conflicts(fixture.registry, "a", third)
    fixture.set_level(None, "BACKWARD_TRANSITIVE")
    (reason,) = conflicts(fixture.registry, "a", third)
    assert "version 1" in reason
    with pytest.raises(NotCompared) as refused:
        fixture.registry.register("a", third)
    assert refused.value.comparison == fixture.registry.lookups.comparison("a", third)
    assert conflicts(fixture.registry, "a", third, "2") == []


def test_references() -> None:
    fixture = Fixture()
    fixture.register("carrier", record_of({"name": "code", "type": "string"}, name="Carrier"))
    used = Reference("Carrier", "carrier", 1)
    fixture.register("flight", record_of({"name": "carrier", "type": "Carrier"}), used)
    assert [user.id for user in fixture.registry.lookups.referring_to("carrier", 1)] == [2]
    with pytest.raises(ReferenceExists):
        fixture.registry.delete_version("carrier", "1", permanent=False)
    with pytest.raises(ReferenceExists):
        fixture.registry.delete_subject("carrier", permanent=False)
    with pytest.raises(InvalidSchema, match="version 7"):
        read(
            fixture.registry,
            record_of({"name": "carrier", "type": "Carrier"}),
            None,
            [Reference("Carrier", "carrier", 7)],
        )
    with pytest.raises(InvalidSchema):
        read(fixture.registry, record_of({"name": "carrier", "type": "Carrier"}))


def test_an_avro_schema_with_its_references_resolved() -> None:
    """A type is written where it is used first, and later by its name."""
    fixture = Fixture()
    fixture.register("place", record_of({"name": "code", "type": "string"}, name="a.Place"))
    uses = [{"name": name, "type": "a.Place"} for name in ("origin", "destination")]
    reference = Reference("a.Place", "place", 1)
    fixture.register("flight", record_of(*uses), reference)
    definitions = fixture.registry.lookups.definitions("flight", fixture.registry.lookups.version("flight", "1").schema)
    text = format_of(AVRO).rendered(definitions, "resolved")
    origin, destination = json.loads(text)["fields"]
    assert origin["type"]["fields"] == [{"type": "string", "name": "code"}]
    assert destination["type"] == "a.Place"
    assert format_of(AVRO).canonical((Definition("", text),), normalize=False), "it needs no references"
    assert "code" not in format_of(AVRO).rendered(definitions, "other")


def test_deleting_hides_and_deleting_permanently_removes() -> None:
    fixture = Fixture()
    texts = [record_of(CARRIER), record_of(CARRIER, DELAY_DEFAULT)]
    for text in texts:
        fixture.register("a", text)
    with pytest.raises(VersionNotSoftDeleted):
        fixture.registry.delete_version("a", "2", permanent=True)
    with pytest.raises(SubjectNotSoftDeleted):
        fixture.registry.delete_subject("a", permanent=True)
    number, records = fixture.registry.delete_version("a", "latest", permanent=False)
    fixture.write(records)
    assert number == 2
    assert fixture.registry.lookups.versions("a") == [1]
    assert fixture.registry.lookups.versions("a", deleted=True) == [1, 2]
    assert fixture.registry.lookups.by_id(2), "messages with the id are still about"
    numbers, records = fixture.registry.delete_subject("a", permanent=False)
    fixture.write(records)
    assert numbers == [1]
    assert fixture.registry.lookups.subjects() == []
    with pytest.raises(SubjectSoftDeleted):
        fixture.registry.delete_subject("a", permanent=False)
    assert fixture.register("a", texts[1]) == 2, "it comes back with its id and a version of its own"
    assert fixture.registry.lookups.versions("a") == [3]
    fixture.write(fixture.registry.delete_subject("a", permanent=False)[1])
    numbers, records = fixture.registry.delete_subject("a", permanent=True)
    fixture.write(records)
    assert numbers == [1, 3], "version 2 had the id of version 3, which replaced it"
    assert fixture.registry.lookups.subjects(deleted=True) == []
    with pytest.raises(SchemaNotFound):
        fixture.registry.lookups.by_id(2)


def test_an_id_is_never_given_twice_even_after_compaction() -> None:
    fixture = Fixture()
    fixture.register("a", record_of(CARRIER))
    fixture.register("a", record_of(CARRIER, DELAY_DEFAULT))
    fixture.write(fixture.registry.delete_subject("a", permanent=False)[1])
    fixture.write(fixture.registry.delete_subject("a", permanent=True)[1])
    fixture.registry = fixture.compacted()
    assert fixture.register("b", '"string"') == 3


def test_a_restarted_registry_has_the_same_state() -> None:
    fixture = Fixture()
    fixture.register("a", record_of(CARRIER))
    fixture.set_level("a", "FULL")
    fixture.register("b", '"string"')
    fixture.write(fixture.registry.delete_version("b", "1", permanent=False)[1])
    fresh = fixture.compacted()
    assert fresh.lookups.subjects() == ["a"] and fresh.lookups.subjects(deleted=True) == ["a", "b"]
    assert fresh.lookups.own_settings("a").level is Compatibility.FULL
    assert fresh.lookups.version("a", "1") == fixture.registry.lookups.version("a", "1")
    fixture.write(fixture.registry.remove_settings("a")[1])
    assert fixture.compacted().lookups.settings("a").level is Compatibility.BACKWARD


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"x"), (b"", b""), (b"[]", b"{}"), (b"{", b"{}"), (b'{"keytype": "ODD"}', b"{}"),
        (b'{"keytype": "SCHEMA", "subject": "s", "version": 1}', b'{"schema": "x"}'),
        (b'{"keytype": "SCHEMA", "subject": "s", "version": 1}', b'{"schema": "x", "id": 1}'),
        (b'{"keytype": "CONFIG", "subject": null}', b'{"compatibilityLevel": "ODD"}'),
    ],
)  # fmt: skip
def test_records_of_other_programs_are_skipped(
    key: bytes | None, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    registry.state.apply(key, value)
    assert "skipping the record" in caplog.text
    assert registry.lookups.subjects(deleted=True) == []


def test_a_topic_of_confluents_registry_is_understood() -> None:
    registry = Registry()
    registry.state.apply(
        b'{"keytype":"SCHEMA","subject":"t-value","version":1,"magic":1}',
        b'{"subject":"t-value","version":1,"id":41,"schema":"\\"string\\"","deleted":false}',
    )
    registry.state.apply(b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"NONE"}')
    registry.state.apply(b'{"keytype":"NOOP","magic":0}', None)
    assert registry.lookups.version("t-value", "latest").id == 41
    assert registry.lookups.settings().level is Compatibility.NONE
    registry.state.apply(
        b'{"keytype":"DELETE_SUBJECT","subject":"t-value","magic":0}', b'{"subject":"t-value","version":1}'
    )
    assert registry.lookups.subjects() == [] and registry.lookups.subjects(deleted=True) == ["t-value"]


SCHEMA_KEY = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"[" * 100_000, b"{}"),
        (SCHEMA_KEY, b"[" * 100_000),
        (SCHEMA_KEY, b'{"id": 1, "schema": "' + b"[" * 100_000 + b'"}'),
        (b'{"keytype":"SCHEMA","subject":["s"],"version":1}', b'{"id": 1, "schema": "\\"int\\""}'),
        (b'{"keytype":"SCHEMA","subject":7,"version":1}', b'{"id": 1, "schema": "\\"int\\""}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1e999}', b'{"id": 1, "schema": "\\"int\\""}'),
        (b'{"keytype":"MODE","subject":null}', b'{"mode": "SIDEWAYS"}'),
    ],
)  # fmt: skip
def test_an_invalid_record_is_logged_and_skipped(key: bytes, value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    registry.state.apply(key, value, 41)
    assert "offset 41 " in caplog.text
    registry.state.apply(b'{"keytype":"SCHEMA","subject":"t","version":1}', b'{"id": 1, "schema": "\\"string\\""}', 42)
    assert registry.lookups.subjects() == ["t"]
    assert registry.lookups.by_id(1).text == '"string"'


@pytest.mark.parametrize(
    "value",
    [b'{"subject":"s","id":7,"schema":', b'{"id" : 7, "schemaType": "PROTOBUF", "schema": "syntax = proto3;"}'],
)
def test_an_id_in_an_invalid_record_is_not_given_to_another_schema(value: bytes) -> None:
    registry = Registry()
    registry.state.apply(SCHEMA_KEY, value, 0)
    assert registry.register("t", read(registry, '"string"'))[0].id == 8


def test_an_id_that_the_topic_gives_twice_stays_with_the_first(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    registry.state.apply(b'{"keytype":"SCHEMA","subject":"a","version":1}', b'{"id": 1, "schema": "\\"string\\""}', 0)
    registry.state.apply(b'{"keytype":"SCHEMA","subject":"b","version":1}', b'{"id": 1, "schema": "\\"int\\""}', 9)
    assert registry.lookups.by_id(1).text == '"string"'
    assert "offset 9 " in caplog.text


class TestModes:
    def register(
        self, fixture: Fixture, subject: str, text: str, schema_id: int | None, number: int | None = None
    ) -> int:
        given, records = fixture.registry.register(subject, read(fixture.registry, text), schema_id, number)
        fixture.write(records)
        return given.id

    def importing(self) -> Fixture:
        fixture = Fixture()
        fixture.write(fixture.registry.set_mode(None, Mode.IMPORT))
        return fixture

    def test_ids_and_versions_are_refused_outside_import(self) -> None:
        fixture = Fixture()
        with pytest.raises(OperationNotPermitted, match="not in import mode"):
            self.register(fixture, "s", '"int"', 5)
        with pytest.raises(InvalidSchema, match="not one more"):
            self.register(fixture, "s", '"int"', None, 5)
        assert self.register(fixture, "s", '"int"', None, 1) == 1
        assert self.register(fixture, "s", '"int"', 1, 1) == 1, "it is there already"
        with pytest.raises(OperationNotPermitted):
            self.register(fixture, "s", '"int"', 2)
        assert fixture.registry.lookups.versions("s") == [1]

    def test_ids_and_versions_are_used_in_import(self) -> None:
        fixture = self.importing()
        assert self.register(fixture, "s", '"int"', 77, 5) == 77
        assert self.register(fixture, "s", record_of(CARRIER), 12, 3) == 12, "in any order, compatible or not"
        assert self.register(fixture, "s", '"int"', 77, 5) == 77
        assert self.register(fixture, "t", '"int"', 77) == 77
        for registry in (fixture.registry, fixture.compacted()):
            assert [registry.lookups.version("s", str(number)).id for number in registry.lookups.versions("s")] == [
                12,
                77,
            ]
            assert registry.lookups.version("t", "1").id == 77
            assert registry.lookups.mode("s") is Mode.IMPORT
        fixture.write(fixture.registry.set_mode(None, Mode.READWRITE))
        assert self.register(fixture, "u", '"bytes"', None) == 78

    def test_import_names_every_id_and_overwrites_nothing(self) -> None:
        fixture = self.importing()
        with pytest.raises(OperationNotPermitted, match="not in read-write mode"):
            self.register(fixture, "s", '"int"', None)
        self.register(fixture, "s", '"int"', 1, 1)
        with pytest.raises(OperationNotPermitted, match="Overwrite new schema with id 1 in context  is not permitted"):
            self.register(fixture, "t", '"string"', 1, 1)
        with pytest.raises(IdDoesNotMatch, match="has id 1 already"):
            self.register(fixture, "s", '"string"', 2, 1)

    def test_import_begins_where_there_is_nothing_or_by_force(self) -> None:
        fixture = Fixture()
        fixture.register("s", '"int"')
        for subject in (None, "s"):
            with pytest.raises(OperationNotPermitted, match="existing subjects"):
                fixture.registry.set_mode(subject, Mode.IMPORT)
            assert fixture.registry.set_mode(subject, Mode.IMPORT, force=True)
        assert fixture.registry.set_mode("t", Mode.IMPORT)

    @pytest.mark.parametrize("mode", [Mode.READONLY, Mode.READONLY_OVERRIDE])
    def test_read_only(self, mode: Mode) -> None:
        fixture = Fixture()
        fixture.register("s", '"int"')
        fixture.write(fixture.registry.set_mode(None, mode))
        registry = fixture.registry
        assert fixture.register("s", '"int"') == 1
        changes: list[Callable[[], object]] = [
            lambda: fixture.register("s", '"long"'),
            lambda: registry.delete_version("s", "1", permanent=False),
            lambda: registry.delete_subject("s", permanent=False),
            lambda: registry.change_settings(None, {"compatibility": "NONE"}),
        ]
        for change in changes:
            with pytest.raises(OperationNotPermitted, match="read-only"):
                change()
        fixture.write(registry.set_mode("s", Mode.READWRITE))
        assert registry.lookups.mode("s").writable is (mode is Mode.READONLY)
        fixture.write(registry.remove_mode("s")[1])
        with pytest.raises(ModeNotFound):
            registry.lookups.own_mode("s")

    def test_forward_is_import_for_contexts_without_a_mode(self) -> None:
        fixture = Fixture()
        fixture.register("old", '"int"')
        for subject in (None, "s", ":.a:"):
            with pytest.raises(InvalidMode, match="only supported on global level"):
                fixture.registry.set_mode(subject, Mode.FORWARD)
        fixture.write(fixture.registry.set_mode(EVERY, Mode.FORWARD))
        assert self.register(fixture, ":.a:s", '"int"', 7, 3) == 7
        assert self.register(fixture, ":.a:s", record_of(CARRIER), 9, 4) == 9, "it is not compared"
        fixture.write(fixture.registry.set_mode(":.b:", Mode.READWRITE))
        with pytest.raises(OperationNotPermitted, match="not in import mode"):
            self.register(fixture, ":.b:s", '"int"', 7)

    def test_a_forced_registration_is_not_compared(self) -> None:
        fixture = Fixture()
        fixture.register("s", '"int"')
        schema = read(fixture.registry, record_of(CARRIER))
        with pytest.raises(NotCompared):
            fixture.registry.register("s", schema)
        version, _ = fixture.registry.register("s", schema, force=True)
        assert version.version == 2

    def test_ids_run_out(self) -> None:
        fixture = self.importing()
        self.register(fixture, "s", '"int"', 2**31 - 1)
        fixture.write(fixture.registry.set_mode(None, Mode.READWRITE))
        with pytest.raises(OperationNotPermitted, match="all ids up to"):
            fixture.register("t", '"string"')

    def test_unknown_names_are_refused(self) -> None:
        with pytest.raises(InvalidMode, match="READWRITE"):
            Mode.named("SIDEWAYS")
