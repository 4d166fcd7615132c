"""Find the changes of a JSON Schema that make a valid value invalid.

Strategy: two nodes and their parts are compared: the node with which data was written (`old`), and the node with which
it is read (`new`). The rules and the names of the changes are those of Confluent's registry with its strict policy, and
so are the content models: an object or array is open if it may have any further members, closed if it refuses them, and
partially open if it has a schema for them. Only incompatible changes are reported. A pair of nodes that is being
compared already counts as compatible: otherwise, the difference is reported where the comparison began.

This is stricter than Confluent, which ignores these: `contains`, `propertyNames`, `patternProperties`, `if`, names in
`required` that are not in `properties`, and a new `type` beside other keywords.
Source: Confluent's documentation of JSON Schema compatibility; its test tables (`tests/unit/services/registry`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

from pylogd.client.registry.pattern_engines import Untranslatable
from pylogd.client.registry.patterns import InvalidPattern, for_python
from pylogd.services.registry.formats import Changes
from pylogd.services.registry.formats.json_nodes import COMBINED, Kind, Node, same

#: Keywords that limit a value: a change is compatible if it loosens the limit.
_UPPER: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.STRING: ("maxLength",),
    Kind.NUMBER: ("maximum", "exclusiveMaximum"),
    Kind.OBJECT: ("maxProperties",),
    Kind.ARRAY: ("maxItems", "maxContains"),
}
_LOWER: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.STRING: ("minLength",),
    Kind.NUMBER: ("minimum", "exclusiveMinimum"),
    Kind.OBJECT: ("minProperties",),
    Kind.ARRAY: ("minItems", "minContains"),
}
_ABSENT: Final = object()


def incompatibilities(old: Node, new: Node) -> list[str]:
    """Return the incompatible changes from `old` to `new`, each with its place in the schema."""
    comparison = _Comparison()
    comparison.compare(old, new)
    return comparison.once()


class _Comparison(Changes):
    """One comparison of two nodes and their parts."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[tuple[Node, Node]] = set()
        self._by_kind: dict[Kind, Callable[[Node, Node], None]] = {
            Kind.STRING: self._strings, Kind.NUMBER: self._numbers, Kind.ENUM: self._enums, Kind.CONST: self._consts,
            Kind.NOT: self._nots, Kind.IF: self._ifs, Kind.OBJECT: self._objects, Kind.ARRAY: self._arrays,
        }  # fmt: skip

    def _tried(self, old: Node, new: Node) -> list[str]:
        """Compare without reporting. Return the differences."""
        kept, self.found = self.found, []
        try:
            self.compare(old, new)
            return self.found
        finally:
            self.found = kept

    # Nodes ---------------------------------------------------------------------------------------------------------

    def compare(self, old: Node, new: Node) -> None:
        """Compare two nodes, and report."""
        if old is new or (old, new) in self._running:
            return
        self._running.add((old, new))
        try:
            self._compare(old, new)
        finally:
            self._running.remove((old, new))

    def _compare(self, old: Node, new: Node) -> None:
        if old.kind is Kind.FALSE or new.kind is Kind.TRUE or self._is_one_part(old, new):
            return
        combined = old.kind in COMBINED and new.kind in COMBINED
        if old.kind is not new.kind and not combined:
            if [one.schema.get("connect.type") for one in (old, new)] != ["bytes", "bytes"]:
                self.report("TYPE_CHANGED")
            return
        if new.typed and not old.typed and not combined:
            self.report("TYPE_NARROWED")
        if combined:
            self._combinations(old, new)
            return
        self._limits(old, new)
        if old.kind in self._by_kind:
            self._by_kind[old.kind](old, new)

    def _is_one_part(self, old: Node, new: Node) -> bool:
        """Return whether a schema was put into a combination, or taken out of one, such that the whole is looser."""
        if old.kind not in COMBINED and new.kind in COMBINED:
            choice = new.kind in (Kind.ANY, Kind.ONE) or len(new.parts) == 1
            return choice and any(not self._tried(old, part) for part in new.parts)
        if old.kind in COMBINED and new.kind not in COMBINED:
            choice = old.kind is Kind.ALL or len(old.parts) == 1
            return choice and any(not self._tried(part, new) for part in old.parts)
        return False

    def _combinations(self, old: Node, new: Node) -> None:
        one_old, one_new = len(old.parts) == 1, len(new.parts) == 1
        extended = (
            new.kind is Kind.ANY or (one_old and (one_new or new.kind is Kind.ONE))
            or (one_new and old.kind is Kind.ALL)
        )  # fmt: skip
        if old.kind is not new.kind and not extended:
            self.report("COMBINED_TYPE_CHANGED")
            return
        mine, theirs = _distinct(old.parts), _distinct(new.parts)
        if len(mine) < len(theirs) and new.kind is Kind.ALL:
            self.report("PRODUCT_TYPE_EXTENDED")
        if len(mine) > len(theirs) and old.kind is not Kind.ALL:
            self.report("SUM_TYPE_NARROWED")
        tries = [[self._tried(before, after) for after in theirs] for before in mine]
        edges = [{at for at, found in enumerate(row) if not found} for row in tries]
        if _most_pairs(edges) < min(len(mine), len(theirs)):
            self.report("COMBINED_TYPE_SUBSCHEMAS_CHANGED")

    def _limits(self, old: Node, new: Node) -> None:
        for table, tighter in ((_UPPER, "DECREASED"), (_LOWER, "INCREASED")):
            for keyword in table.get(old.kind, ()):
                before, after = old.number(keyword), new.number(keyword)
                if after is None or before == after:
                    continue
                if before is None:
                    self.report(_constant(keyword) + "_ADDED", keyword)
                elif (after < before) == (tighter == "DECREASED"):
                    self.report(f"{_constant(keyword)}_{tighter}", keyword)

    def _strings(self, old: Node, new: Node) -> None:
        before, after = old.schema.get("pattern"), new.schema.get("pattern")
        if after is not None and before != after:
            self.report("PATTERN_ADDED" if before is None else "PATTERN_CHANGED", "pattern")

    def _numbers(self, old: Node, new: Node) -> None:
        before, after = old.number("multipleOf"), new.number("multipleOf")
        if after is not None and before is None:
            self.report("MULTIPLE_OF_ADDED", "multipleOf")
        elif after is not None and before is not None and Fraction(str(before)) % Fraction(str(after)):
            expanded = Fraction(str(after)) % Fraction(str(before)) == 0
            self.report("MULTIPLE_OF_EXPANDED" if expanded else "MULTIPLE_OF_CHANGED", "multipleOf")
        if new.integer and not old.integer:
            self.report("TYPE_NARROWED")

    def _enums(self, old: Node, new: Node) -> None:
        before, after = old.schema["enum"], new.schema["enum"]
        if not all(any(same(one, other) for other in after) for one in before):
            narrowed = all(any(same(one, other) for other in before) for one in after)
            self.report("ENUM_ARRAY_NARROWED" if narrowed else "ENUM_ARRAY_CHANGED", "enum")

    def _consts(self, old: Node, new: Node) -> None:
        if not same(old.schema["const"], new.schema["const"]):
            self.report("ENUM_ARRAY_CHANGED", "const")

    def _nots(self, old: Node, new: Node) -> None:
        if self._tried(new.child(new.schema["not"]), old.child(old.schema["not"])):
            self.report("NOT_TYPE_EXTENDED", "not")

    def _ifs(self, old: Node, new: Node) -> None:
        for keyword in ("if", "then", "else"):
            if not same(old.schema.get(keyword), new.schema.get(keyword)):
                self.report("CONDITION_CHANGED", keyword)

    # Objects -------------------------------------------------------------------------------------------------------

    def _objects(self, old: Node, new: Node) -> None:
        self._required(old, new)
        for name in {**_properties(old), **_properties(new)}:
            with self.at("properties", name):
                self._property(name, old, new)
        self._dependencies(old, new)
        self._further("additionalProperties", old, new)
        self._further("unevaluatedProperties", old, new)
        for pattern, schema in new.schema.get("patternProperties", {}).items():
            with self.at("patternProperties", pattern):
                before = old.schema.get("patternProperties", {}).get(pattern, old.schema.get("additionalProperties"))
                self._subschema("PATTERN_PROPERTY_ADDED", old, new, before, schema)
        with self.at("propertyNames"):
            self._subschema(
                "PROPERTY_NAMES_ADDED", old, new, old.schema.get("propertyNames"), new.schema.get("propertyNames")
            )

    def _subschema(self, added: str, old: Node, new: Node, before: Any, after: Any) -> None:
        """Compare schemas, which are None if absent. Report `added` for a new one."""
        if after is None:
            return
        if before is not None:
            self.compare(old.child(before), new.child(after))
        elif new.child(after).kind is not Kind.TRUE:
            self.report(added)

    def _required(self, old: Node, new: Node) -> None:
        before, after = _required(old), _required(new)
        mine, theirs = _properties(old), _properties(new)
        for name in sorted(after - before):
            if name in mine and name in theirs:
                if not _has_default(theirs[name]):
                    self.report("REQUIRED_ATTRIBUTE_ADDED", "required", name)
            elif name not in theirs:
                self.report("REQUIRED_ATTRIBUTE_ADDED", "required", name)

    def _property(self, name: str, old: Node, new: Node) -> None:
        before, after = _properties(old).get(name, _ABSENT), _properties(new).get(name, _ABSENT)
        if after is _ABSENT:
            self._property_removed(name, old.child(before), new)
        elif before is _ABSENT:
            self._property_added(name, after, old, new)
        else:
            self.compare(old.child(before), new.child(after))

    def _property_removed(self, name: str, before: Node, new: Node) -> None:
        if _is_open(new):
            return
        further = _further_property(new, name)
        if further is not None:
            reasons = self._tried(before, further)
            if reasons:
                self.found += reasons
                self.report("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")
        elif before.kind is not Kind.FALSE:
            self.report("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL")

    def _property_added(self, name: str, after: Any, old: Node, new: Node) -> None:
        node = new.child(after)
        required = name in _required(new) and name not in _required(old)
        if _is_open(old):
            if required:
                way = "REQUIRED_PROPERTY_WITH_DEFAULT" if _has_default(after) else "REQUIRED_PROPERTY"
                self.report(f"{way}_ADDED_TO_OPEN_CONTENT_MODEL")
            elif node.kind is not Kind.TRUE:
                self.report("OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL")
            return
        further = _further_property(old, name)
        reasons = [] if further is None else self._tried(further, node)
        if reasons:
            self.found += reasons
            self.report("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")
        if required and not _has_default(after):
            self.report("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL")

    def _further(self, keyword: str, old: Node, new: Node) -> None:
        """Compare the schemas of further members of an object or an array; without a schema they may be anything."""
        before, after = old.schema.get(keyword, True), new.schema.get(keyword, True)
        mine, theirs = old.child(before), new.child(after)
        with self.at(keyword):
            if Kind.FALSE in (mine.kind, theirs.kind):
                if mine.kind is not Kind.FALSE:
                    self.report(_constant(keyword) + "_REMOVED")
            elif mine.kind is Kind.TRUE and theirs.kind is not Kind.TRUE:
                self.report(_constant(keyword) + "_NARROWED")
            else:
                self.compare(mine, theirs)

    def _dependencies(self, old: Node, new: Node) -> None:
        mine, theirs = _dependencies(old), _dependencies(new)
        for name, after in theirs.items():
            before = mine.get(name, _ABSENT)
            with self.at("dependencies", name):
                if isinstance(after, list):
                    if not isinstance(before, list):
                        self.report("DEPENDENCY_ARRAY_ADDED")
                    elif not set(after) <= set(before):
                        wider = set(before) <= set(after)
                        self.report("DEPENDENCY_ARRAY_EXTENDED" if wider else "DEPENDENCY_ARRAY_CHANGED")
                elif before is _ABSENT or isinstance(before, list):
                    self.report("DEPENDENCY_SCHEMA_ADDED")
                else:
                    self.compare(old.child(before), new.child(after))

    # Arrays --------------------------------------------------------------------------------------------------------

    def _arrays(self, old: Node, new: Node) -> None:
        if new.schema.get("uniqueItems") and not old.schema.get("uniqueItems"):
            self.report("UNIQUE_ITEMS_ADDED", "uniqueItems")
        with self.at("contains"):
            self._subschema("CONTAINS_ADDED", old, new, old.schema.get("contains"), new.schema.get("contains"))
        with self.at("items"):
            mine, theirs = _item_schema(old), _item_schema(new)
            if theirs is not None and mine is None:
                if theirs.kind is not Kind.TRUE and not _first_items(old):
                    self.report("SCHEMA_ADDED")
            elif theirs is not None and mine is not None:
                self.compare(mine, theirs)
        self._items(old, new)
        self._items_after(old, new)
        self._further("unevaluatedItems", old, new)

    def _items(self, old: Node, new: Node) -> None:
        mine, theirs = _first_items(old), _first_items(new)
        for at in range(max(len(mine), len(theirs))):
            with self.at("items", at):
                if at < len(mine) and at < len(theirs):
                    self.compare(mine[at], theirs[at])
                elif at < len(mine):
                    self._item_removed(mine[at], new)
                else:
                    self._item_added(theirs[at], old)

    def _item_removed(self, before: Node, new: Node) -> None:
        further = _further_item(new)
        if further is None:
            return
        if further.kind is Kind.FALSE:
            if before.kind is not Kind.FALSE:
                self.report("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL")
            return
        reasons = self._tried(before, further)
        if reasons:
            self.found += reasons
            self.report("ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")

    def _item_added(self, after: Node, old: Node) -> None:
        further = _further_item(old)
        if further is None:
            if after.kind is not Kind.TRUE:
                self.report("ITEM_ADDED_TO_OPEN_CONTENT_MODEL")
            return
        reasons = self._tried(further, after)
        if reasons:
            self.found += reasons
            self.report("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")

    def _items_after(self, old: Node, new: Node) -> None:
        """Compare the schemas of the items after the first ones, if the first ones have their own schemas."""
        if not _first_items(old) and not _first_items(new):
            self._further("additionalItems", old, new)
            return
        mine, theirs = _rest_schema(old), _rest_schema(new)
        with self.at("additionalItems"):
            if theirs is None or theirs.kind is Kind.TRUE:
                return
            if theirs.kind is Kind.FALSE:
                if mine is None or mine.kind is not Kind.FALSE:
                    self.report("ADDITIONAL_ITEMS_REMOVED")
            elif mine is None or mine.kind is Kind.TRUE:
                self.report("ADDITIONAL_ITEMS_NARROWED")
            else:
                self.compare(mine, theirs)


def _constant(keyword: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", keyword).upper()


def _distinct(parts: tuple[Node, ...]) -> list[Node]:
    """Return the parts without duplicates."""
    return list({(part.kind, part.integer, json.dumps(part.schema, sort_keys=True)): part for part in parts}.values())


def _most_pairs(edges: list[set[int]]) -> int:
    """Return the most rows that can each have a different column.

    edges: the columns that fit each row.
    """
    taken: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column in edges[row] - tried:
            tried.add(column)
            if column not in taken or place(taken[column], tried):
                taken[column] = row
                return True
        return False

    return sum(place(row, set()) for row in range(len(edges)))


def _properties(node: Node) -> Mapping[str, Any]:
    found: Mapping[str, Any] = node.schema.get("properties", {})
    return found


def _required(node: Node) -> set[str]:
    found = node.schema.get("required", ())
    return set(found) if isinstance(found, list) else set()


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _is_open(node: Node) -> bool:
    """Return whether an object may have any further properties."""
    further = [node.schema.get(name) for name in ("additionalProperties", "unevaluatedProperties")]
    return not node.schema.get("patternProperties") and all(
        each is None or node.child(each).kind is Kind.TRUE for each in further
    )


def _further_property(node: Node, name: str) -> Node | None:
    """Return the schema of a property that is not in `properties`; None if the object refuses it or has no schema for
    it.
    """
    for pattern, schema in node.schema.get("patternProperties", {}).items():
        if _matches(pattern, name):
            return node.child(schema)
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in node.schema:
            found = node.child(node.schema[keyword])
            return None if found.kind is Kind.FALSE else found
    return node.child(True)


def _matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name; true for a pattern that can't be tried here."""
    try:
        return re.search(for_python(pattern), name) is not None
    except (InvalidPattern, Untranslatable):
        return True


def _dependencies(node: Node) -> dict[str, Any]:
    names = ("dependencies", "dependentRequired", "dependentSchemas")
    return {key: value for name in names for key, value in node.schema.get(name, {}).items()}


def _first_items(node: Node) -> list[Node]:
    """Return the schemas of the first items, by their place."""
    found = node.schema.get("prefixItems", node.schema.get("items"))
    return [node.child(each) for each in found] if isinstance(found, list) else []


def _item_schema(node: Node) -> Node | None:
    """Return the schema of all items; None if there is none, or if the first items have their own schemas."""
    found = node.schema.get("items")
    return None if found is None or isinstance(found, list) or "prefixItems" in node.schema else node.child(found)


def _rest_schema(node: Node) -> Node | None:
    """Return the schema of the items after the first ones; None if they may be anything."""
    if isinstance(node.schema.get("items"), list):
        found = node.schema.get("additionalItems")
    else:
        found = node.schema.get("items")
    return None if found is None else node.child(found)


def _further_item(node: Node) -> Node | None:
    """Return the schema of an item without its own schema; None if it may be anything."""
    found = _rest_schema(node)
    if found is None and "unevaluatedItems" in node.schema:
        found = node.child(node.schema["unevaluatedItems"])
    return None if found is None or found.kind is Kind.TRUE else found
