"""Contexts of the registry, metadata of schemas, settings."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from pylogd.services.registry.checking import given_schema
from pylogd.services.registry.contexts import EVERY
from pylogd.services.registry.errors import (
    ContextNotEmpty,
    IncompatibleSchema,
    InvalidRequest,
    InvalidRuleSet,
    InvalidSchema,
    SchemaNotFound,
)
from pylogd.services.registry.model import JSON, Compatibility, Reference
from pylogd.services.registry.registry import Registry
from pylogd.services.registry.settings import Mode, rule_types
from tests.unit.services.registry.registries import Fixture, conflicts, read, record_of


class TestContexts:
    def test_ids_and_references_stay_in_their_context(self) -> None:
        fixture = Fixture()
        fixture.register(":.a:carrier", record_of({"name": "code", "type": "string"}, name="Carrier"))
        used = Reference("Carrier", "carrier", 1)
        text = record_of({"name": "carrier", "type": "Carrier"})
        schema = given_schema({"schema": text, "references": [used.as_json()]})
        assert [name for name, _ in fixture.registry.lookups.definitions(":.a:flight", schema)] == ["Carrier", ""]
        with pytest.raises(InvalidSchema, match='subject "carrier" and version 1'):
            fixture.registry.lookups.definitions("flight", schema)
        version, records = fixture.registry.register(":.a:flight", schema)
        fixture.write(records)
        assert version.id == 2
        assert [user.subject for user in fixture.registry.lookups.referring_to(":.a:carrier", 1)] == [":.a:flight"]
        assert fixture.register("other", '"int"') == 1
        for registry in (fixture.registry, fixture.compacted()):
            assert registry.lookups.contexts() == [".", ".a"]
            assert registry.lookups.last_id(":.a:") == 2 and registry.lookups.last_id() == 1
            assert registry.lookups.version("flight", "latest").subject == ":.a:flight", "looked for in all contexts"

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
        assert registry.lookups.settings(":.a:s").level is registry.lookups.settings("s").level is Compatibility.FULL
        fixture.set_level(":.a:", "NONE")
        assert registry.lookups.settings(":.a:s").level is Compatibility.NONE
        fixture.write(registry.set_mode(":.a:", Mode.READONLY))
        assert registry.lookups.mode(":.a:s") is Mode.READONLY and registry.lookups.mode("s") is Mode.READWRITE
        fixture.write(registry.remove_mode(":.a:", recursive=True)[1])
        assert registry.lookups.mode(":.a:s") is Mode.READWRITE

    def test_deleting_a_context(self) -> None:
        fixture = Fixture()
        fixture.register(":.a:s", '"int"')
        with pytest.raises(ContextNotEmpty):
            fixture.registry.delete_context(".a")
        for permanent in (False, True):
            fixture.write(fixture.registry.delete_subject(":.a:s", permanent=permanent)[1])
        fixture.write(fixture.registry.delete_context(".a"))
        assert fixture.registry.lookups.contexts() == fixture.compacted().lookups.contexts() == ["."]


class TestMetadata:
    OWNER: ClassVar[dict[str, Any]] = {"metadata": {"properties": {"owner": "ada"}}}

    def test_it_is_part_of_a_schema_and_inherited(self) -> None:
        fixture = Fixture()
        assert fixture.register("s", '"int"') == 1
        assert fixture.register("s", '"int"', **self.OWNER) == 2
        assert fixture.register("s", '"int"') == 1, "as it is"
        assert fixture.register("s", '"long"') == 3
        for registry in (fixture.registry, fixture.compacted()):
            assert registry.lookups.version("s", "3").as_json()["metadata"] == self.OWNER["metadata"]
            assert registry.lookups.versions_with("s", deleted=False, metadata={"owner": "ada"}).version == 3
            with pytest.raises(SchemaNotFound):
                registry.lookups.versions_with("s", deleted=False, metadata={"owner": "bob"})

    def test_metadata_and_rules_are_inherited_each_by_itself(self) -> None:
        fixture = Fixture()
        rules = {"domainRules": [{"name": "positive", "type": "CEL"}]}
        fixture.register("s", '"int"', **self.OWNER)
        fixture.register("s", '"int"', ruleSet=rules)
        for registry in (fixture.registry, fixture.compacted()):
            assert registry.lookups.version("s", "2").schema.contract == {**self.OWNER, "ruleSet": rules}
            assert rule_types(registry.lookups.version("s", "2").schema) == {"CEL"}

    def test_settings_have_defaults_and_overrides(self) -> None:
        fixture = Fixture()
        fixture.register("s", '"int"')
        old, new, own = ({"name": "a", "type": kind} for kind in ("CEL", "CEL_FIELD", "ENCRYPT"))
        settings = {
            "defaultMetadata": {"properties": {"owner": "nobody", "tier": "3"}, "sensitive": ["ssn"]},
            "overrideMetadata": {"properties": {"company": "acme"}, "sensitive": ["email"]},
            "defaultRuleSet": {"domainRules": [old, {"name": "b", "type": "CEL"}]},
            "overrideRuleSet": {"domainRules": [new], "migrationRules": [own]},
        }
        changed, records = fixture.registry.change_settings("s", settings)
        assert changed.as_json("compatibility") == settings
        fixture.write(records)
        assert fixture.register("s", '"int"', **self.OWNER) == 2
        assert fixture.register("s", '"int"', **self.OWNER) == 2, "it is found by what becomes of it"
        fixture.register("other", '"int"')
        for registry in (fixture.registry, fixture.compacted()):
            assert registry.lookups.version("s", "2").schema.contract == {
                "metadata": {
                    "properties": {"owner": "ada", "tier": "3", "company": "acme"}, "sensitive": ["email", "ssn"],
                },
                "ruleSet": {"domainRules": [{"name": "b", "type": "CEL"}, new], "migrationRules": [own]},
            }  # fmt: skip
            assert registry.lookups.version("other", "1").schema.contract == {}
            found = registry.lookups.find("s", read(registry, '"int"'))
            assert found is not None
            assert found.version == 1, "as it is"
            again = registry.lookups.registered("s", read(registry, '"int"'))
            assert again is not None
            assert again.version == 2, "with what it would be registered with"
        fixture.write(fixture.registry.change_settings("s", {name: {} for name in settings})[1])
        assert not fixture.registry.lookups.settings("s").completes

    def test_narrower_settings_replace_defaults(self) -> None:
        fixture = Fixture()
        fixture.write(fixture.registry.change_settings(None, {"defaultMetadata": self.OWNER["metadata"]})[1])
        assert fixture.registry.lookups.settings("s").default_metadata == self.OWNER["metadata"]
        fixture.set_level("s", "NONE")
        assert fixture.registry.lookups.settings("s").default_metadata is None

    def test_the_number_of_a_version_is_noted(self) -> None:
        fixture = Fixture()
        fixture.register("s", '"int"', number=1)
        fixture.register("s", '"long"', number=2)
        fixture.register("s", '"float"')
        for number in (1, 2, 3):
            noted = fixture.registry.lookups.version("s", str(number)).schema.contract["metadata"]["properties"]
            assert noted == {"confluent:version": str(number)}
        assert fixture.register("s", '"float"') == 3

    @pytest.mark.parametrize(
        "wrong",
        [
            {"metadata": {"properties": []}}, {"metadata": {"sensitive": [1]}}, {"ruleSet": {"domainRules": {}}},
            {"ruleSet": {"migrationRules": ["x"]}},
        ],
    )  # fmt: skip
    def test_wrong_forms_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidRuleSet):
            read(Registry(), '"int"', **wrong)
        [(name, value)] = wrong.items()
        with pytest.raises(InvalidRuleSet):
            Registry().change_settings(None, {f"default{name[0].upper()}{name[1:]}": value})

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
    with pytest.raises(IncompatibleSchema, match="different schema type"):
        fixture.register("s", '{"type":"string"}', kind=JSON)
    fixture.set_level("s", "NONE")
    assert fixture.register("s", '{"type":"string"}', kind=JSON) == 2


def test_settings_that_this_registry_does_not_have_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="validateFields"):
        Registry().change_settings(None, {"validateFields": True})
    with pytest.raises(InvalidRequest, match="normalize"):
        Registry().change_settings(None, {"normalize": "yes"})
