"""JSON Schema: what is valid, and which changes readers can follow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.validators import Draft7Validator

from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.formats.json_schema import canonical, conflicts
from pylogd.services.registry.model import Definition, Definitions

TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
CLOSED = {"additionalProperties": False}


def object_of(*required: str, extra: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **(extra or {})}


def items(*schemas: Any, rest: Any = True) -> dict[str, Any]:
    return {"type": "array", "items": list(schemas), "additionalItems": rest}


def one(schema: Any, **used: Any) -> Definitions:
    return (*(Definition(name, json.dumps(each)) for name, each in used.items()), Definition("", json.dumps(schema)))


#: Changes, and what makes them incompatible, if anything does. As Confluent's registry answers; its tables of tests
#: (json-schema-provider, 263 changes in two dialects) are answered alike but for one, which is the last of these.
CHANGES: list[tuple[str, Any, Any, list[str]]] = [
    ("notes for people", {"title": "a", "description": "b"}, {"title": "c", "default": 1}, []),
    ("a schema becomes anything", TEXT, {}, []),
    ("anything becomes a schema", {}, TEXT, ["TYPE_CHANGED at #/"]),
    ("another type", TEXT, NUMBER, ["TYPE_CHANGED at #/"]),
    ("an integer becomes a number", WHOLE, NUMBER, []),
    ("a number becomes an integer", NUMBER, WHOLE, ["TYPE_NARROWED at #/"]),
    ("a longer text", {"maxLength": 5}, {"maxLength": 6}, []),
    ("a shorter text", {"maxLength": 5}, {"maxLength": 4}, ["MAX_LENGTH_DECREASED at #/maxLength"]),
    ("no limit of length", {"maxLength": 5, "minLength": 1}, {"minLength": 1}, []),
    ("a limit of length", TEXT, {**TEXT, "minLength": 1}, ["MIN_LENGTH_ADDED at #/minLength"]),
    ("another pattern", {"pattern": "a"}, {"pattern": "a|b"}, ["PATTERN_CHANGED at #/pattern"]),
    ("no pattern", {**TEXT, "pattern": "a"}, TEXT, []),
    ("a higher maximum", {"maximum": 1}, {"maximum": 1.5}, []),
    ("a higher minimum", {"minimum": 1}, {"minimum": 1.5}, ["MINIMUM_INCREASED at #/minimum"]),
    ("an exclusive limit", NUMBER, {**NUMBER, "exclusiveMaximum": 3},
     ["EXCLUSIVE_MAXIMUM_ADDED at #/exclusiveMaximum"]),
    ("an exclusive limit as in draft 4", {**DRAFT_4, "maximum": 3, "exclusiveMaximum": True},
     {**DRAFT_4, "maximum": 2, "exclusiveMaximum": True}, ["EXCLUSIVE_MAXIMUM_DECREASED at #/exclusiveMaximum"]),
    ("a divisor of the divisor", {"multipleOf": 0.5}, {"multipleOf": 0.25}, []),
    ("a multiple of the divisor", {"multipleOf": 0.5}, {"multipleOf": 1},
     ["MULTIPLE_OF_EXPANDED at #/multipleOf"]),
    ("another divisor", {"multipleOf": 3}, {"multipleOf": 2}, ["MULTIPLE_OF_CHANGED at #/multipleOf"]),
    ("one more value", {"enum": [1, "a"]}, {"enum": ["a", 1, True]}, []),
    ("one value less", {"enum": [1, 2]}, {"enum": [1]}, ["ENUM_ARRAY_NARROWED at #/enum"]),
    ("true is not 1", {"enum": [1]}, {"enum": [True, 2]}, ["ENUM_ARRAY_CHANGED at #/enum"]),
    ("another constant", {"const": 1}, {"const": 2}, ["ENUM_ARRAY_CHANGED at #/const"]),
    ("not: more is allowed", {"not": {"type": ["string", "number"]}}, {"not": TEXT}, []),
    ("not: less is allowed", {"not": WHOLE}, {"not": NUMBER}, ["NOT_TYPE_EXTENDED at #/not"]),
    ("a condition", {"if": TEXT, "then": {"maxLength": 3}}, {"if": TEXT, "then": {"maxLength": 4}},
     ["CONDITION_CHANGED at #/then"]),
    ("a list of types grows", {"type": "string"}, {"type": ["null", "string"]}, []),
    ("a list of types shrinks", {"type": ["null", "string", "number"]}, {"type": ["null", "string"]},
     ["SUM_TYPE_NARROWED at #/"]),
    ("a choice of one", TEXT, {"oneOf": [TEXT]}, []),
    ("a choice of all becomes one of them", {"allOf": [TEXT, {"maxLength": 3}]}, TEXT, []),
    ("all becomes any", {"allOf": [TEXT, {"enum": ["a"]}]}, {"anyOf": [TEXT, {"enum": ["a"]}]}, []),
    ("any becomes all", {"anyOf": [TEXT, NUMBER]}, {"allOf": [TEXT, NUMBER]}, ["COMBINED_TYPE_CHANGED at #/"]),
    ("one more condition", {"allOf": [TEXT]}, {"allOf": [TEXT, {"enum": ["a"]}]}, ["PRODUCT_TYPE_EXTENDED at #/"]),
    ("the same condition twice", {"allOf": [TEXT]}, {"allOf": [TEXT, TEXT]}, []),
    ("each fits another one", {"anyOf": [WHOLE, NUMBER]}, {"anyOf": [NUMBER, WHOLE]}, []),
    ("one fits none", {"oneOf": [TEXT, NUMBER]}, {"oneOf": [TEXT, {"type": "null"}]},
     ["COMBINED_TYPE_SUBSCHEMAS_CHANGED at #/"]),
    # objects
    ("a required property is optional", object_of("a", a=TEXT), object_of(a=TEXT), []),
    ("a property is required", object_of(a=TEXT), object_of("a", a=TEXT), ["REQUIRED_ATTRIBUTE_ADDED at #/required/a"]),
    ("a property is required, and has a default", object_of(a=TEXT), object_of("a", a={**TEXT, "default": ""}), []),
    ("open: a property", object_of(a=TEXT), object_of(a=TEXT, b=TEXT),
     ["OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL at #/properties/b"]),
    ("open: a property that may be anything", object_of(a=TEXT), object_of(a=TEXT, b={}), []),
    ("open: no property", object_of(a=TEXT, b=TEXT), object_of(a=TEXT), []),
    ("open: a required property", object_of(), object_of("b", b=TEXT),
     ["REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL at #/properties/b"]),
    ("closed: a property", object_of(a=TEXT, extra=CLOSED), object_of(a=TEXT, b=TEXT, extra=CLOSED), []),
    ("closed: no property", object_of(a=TEXT, b=TEXT, extra=CLOSED), object_of(a=TEXT, extra=CLOSED),
     ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL at #/properties/b"]),
    ("closed: no property that nothing may be", object_of(b=False, extra=CLOSED), object_of(extra=CLOSED), []),
    ("closed: a required property", object_of(extra=CLOSED), object_of("b", b=TEXT, extra=CLOSED),
     ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL at #/properties/b"]),
    ("closed: a required property with a default", object_of(extra=CLOSED),
     object_of("b", b={**TEXT, "default": ""}, extra=CLOSED), []),
    ("partially open: a property that fits", object_of(extra={"additionalProperties": TEXT}),
     object_of(b=TEXT, extra={"additionalProperties": TEXT}), []),
    ("partially open: a property that does not", object_of(extra={"additionalProperties": TEXT}),
     object_of(b=NUMBER, extra={"additionalProperties": TEXT}),
     ["TYPE_CHANGED at #/properties/b",
      "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL at #/properties/b"]),
    ("partially open: a property less that does not fit", object_of(b=NUMBER, extra={"additionalProperties": TEXT}),
     object_of(extra={"additionalProperties": TEXT}),
     ["TYPE_CHANGED at #/properties/b",
      "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL at #/properties/b"]),
    ("by a pattern of names", object_of(extra={"patternProperties": {"^b": TEXT}, **CLOSED}),
     object_of(b=TEXT, extra={"patternProperties": {"^b": TEXT}, **CLOSED}), []),
    ("open becomes closed", object_of(), object_of(extra=CLOSED),
     ["ADDITIONAL_PROPERTIES_REMOVED at #/additionalProperties"]),
    ("open becomes partially open", object_of(), object_of(extra={"additionalProperties": TEXT}),
     ["ADDITIONAL_PROPERTIES_NARROWED at #/additionalProperties"]),
    ("closed becomes open", object_of(extra=CLOSED), object_of(), []),
    ("unevaluated properties", object_of(), object_of(extra={"unevaluatedProperties": False}),
     ["UNEVALUATED_PROPERTIES_REMOVED at #/unevaluatedProperties"]),
    ("fewer properties", {"maxProperties": 2}, {"maxProperties": 1}, ["MAX_PROPERTIES_DECREASED at #/maxProperties"]),
    ("a dependency", object_of(), object_of(extra={"dependencies": {"a": ["b"]}}),
     ["DEPENDENCY_ARRAY_ADDED at #/dependencies/a"]),
    ("a dependency less", object_of(extra={"dependencies": {"a": ["b", "c"]}}),
     object_of(extra={"dependencies": {"a": ["b"]}}), []),
    ("a dependency more", object_of(extra={"dependentRequired": {"a": ["b"]}}),
     object_of(extra={"dependentRequired": {"a": ["b", "c"]}}), ["DEPENDENCY_ARRAY_EXTENDED at #/dependencies/a"]),
    ("inside", object_of(a=object_of(b=TEXT)), object_of(a=object_of(b=NUMBER)),
     ["TYPE_CHANGED at #/properties/a/properties/b"]),
    # arrays
    ("items of another type", {"items": TEXT}, {"items": NUMBER}, ["TYPE_CHANGED at #/items"]),
    ("no type of items", {"items": TEXT, "type": "array"}, {"type": "array"}, []),
    ("a type of items", {"type": "array"}, {"items": TEXT, "type": "array"}, ["SCHEMA_ADDED at #/items"]),
    ("fewer items", {"maxItems": 3}, {"maxItems": 2}, ["MAX_ITEMS_DECREASED at #/maxItems"]),
    ("unique items", {"uniqueItems": False}, {"uniqueItems": True}, ["UNIQUE_ITEMS_ADDED at #/uniqueItems"]),
    ("open: an item", items(TEXT), items(TEXT, NUMBER), ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL at #/items/1"]),
    ("open: an item less", items(TEXT, NUMBER), items(TEXT), []),
    ("closed: an item", items(TEXT, rest=False), items(TEXT, NUMBER, rest=False), []),
    ("closed: an item less", items(TEXT, NUMBER, rest=False), items(TEXT, rest=False),
     ["ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL at #/items/1"]),
    ("partially open: an item that fits", items(TEXT, rest=TEXT), items(TEXT, TEXT, rest=TEXT), []),
    ("partially open: an item less that does not fit", items(TEXT, NUMBER, rest=TEXT), items(TEXT, rest=TEXT),
     ["TYPE_CHANGED at #/items/1", "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL at #/items/1"]),
    ("first items of 2020-12", {"prefixItems": [TEXT], "items": False}, {"prefixItems": [NUMBER], "items": False},
     ["TYPE_CHANGED at #/items/0"]),
    ("what it contains", {"contains": TEXT, "type": "array"}, {"contains": NUMBER, "type": "array"},
     ["TYPE_CHANGED at #/contains"]),
    ("stricter than Confluent: required without a property", object_of("a", a=TEXT), object_of("b", a=TEXT),
     ["REQUIRED_ATTRIBUTE_ADDED at #/required/b"]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_changes(old: Any, new: Any, expected: list[str]) -> None:
    assert conflicts(one(new), one(old)) == expected
    assert conflicts(one(old), one(old)) == conflicts(one(new), one(new)) == [], "a schema is compatible with itself"


def test_a_recursive_schema() -> None:
    tree = {"$id": "http://x/tree", "type": "object", "properties": {"next": {"$ref": "#"}, "n": WHOLE}}
    wider = {**tree, "properties": {"next": {"$ref": "#"}, "n": NUMBER}}
    assert conflicts(one(wider), one(tree)) == []
    assert conflicts(one(tree), one(wider)) == ["TYPE_NARROWED at #/properties/n"]


def test_references_to_definitions_and_to_other_schemas() -> None:
    inside = {"definitions": {"n": WHOLE}, "properties": {"a": {"$ref": "#/definitions/n"}}}
    outside = {"properties": {"a": {"$ref": "n.json"}}}
    assert conflicts(one(outside, **{"n.json": NUMBER}), one(inside)) == []
    assert conflicts(one(inside), one(outside, **{"n.json": NUMBER})) == ["TYPE_NARROWED at #/properties/a"]
    based = {"$id": "http://example.com/a.json", **outside}
    assert canonical(one(based, **{"n.json": NUMBER}), normalize=False) == json.dumps(based, separators=(",", ":"))
    nested = one(outside, **{"deep.json": NUMBER, "n.json": {"$ref": "deep.json"}})
    assert conflicts(nested, one(inside)) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        ('{"type": "text"}', "at \\$.type"),
        ('{"properties": {"a": {"minLength": -1}}}', "at \\$.properties.a.minLength"),
        ('{"$ref": "#/definitions/a"}', "can't be found"),
        ('{"properties": {"a": {"$ref": "other.json"}}}', "'other.json' can't be found"),
        ('{"$ref": "file:///etc/passwd"}', "can't be found"),
        ('{"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}', "at \\$.items"),
    ],
)
def test_texts_that_are_no_schema(text: str, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        canonical((Definition("", text),), normalize=False)


def test_references_in_a_circle_are_refused() -> None:
    circle: dict[str, Any] = {
        "definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}},
        "items": {},
    }
    circle["items"] = {"$ref": "#/definitions/a"}
    with pytest.raises(InvalidSchema, match="circle"):
        conflicts(one(circle), one(circle | {"title": "other"}))


# Any schema, any value

_CONSTANTS = st.sampled_from([None, "a", "bb", 1, 2.5, True])
_LENGTHS = {"maxLength": st.integers(0, 2), "minLength": st.just(1)}
_leaves = st.one_of(
    st.just(True),
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "number", "null", "boolean"])}),
    st.fixed_dictionaries({"enum": st.lists(_CONSTANTS, min_size=1, unique_by=repr)}),
    st.fixed_dictionaries({}, optional={"minimum": st.integers(-2, 2), "maximum": st.integers(-2, 2)}),
    st.fixed_dictionaries({"type": st.just("string")}, optional=_LENGTHS),
    st.fixed_dictionaries({"multipleOf": st.sampled_from([1, 2, 3])}),
)
_names = st.sampled_from(["a", "b"])
_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object")},
            optional={
                "properties": st.dictionaries(_names, inner, max_size=2),
                "required": st.lists(_names, unique=True, max_size=2),
                "additionalProperties": inner | st.just(False),
                "maxProperties": st.integers(0, 2),
                "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
            },
        ),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"maxItems": st.integers(0, 2)}),
        st.fixed_dictionaries(
            {"items": st.lists(inner, min_size=1, max_size=2), "additionalItems": inner | st.just(False)}
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=5,
)
_values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 3, 2.5, -2, "", "a", "bb", "ccc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(_schemas, _schemas, st.lists(_values, min_size=10, max_size=10))
def test_a_value_that_was_valid_is_valid_after_a_compatible_change(old: Any, new: Any, values: list[Any]) -> None:
    assert conflicts(one(old), one(old)) == []
    if conflicts(one(new), one(old)):
        return
    before, after = Draft7Validator(old), Draft7Validator(new)
    for value in values:
        assert not before.is_valid(value) or after.is_valid(value), value
