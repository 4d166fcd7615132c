"""Contexts of the registry, metadata of schemas, settings."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from pylogd.schemas.contexts import EVERY
from pylogd.schemas.errors import ContextNotEmpty, InvalidRequest, InvalidSchema, SchemaNotFound
from pylogd.schemas.model import JSON, Compatibility, Reference
from pylogd.schemas.modes import Mode
from pylogd.schemas.reading import given_schema
from pylogd.schemas.registry import Registry
from tests.unit.schemas.registries import Fixture, conflicts, read, record_of


class TestContexts:
    def test_ids_and_references_stay_in_their_context(self) -> None:
        fixture = Fixture()
        fixture.register(":.a:carrier", record_of({"name": "code", "type": "string"}, name="Carrier"))
        used = Reference("Carrier", "carrier", 1)
        text = record_of({"name": "carrier", "type": "Carrier"})
        schema = given_schema({"schema": text, "references": [used.as_json()]})
        assert [name for name, _ in fixture.registry.definitions(":.a:flight", schema)] == ["Carrier", ""]
        with pytest.raises(InvalidSchema, match="subject 'carrier' has no version 1"):
            fixture.registry.definitions("flight", schema)
        version, records = fixture.registry.register(":.a:flight", schema)
        fixture.write(records)
        assert version.id == 2
        assert [user.subject for user in fixture.registry.referring_to(":.a:carrier", 1)] == [":.a:flight"]
        assert fixture.register("other", '"int"') == 1
        for registry in (fixture.registry, fixture.compacted()):
            assert registry.contexts() == [".", ".a"]
            assert registry.last_id(":.a:") == 2 and registry.last_id() == 1
            assert registry.version("flight", "latest").subject == ":.a:flight", "looked for in all contexts"

    def test_ids_of_a_context_are_not_given_again_after_compaction(self) -> None:
        fixture = Fixture()
        fixture.register(":.a:s", '"int"')
        for permanent in (False, True):
            fixture.write(fixture.registry.delete_subject(":.a:s", permanent=permanent)[1])
        fixture.registry = fixture.compacted()
        assert fixture.register(":.a:s", '"long"') == 2

    def test_settings_and_modes_are_inherited(self) -> None:
        fixture = Fixture()
        registry = fixture.registry
        fixture.set_level(EVERY, "FULL")
        assert registry.settings(":.a:s").level is registry.settings("s").level is Compatibility.FULL
        fixture.set_level(":.a:", "NONE")
        assert registry.settings(":.a:s").level is Compatibility.NONE
        fixture.write(registry.set_mode(":.a:", Mode.READONLY))
        assert registry.mode(":.a:s") is Mode.READONLY and registry.mode("s") is Mode.READWRITE
        fixture.write(registry.remove_mode(":.a:", recursive=True)[1])
        assert registry.mode(":.a:s") is Mode.READWRITE

    def test_deleting_a_context(self) -> None:
        fixture = Fixture()
        fixture.register(":.a:s", '"int"')
        with pytest.raises(ContextNotEmpty):
            fixture.registry.delete_context(".a")
        for permanent in (False, True):
            fixture.write(fixture.registry.delete_subject(":.a:s", permanent=permanent)[1])
        fixture.write(fixture.registry.delete_context(".a"))
        assert fixture.registry.contexts() == fixture.compacted().contexts() == ["."]


class TestMetadata:
    OWNER: ClassVar[dict[str, Any]] = {"metadata": {"properties": {"owner": "ada"}}}

    def test_it_is_part_of_a_schema_and_inherited(self) -> None:
        fixture = Fixture()
        assert fixture.register("s", '"int"') == 1
        assert fixture.register("s", '"int"', **self.OWNER) == 2
        assert fixture.register("s", '"int"') == 1, "as it is"
        assert fixture.register("s", '"long"') == 3
        for registry in (fixture.registry, fixture.compacted()):
            assert registry.version("s", "3").as_json()["metadata"] == self.OWNER["metadata"]
            assert registry.versions_with("s", deleted=False, metadata={"owner": "ada"}).version == 3
            with pytest.raises(SchemaNotFound):
                registry.versions_with("s", deleted=False, metadata={"owner": "bob"})

    def test_groups_of_compatibility(self) -> None:
        fixture = Fixture()
        fixture.write(fixture.registry.change_settings("s", {"compatibilityGroup": "major"})[1])
        fixture.register("s", '"int"', metadata={"properties": {"major": "1"}})
        assert fixture.register("s", '"string"', metadata={"properties": {"major": "2"}}) == 2, "not compared"
        same = read(fixture.registry, '"bytes"', metadata={"properties": {"major": "1"}})
        assert conflicts(fixture.registry, "s", same)


def test_another_type_of_schema_is_not_compatible() -> None:
    fixture = Fixture()
    fixture.register("s", '"string"')
    with pytest.raises(InvalidSchema, match="different schema type"):
        fixture.register("s", '{"type":"string"}', kind=JSON)
    fixture.set_level("s", "NONE")
    assert fixture.register("s", '{"type":"string"}', kind=JSON) == 2


def test_settings_that_this_registry_does_not_have_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="overrideRuleSet"):
        Registry().change_settings(None, {"overrideRuleSet": {}})
    with pytest.raises(InvalidRequest, match="normalize"):
        Registry().change_settings(None, {"normalize": "yes"})
