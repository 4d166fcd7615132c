"""The settings of the registry, of a context or of a subject, in the form of the API's `/config`.

A schema has a "data contract": metadata and rules, as in Confluent's registry. Each is the schema's own, or else those
of the previous version. They override the defaults in the settings; the settings' overrides override them. Must not
know: the registry's state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from pylogd.services.registry.errors import InvalidMode, InvalidRequest
from pylogd.services.registry.model import Compatibility, Schema, contract_of


class Mode(StrEnum):
    """The mode of the registry, of a context or of a subject. The narrowest mode applies."""

    READWRITE = "READWRITE"
    #: Schemas can't be registered or deleted, and compatibility levels can't be changed.
    READONLY = "READONLY"
    #: Only for the registry: READONLY for all subjects, whatever their own mode is.
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    #: The request names the id, and optionally the version, of a schema that it registers.
    IMPORT = "IMPORT"
    #: IMPORT for all contexts without their own mode: schemas from an exporter of another registry are accepted.
    FORWARD = "FORWARD"

    @property
    def writable(self) -> bool:
        """Whether the mode allows changes."""
        return self is Mode.READWRITE or self.imports

    @property
    def imports(self) -> bool:
        """Whether a registration names its id, and is not compared with earlier versions."""
        return self in (Mode.IMPORT, Mode.FORWARD)

    @classmethod
    def named(cls, name: object) -> Mode:
        """Return the mode of that name, in any case. Raises InvalidMode."""
        try:
            return cls(str(name).upper())
        except ValueError as error:
            raise InvalidMode("Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.") from error


_TEXTS: Final = {"alias": "alias", "compatibilityGroup": "group"}
_CONTRACTS: Final = {
    "defaultMetadata": "default_metadata", "overrideMetadata": "override_metadata",
    "defaultRuleSet": "default_rule_set", "overrideRuleSet": "override_rule_set",
}  # fmt: skip
#: Settings that a narrower scope does not inherit if it has its own settings.
_OWN: Final = ("alias", *_CONTRACTS.values())
#: Settings of Confluent's registry that this registry does not have.
_MISSING: Final = ("aliasForDeks", "compatibilityPolicy", "validateFields", "validateNewSchemas", "validateRules")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings. None means that a value is not set.

    alias: the subject to which requests for this one apply.
    normalize: whether all schemas are registered normalized.
    group: the name of a metadata property. Versions with the same value of the property must be compatible.
    default_metadata and others: the metadata and rules of registered schemas; see `contracts.completed`.
    """

    level: Compatibility | None = None
    normalize: bool | None = None
    alias: str | None = None
    group: str | None = None
    default_metadata: Mapping[str, Any] | None = None
    override_metadata: Mapping[str, Any] | None = None
    default_rule_set: Mapping[str, Any] | None = None
    override_rule_set: Mapping[str, Any] | None = None

    @property
    def completes(self) -> bool:
        """Whether schemas are registered with metadata or rules of the settings."""
        return any(getattr(self, name) for name in _CONTRACTS.values())

    def as_json(self, level: str) -> dict[str, Any]:
        """Return the settings as JSON, with the compatibility level under the name `level`."""
        document: dict[str, Any] = {name: getattr(self, mine) for name, mine in (_TEXTS | _CONTRACTS).items()}
        document |= {"normalize": self.normalize, level: None if self.level is None else self.level.value}
        return {name: value for name, value in document.items() if value is not None}

    def changed(self, document: Mapping[str, Any], level: str) -> Settings:
        """Return the settings with the changes of a request or a record.

        Raises InvalidCompatibility, InvalidRuleSet or InvalidRequest.
        """
        found = self
        if document.get(level) is not None:
            found = replace(found, level=Compatibility.named(document[level]))
        if document.get("normalize") is not None:
            if not isinstance(document["normalize"], bool):
                raise InvalidRequest("normalize must be true or false")
            found = replace(found, normalize=document["normalize"])
        for name, mine in _TEXTS.items():
            if document.get(name) is not None:
                if not isinstance(document[name], str):
                    raise InvalidRequest(f"{name} must be a string")
                found = replace(found, **{mine: document[name] or None})
        for name, mine in _CONTRACTS.items():
            if document.get(name) is not None:
                changes: dict[str, Any] = {mine: contract_of(document, name) or None}
                found = replace(found, **changes)
        return found

    def over(self, general: Settings) -> Settings:
        """Return these settings, completed by the settings of `general` that narrower scopes inherit."""
        names = [each.name for each in fields(self) if each.name not in _OWN]
        return replace(self, **{name: getattr(general, name) for name in names if getattr(self, name) is None})


def refuse_missing(document: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a request with settings that this registry does not have."""
    for name in _MISSING:
        if document.get(name) is not None:
            raise InvalidRequest(f"the setting {name} is not supported by this registry")


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
