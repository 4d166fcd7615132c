"""Metadata and rules of a schema, its "data contract": inherited and added by settings, as in Confluent's registry.

Strategy: metadata and rules are each the schema's own, or else those of the previous version. They override the
defaults in the settings; the settings' overrides override them. Must not know: the registry's state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pylogd.services.registry.model import Schema
from pylogd.services.registry.settings import Settings

Contract = Mapping[str, Any]
#: The property of metadata with the number of the version.
VERSION: Final = "confluent:version"
_RULES: Final = ("migrationRules", "domainRules", "encodingRules")


def completed(schema: Schema, before: Schema | None, settings: Settings, version: int | None = None) -> Schema:
    """Return a schema with its whole metadata and rules.

    before: the subject's last version.
    version: the number to write to the metadata; None if it is written there already, or is not to be written.
    """
    own, last = schema.contract, {} if before is None else before.contract
    metadata = _metadata(settings.default_metadata, own.get("metadata") or last.get("metadata"))
    metadata = _metadata(metadata, settings.override_metadata)
    rules = _rules(settings.default_rule_set, own.get("ruleSet") or last.get("ruleSet"))
    rules = _rules(rules, settings.override_rule_set)
    if version is not None:
        properties = {**((metadata or {}).get("properties") or {}), VERSION: str(version)}
        metadata = {**(metadata or {}), "properties": properties}
    found = {name: value for name, value in (("metadata", metadata), ("ruleSet", rules)) if value}
    extras = json.dumps(found, sort_keys=True, separators=(",", ":")) if found else ""
    return schema if extras == schema.extras else Schema(schema.text, schema.references, schema.kind, extras)


def notes_version(schema: Schema) -> bool:
    """Return whether a schema's metadata has the number of its version."""
    return VERSION in ((schema.contract.get("metadata") or {}).get("properties") or {})


def rule_types(schema: Schema) -> set[str]:
    """Return the types of a schema's rules, such as `CEL` and `ENCRYPT`."""
    rules = schema.contract.get("ruleSet") or {}
    return {str(rule.get("type")) for name in _RULES for rule in rules.get(name) or ()}


def _metadata(general: Contract | None, special: Contract | None) -> Contract | None:
    """Return metadata with the additions and changes in `special`: tags and properties by name."""
    if not general or not special:
        return special or general
    merged: dict[str, Any] = {**general, **special}
    for name in ("tags", "properties"):
        if general.get(name) and special.get(name):
            merged[name] = {**general[name], **special[name]}
        elif general.get(name):
            merged[name] = general[name]
    sensitive = {*(general.get("sensitive") or ()), *(special.get("sensitive") or ())}
    return {**merged, "sensitive": sorted(sensitive)} if sensitive else merged


def _rules(general: Contract | None, special: Contract | None) -> Contract | None:
    """Return the rules of both; if two have the same name, return the one in `special`."""
    if not general or not special:
        return special or general
    merged: dict[str, Any] = {**general, **special}
    for name in _RULES:
        old, new = general.get(name) or [], special.get(name) or []
        names = {rule.get("name") for rule in new}
        if found := [*(rule for rule in old if rule.get("name") not in names), *new]:
            merged[name] = found
    return merged
