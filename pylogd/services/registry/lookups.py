"""Queries on the registry's state: subjects, versions, schemas, settings and modes.

Must not know: HTTP, brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pylogd.services.registry.contexts import DEFAULT, EVERY, WILDCARD, QualifiedSubject, beside, context_of, prefix
from pylogd.services.registry.errors import (
    ConfigNotFound,
    IncompatibleSchema,
    InvalidSchema,
    InvalidVersion,
    ModeNotFound,
    SchemaNotFound,
    SubjectNotFound,
    VersionNotFound,
)
from pylogd.services.registry.model import (
    Comparison,
    Compatibility,
    Definitions,
    Reference,
    Schema,
    Version,
    definitions_of,
)
from pylogd.services.registry.settings import Mode, Settings, completed
from pylogd.services.registry.state import MAX_NUMBER, RegistryState

LATEST = "latest"


@dataclass(eq=False, slots=True)
class Lookups:
    """Queries on the state, and on the default settings, which hold where none were set.

    Arguments of several methods:
    deleted: whether soft-deleted versions are included.
    subject: the full name of the subject.
    """

    _state: RegistryState
    _default: Settings

    # Subjects and versions -----------------------------------------------------------------------------------------

    def contexts(self) -> list[str]:
        """Return the names of all contexts, the default one first."""
        return [DEFAULT, *sorted(self._state.contexts)]

    def subjects(self, *, deleted: bool = False, only: bool = False, start: str = WILDCARD) -> list[str]:
        """Return the full names of subjects, sorted.

        only: whether to return only subjects without a live version.
        start: the prefix of the names: `:.context:` for a context, `:*:` and a text for all contexts.
        """
        found = []
        for name, versions in self._state.subjects.items():
            live = any(not version.deleted for version in versions.values())
            if _begins(name, start) and ((not live) if only else (live or deleted)):
                found.append(name)
        return sorted(found)

    def has_subject(self, subject: str, *, deleted: bool = False) -> bool:
        """Return whether a subject has a version."""
        return any(deleted or not version.deleted for version in self._state.subjects.get(subject, {}).values())

    def versions(self, subject: str, *, deleted: bool = False, only: bool = False) -> list[int]:
        """Return the subject's versions, ascending.

        only: whether to return only deleted versions.

        Raises SubjectNotFound if there are none.
        """
        if not self.has_subject(subject, deleted=deleted or only):
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        versions = self._state.subjects[subject].items()
        return sorted(at for at, version in versions if (version.deleted if only else deleted or not version.deleted))

    def version(self, subject: str, which: str, *, deleted: bool = False) -> Version:
        """Return a version by its number, or the last one for "latest" or "-1".

        A subject that is not in the default context is searched for in the other contexts. Raises SubjectNotFound,
        VersionNotFound or InvalidVersion.
        """
        number = version_number(which)
        names = [subject]
        if context_of(subject) == DEFAULT:
            names += [prefix(context) + subject for context in sorted(self._state.contexts)]
        for name in names:
            found = self.numbered(name, number, deleted=deleted)
            if found is not None:
                return found
        if not self.has_subject(subject, deleted=deleted):
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        raise VersionNotFound(f"Version {number} not found.")

    def numbered(self, subject: str, number: int, *, deleted: bool) -> Version | None:
        versions = self._state.subjects.get(subject, {})
        if number < 0:
            live = [at for at, version in versions.items() if deleted or not version.deleted]
            return versions[max(live)] if live else None
        found = versions.get(number)
        return found if found is not None and (deleted or not found.deleted) else None

    def latest(self, subject: str) -> Version | None:
        """Return the last live version of a subject; None if it has none."""
        return self.numbered(subject, -1, deleted=False)

    def versions_with(self, subject: str, *, deleted: bool, metadata: Mapping[str, str]) -> Version:
        """Return the last version whose metadata has these properties. Raises SubjectNotFound or SchemaNotFound."""
        for number in reversed(self.versions(subject, deleted=deleted)):
            found = self._state.subjects[subject][number]
            properties = found.schema.members().get("metadata", {}).get("properties", {})
            if metadata.items() <= properties.items():
                return found
        raise SchemaNotFound("Schema not found")

    def listed(self, *, start: str, deleted: bool, latest: bool, aliases: bool = False) -> list[Version]:
        """Return the versions of all subjects that begin with `start`.

        latest: whether to return only the last version of each subject.
        aliases: whether to include subjects for which a subject that begins with `start` is an alias.
        """
        subjects = self.subjects(deleted=deleted, start=start)
        if aliases:
            meant = {
                each.alias for name, each in self._state.settings.items()
                if each.alias is not None and name is not None and _begins(name, start)
            }  # fmt: skip
            subjects = sorted({*subjects, *(name for name in meant if self.has_subject(name, deleted=deleted))})
        found = []
        for subject in subjects:
            numbers = self.versions(subject, deleted=deleted)
            found += [self._state.subjects[subject][number] for number in (numbers[-1:] if latest else numbers)]
        return found

    def find(self, subject: str, schema: Schema, *, deleted: bool = False) -> Version | None:
        """Return the newest version of a subject that has this schema, or None.

        A schema is also found in the form in which it would be registered: with inherited metadata and rules.
        """
        return self._first(subject, (schema, self.completing(subject, schema)), deleted=deleted)

    def registered(self, subject: str, schema: Schema) -> Version | None:
        """Return the version that an earlier registration of the schema has made, or None."""
        whole = self.completing(subject, schema)
        return self._first(subject, (whole,) if self.settings(subject).completes else (schema, whole), deleted=False)

    def _first(self, subject: str, schemas: Sequence[Schema], *, deleted: bool) -> Version | None:
        for identity in dict.fromkeys(each.identity for each in schemas):
            for _, version in sorted(self._state.subjects.get(subject, {}).items(), reverse=True):
                if (deleted or not version.deleted) and version.schema.identity == identity:
                    return version
        return None

    def completing(self, subject: str, schema: Schema, number: int | None = None) -> Schema:
        """Return a schema with the metadata and rules with which it is registered.

        number: see `contracts.completed`.
        """
        last = self.latest(subject)
        return completed(schema, None if last is None else last.schema, self.settings(subject), number)

    # Schemas -------------------------------------------------------------------------------------------------------

    def by_id(self, schema_id: int, subject: str = "") -> Schema:
        """Return the schema with an id.

        subject: its context is searched; "" means the default context, then all others.

        Raises SchemaNotFound.
        """
        return self._uses_in_context(schema_id, subject)[0].schema

    def _uses_in_context(self, schema_id: int, subject: str) -> list[Version]:
        context = context_of(subject)
        bare = QualifiedSubject.of(subject).subject
        for each in [context] if context != DEFAULT else [DEFAULT, *sorted(self._state.contexts)]:
            uses = self._state.uses.get((each, schema_id))
            if uses and (
                each == context or not bare or any(QualifiedSubject.of(name).subject == bare for name, _ in uses)
            ):
                return list(uses.values())
        raise SchemaNotFound(f"Schema {schema_id} not found")

    def uses_of(self, schema_id: int, subject: str = "", *, deleted: bool = False) -> list[Version]:
        """Return the versions that have a schema. Raises SchemaNotFound."""
        found = [use for use in self._uses_in_context(schema_id, subject) if deleted or not use.deleted]
        return sorted(found, key=lambda version: (version.subject, version.version))

    def by_guid(self, guid: str) -> dict[tuple[str, int], Version]:
        """Return a version for each (context, id) that has a schema. Raises SchemaNotFound."""
        found = self._state.guids.get(guid)
        if not found:
            raise SchemaNotFound(f"Schema {guid} not found")
        return dict(sorted(found.items()))

    def last_id(self, subject: str = "") -> int:
        """Return the largest id that was given so far in the context of a subject."""
        return self._state.last_ids.get(context_of(subject), 0)

    def knows(self, context: str, schema: Schema) -> bool:
        """Return whether a schema is registered in a context, and is therefore valid."""
        return (context, schema.identity) in self._state.ids

    # References ----------------------------------------------------------------------------------------------------

    def referring_to(self, subject: str, number: int, *, deleted: bool = False) -> list[Version]:
        """Return the versions that refer to this one."""
        return [
            version
            for version in self._state.all_versions()
            if version.schema.references and (deleted or not version.deleted)
            and any(
                (beside(version.subject, used.subject), used.version) == (subject, number)
                for used in version.schema.references
            )
        ]  # fmt: skip

    def resolve(self, parent: str, reference: Reference) -> tuple[str, Schema]:
        """Return the subject and the schema that a reference in a schema of the subject `parent` means. Raises
        InvalidSchema.
        """
        subject = beside(parent, reference.subject)
        found = self.numbered(subject, reference.version, deleted=True)
        if found is None:
            raise InvalidSchema(
                f'Invalid schema: No schema reference found for subject "{subject}" and version {reference.version} '
                f"(reference {reference.name!r})"
            )
        return subject, found.schema

    def definitions(self, subject: str, schema: Schema) -> Definitions:
        """Return the schemas that a schema of this subject refers to, then the schema itself. Raises InvalidSchema."""
        try:
            return definitions_of(subject, schema, self.resolve)
        except RecursionError:
            raise InvalidSchema("Invalid schema: its references form too long a chain") from None

    def comparison(self, subject: str, schema: Schema, which: str | None = None) -> Comparison | None:
        """Return the versions with which a schema must be compared: by the subject's level, or only version `which`.

        Return None if there is nothing to compare. Raises VersionNotFound, InvalidVersion or InvalidSchema.
        """
        settings = self.settings(subject)
        level = settings.level or Compatibility.BACKWARD
        if which is None:
            numbers = self.versions(subject) if self.has_subject(subject) else []
            live = [self._state.subjects[subject][number] for number in numbers]
            live = [version for version in live if self._in_group(settings.group, schema, version.schema)]
            earlier: Iterable[Version] = live if level.transitive else live[-1:]
        else:
            number = version_number(which)
            found = self.numbered(subject, number, deleted=False)
            if found is None and number > 0:
                raise VersionNotFound(f"Version {number} not found.")
            earlier = [] if found is None else [found]
        pairs = tuple((each.version, self.definitions(subject, each.schema)) for each in earlier)
        if level is Compatibility.NONE or not pairs:
            return None
        for each in earlier:
            if each.schema.kind != schema.kind:
                raise IncompatibleSchema.with_earlier(
                    subject,
                    [f"Incompatible because of different schema type: version {each.version} is {each.schema.kind}"],
                )
        return Comparison(schema.kind, level, self.definitions(subject, schema), pairs)

    @staticmethod
    def _in_group(group: str | None, *schemas: Schema) -> bool:
        """Return whether schemas have the same value of the property that groups them."""
        if group is None:
            return True
        values = [each.members().get("metadata", {}).get("properties", {}).get(group) for each in schemas]
        return len(set(map(str, values))) == 1

    # Settings ------------------------------------------------------------------------------------------------------

    def settings(self, subject: str | None = None) -> Settings:
        """Return the settings that hold for a subject: its own, then its context's, then the registry's."""
        scopes = [self._state.settings[each] for each in _scopes(subject) if each in self._state.settings]
        found = replace(scopes[0], alias=None) if scopes else Settings()
        for each in scopes[1:]:
            found = found.over(each)
        own = self._state.settings.get(subject)
        return replace(found.over(self._default), alias=None if own is None else own.alias)

    def own_settings(self, subject: str | None) -> Settings:
        """Return a subject's own settings; the registry's for None. Raises ConfigNotFound."""
        found = self._state.settings.get(subject)
        if found is None and subject not in (None, EVERY):
            raise ConfigNotFound(f"Subject '{subject}' does not have subject-level compatibility configured")
        return (found or Settings()).over(Settings(self._default.level))

    def mode(self, subject: str | None = None) -> Mode:
        """Return the mode that holds for a subject."""
        if self._state.modes.get(None) is Mode.READONLY_OVERRIDE:
            return Mode.READONLY_OVERRIDE
        return next((self._state.modes[each] for each in _scopes(subject) if each in self._state.modes), Mode.READWRITE)

    def own_mode(self, subject: str | None) -> Mode:
        """Return a subject's own mode; the registry's for None. Raises ModeNotFound."""
        found = self._state.modes.get(subject)
        if found is None and subject not in (None, EVERY):
            raise ModeNotFound(f"Subject '{subject}' does not have subject-level mode configured")
        return found or Mode.READWRITE


def _begins(subject: str, start: str) -> bool:
    """Return whether a subject begins with a text, which may name contexts as in `Lookups.subjects`."""
    if start.startswith(WILDCARD):
        return QualifiedSubject.of(subject).subject.startswith(start.removeprefix(WILDCARD))
    return subject.startswith(start) and (bool(start) or context_of(subject) == DEFAULT)


def _scopes(subject: str | None) -> list[str | None]:
    """Return the keys of settings that hold for a subject, the narrowest first."""
    context = context_of(subject)
    general = None if context == DEFAULT else prefix(context)
    return list(dict.fromkeys([subject, general, EVERY]))


def version_number(which: str) -> int:
    """Return the number that a version's text means; -1 for the last version. Raises InvalidVersion."""
    if which in (LATEST, "-1"):
        return -1
    if not which.isascii() or not which.isdigit() or not 0 < int(which) <= MAX_NUMBER:
        raise InvalidVersion(
            f"The specified version '{which}' is not a valid version id. "
            'Allowed values are between [1, 2^31-1] and the string "latest"'
        )
    return int(which)


def documents(versions: Iterable[Version]) -> list[dict[str, Any]]:
    """Return versions as JSON."""
    return [version.as_json() for version in versions]
