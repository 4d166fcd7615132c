"""Changes of the registry: check registrations, deletions and settings, and make their records.

Strategy: the records of a change are computed from the state. The caller writes the records to the topic, and the
change takes effect when they are read back (`state`).

Rules:
- Deleting a version hides it; deleting it permanently (`permanent`) removes a hidden version.
- Versions of a subject are numbered from 1. Clients choose ids and versions only in mode IMPORT.
- A schema is compared with earlier schemas outside of this class (`comparison`), because it can take long.
- A version that another schema refers to is not deleted.
Must not know: HTTP, brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pylogd.services.registry.contexts import DEFAULT, EVERY, context_of, prefix
from pylogd.services.registry.errors import (
    ConfigNotFound,
    ContextNotEmpty,
    IdDoesNotMatch,
    InvalidMode,
    InvalidSchema,
    OperationNotPermitted,
    ReferenceExists,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from pylogd.services.registry.lookups import LATEST, Lookups, version_number
from pylogd.services.registry.model import Comparison, Compatibility, NotCompared, Schema, TopicRecord, Version
from pylogd.services.registry.settings import Mode, Settings, notes_version, refuse_missing
from pylogd.services.registry.state import (
    MAX_NUMBER,
    TAKEOVER,
    RegistryState,
    context_record,
    mode_record,
    schema_record,
    settings_record,
)

__all__ = ["LATEST", "MAX_NUMBER", "TAKEOVER", "Registry"]


class Registry:
    """The registry. Its methods return the records to write, and change nothing yet.

    state: the state after all records of the topic that were applied to it.
    lookups: queries on the state.
    """

    def __init__(self, level: Compatibility = Compatibility.BACKWARD) -> None:
        """level: the compatibility level if none was set."""
        self.state = RegistryState()
        self.lookups = Lookups(self.state, Settings(level))

    # Schemas -------------------------------------------------------------------------------------------------------

    def register(
        self,
        subject: str,
        schema: Schema,
        schema_id: int | None = None,
        number: int | None = None,
        *,
        passed: Comparison | None = None,
        force: bool = False,
    ) -> tuple[Version, list[TopicRecord]]:
        """Return the version of a valid schema and the records to write; no records if the subject has the schema
        already.

        schema_id, number: the id and version that the client requests; None for the next one.
        passed: the comparison with earlier versions that found the schema compatible.
        force: whether the schema need not be compatible.

        Raises NotCompared if another comparison is necessary; InvalidSchema for a version that is not the next one;
        OperationNotPermitted if the mode forbids the registration.
        """
        known = self.lookups.registered(subject, schema)
        if known is not None and schema_id in (None, known.id) and number in (None, known.version):
            return known, []
        mode, context = self._check_writable(subject), context_of(subject)
        following = self.state.last_versions.get(subject, 0) + 1
        if mode.imports:
            if schema_id is None:
                raise _wrong_mode(subject, "not in read-write mode")
            self._check_import(subject, schema, schema_id, number)
        else:
            if schema_id is not None:
                raise _wrong_mode(subject, "not in import mode")
            if number not in (None, following):
                raise InvalidSchema("Version is not one more than previous version")
            schema = self.lookups.completing(subject, schema)
            if number is not None or notes_version(schema):
                schema = self.lookups.completing(subject, schema, following)
            needed = None if force else self.lookups.comparison(subject, schema)
            if needed is not None and needed != passed:
                raise NotCompared(needed)
            schema_id = self.state.ids.get((context, schema.identity)) or self._next_id(context)
        version = Version(subject, number or following, schema_id, schema, guid=schema.guid)
        records = [context_record(context)] if context not in (DEFAULT, *self.state.contexts) else []
        return version, [*records, *self._replaced(version), schema_record(version)]

    def _replaced(self, version: Version) -> list[TopicRecord]:
        """Return the records that remove deleted versions with the same id, unless a schema refers to them."""
        return [
            TopicRecord(schema_record(before).key, None)
            for number, before in sorted(self.state.subjects.get(version.subject, {}).items())
            if before.deleted and before.id == version.id and number < version.version
            and not self.lookups.referring_to(version.subject, number, deleted=True)
        ]  # fmt: skip

    def _check_import(self, subject: str, schema: Schema, schema_id: int, number: int | None) -> None:
        context = context_of(subject)
        uses = self.state.uses.get((context, schema_id), {})
        if any(use.schema.identity != schema.identity for use in uses.values()):
            raise OperationNotPermitted(
                f"Overwrite new schema with id {schema_id} in context {prefix(context)} is not permitted."
            )
        there = self.state.subjects.get(subject, {}).get(number or 0)
        if there is not None and (there.id, there.schema.identity) != (schema_id, schema.identity):
            raise IdDoesNotMatch(
                f"Version {number} of subject {subject} has id {there.id} already: it can't be imported as {schema_id}"
            )

    def _check_writable(self, subject: str | None) -> Mode:
        mode = self.lookups.mode(subject)
        if not mode.writable:
            raise _wrong_mode(subject, "in read-only mode")
        return mode

    def _next_id(self, context: str) -> int:
        last = self.state.last_ids.get(context, 0)
        if last >= MAX_NUMBER:
            raise OperationNotPermitted(f"all ids up to the largest one, {MAX_NUMBER}, are in use")
        return last + 1

    # Deletions -----------------------------------------------------------------------------------------------------

    def delete_version(self, subject: str, which: str, *, permanent: bool) -> tuple[int, list[TopicRecord]]:
        """Return the deleted version's number and the records to write.

        Raises SubjectNotFound, VersionNotFound, InvalidVersion, VersionSoftDeleted, VersionNotSoftDeleted,
        ReferenceExists or OperationNotPermitted.
        """
        number = version_number(which)
        found = self.lookups.numbered(subject, number, deleted=number > 0)
        if found is None:
            if not self.lookups.has_subject(subject, deleted=True):
                raise SubjectNotFound(f"Subject '{subject}' not found.")
            raise VersionNotFound(f"Version {number} not found.")
        if found.deleted and not permanent:
            raise VersionSoftDeleted(
                f"Subject '{subject}' Version {number} was soft deleted.Set permanent=true to delete permanently"
            )
        self._check_writable(subject)
        self._check_unused(found, permanent)
        if permanent and not found.deleted:
            raise VersionNotSoftDeleted(
                f"Subject '{subject}' Version {found.version} was not deleted first before being permanently deleted"
            )
        if not permanent:
            return found.version, [schema_record(replace(found, deleted=True))]
        last = len(self.state.subjects[subject]) == 1
        return found.version, [*self._removals([found]), *(self._own_records(subject) if last else [])]

    def delete_subject(self, subject: str, *, permanent: bool) -> tuple[list[int], list[TopicRecord]]:
        """Return the deleted versions and the records to write.

        Raises SubjectNotFound, SubjectSoftDeleted, SubjectNotSoftDeleted, ReferenceExists or OperationNotPermitted.
        """
        if not self.lookups.has_subject(subject, deleted=True):
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        if not permanent and not self.lookups.has_subject(subject):
            raise SubjectSoftDeleted(f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")
        self._check_writable(subject)
        numbers = self.lookups.versions(subject, deleted=permanent)
        found = [self.state.subjects[subject][number] for number in numbers]
        for version in found:
            self._check_unused(version, permanent, subject)
        if not permanent:
            return numbers, [schema_record(replace(version, deleted=True)) for version in found]
        if any(not version.deleted for version in found):
            raise SubjectNotSoftDeleted(f"Subject '{subject}' was not deleted first before being permanently deleted")
        return numbers, [*self._removals(found), *self._own_records(subject)]

    def delete_context(self, context: str) -> list[TopicRecord]:
        """Return the records to write. Raises ContextNotEmpty or OperationNotPermitted."""
        if any(context_of(subject) == context for subject in self.state.subjects):
            raise ContextNotEmpty(f"The specified context '{prefix(context)}' is not empty.")
        if context == DEFAULT:
            raise OperationNotPermitted("the default context can't be deleted")
        return [context_record(context, deleted=True)] if context in self.state.contexts else []

    def _removals(self, versions: list[Version]) -> list[TopicRecord]:
        tombstones = [TopicRecord(schema_record(version).key, None) for version in reversed(versions)]
        return [self.state.last_ids_record(), *tombstones]

    def _own_records(self, subject: str) -> list[TopicRecord]:
        """Return the records that remove a subject's settings and mode."""
        records = [settings_record(subject, None)] if subject in self.state.settings else []
        return records + ([mode_record(subject, None)] if subject in self.state.modes else [])

    def _check_unused(self, version: Version, permanent: bool, leaving: str = "") -> None:
        """Raise ReferenceExists if a schema refers to a version.

        leaving: a subject that is deleted together with it.
        """
        users = self.lookups.referring_to(version.subject, version.version, deleted=permanent)
        if any(user.subject != leaving for user in users):
            key = f"{{magic=1,keytype=SCHEMA,subject={version.subject},version={version.version}}}"
            raise ReferenceExists(f"One or more references exist to the schema {key}.")

    # Settings and modes --------------------------------------------------------------------------------------------

    def change_settings(self, subject: str | None, document: Mapping[str, Any]) -> tuple[Settings, list[TopicRecord]]:
        """Return the settings after a change, and the records to write.

        Raises OperationNotPermitted, InvalidCompatibility or InvalidRequest.
        """
        refuse_missing(document)
        changed = Settings().changed(document, "compatibility")
        self._check_writable(subject)
        settings = self.state.settings.get(subject, Settings()).changed(document, "compatibility")
        return changed, [settings_record(subject, settings)]

    def remove_settings(self, subject: str | None) -> tuple[Settings, list[TopicRecord]]:
        """Return the settings that are removed, and the records to write.

        Raises SubjectNotFound or OperationNotPermitted.
        """
        try:
            before = self.lookups.own_settings(subject)
        except ConfigNotFound:
            raise SubjectNotFound(f"Subject '{subject}' not found.") from None
        self._check_writable(subject)
        return before, [settings_record(subject, None)]

    def set_mode(self, subject: str | None, mode: Mode, *, force: bool = False) -> list[TopicRecord]:
        """Return the records to write.

        Raises OperationNotPermitted for IMPORT if subjects exist already, unless `force` is set; ReferenceExists; and
        InvalidMode for FORWARD, except in the context of all others.
        """
        records = []
        if mode is Mode.FORWARD and subject != EVERY:
            raise InvalidMode("Forward mode only supported on global level")
        if mode is Mode.IMPORT and self.lookups.mode(subject) is not Mode.IMPORT and not force:
            inside = self._inside(subject)
            if any(not version.deleted for version in inside):
                raise OperationNotPermitted("Cannot import since found existing subjects")
            for version in inside:
                self._check_unused(version, True)
            records = self._removals(inside) if inside else []
        return [*records, mode_record(subject, mode)]

    def _inside(self, subject: str | None) -> list[Version]:
        """Return the versions of a subject, or of all subjects of a context."""
        context = context_of(subject)
        if subject is None or subject == prefix(context):
            return [version for version in self.state.all_versions() if context_of(version.subject) == context]
        return list(self.state.subjects.get(subject, {}).values())

    def remove_mode(self, subject: str | None, *, recursive: bool = False) -> tuple[Mode | None, list[TopicRecord]]:
        """Return the removed mode, and the records to write. Raises SubjectNotFound.

        recursive: whether to remove the modes of all subjects of the context too.
        """
        before = self.state.modes.get(subject)
        if before is None and not recursive and subject is not None:
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        names = [subject]
        if recursive:
            context = context_of(subject)
            names += [name for name in self.state.modes if name not in (None, subject) and context_of(name) == context]
        return before or (Mode.READWRITE if subject is None else None), [
            mode_record(name, None) for name in names if name in self.state.modes
        ]


def _wrong_mode(subject: str | None, what: str) -> OperationNotPermitted:
    return OperationNotPermitted(f"Subject {subject or 'null'} in context {prefix(context_of(subject))} is {what}")
