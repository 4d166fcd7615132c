"""The settings of the registry, of a context or of a subject, in the form of the API's `/config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from pylogd.services.registry.errors import InvalidRequest
from pylogd.services.registry.model import Compatibility, contract_of

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
