"""The handlers of the registry's HTTP API, by method and path.

Strategy: a table (`routes`) maps method and path to a handler. A handler takes an ApiRequest and returns the JSON
document to send, a `Text`, a Deferred of one, or a coroutine. It raises the errors of `services.registry.errors`.
Source: Confluent Schema Registry API reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred

from pylogd import __version__
from pylogd.services.registry.api_request import ApiRequest
from pylogd.services.registry.checking import SchemaChecker, SchemaReader
from pylogd.services.registry.contexts import WILDCARD, beside, context_named
from pylogd.services.registry.errors import (
    IncompatibleSchema,
    InvalidSchema,
    SchemaNotFound,
    StoreTimedOut,
    SubjectNotFound,
)
from pylogd.services.registry.lookups import documents
from pylogd.services.registry.model import KINDS, Comparison, NotCompared, Schema, TopicRecord, Version
from pylogd.services.registry.registry import Registry
from pylogd.services.registry.settings import Mode, rule_types
from pylogd.services.registry.store import SchemaStore

#: The most comparisons of a registration, which is compared again if other versions were registered meanwhile.
_MOST_COMPARISONS: Final = 5
_ONE: Final = r"([^/]+)"
_SUBJECT: Final = f"/subjects/{_ONE}"
_VERSION: Final = f"{_SUBJECT}/versions/{_ONE}"
_ID: Final = f"/schemas/ids/{_ONE}"


class Text(NamedTuple):
    """An answer that is sent unchanged: a schema."""

    text: str


Handler = Callable[[ApiRequest], Any]


class Route(NamedTuple):
    """A method and a path, and their handler.

    change: whether it changes the registry, so that the leader must do it.

    settled: for a change, returns the answer if nothing has to change, or None.
    """

    method: str
    path: re.Pattern[str]
    handler: Handler
    change: bool = False
    settled: Handler | None = None


class Handlers:
    """The handlers, for one registry."""

    def __init__(self, store: SchemaStore, checker: SchemaChecker, group: str = "") -> None:
        """`group` is the group in which registries elect their leader; its name stands for all of them."""
        self._store, self._group = store, group
        self._checker = checker
        self._registry: Registry = store.registry
        self._lookups = store.registry.lookups
        self._reader = SchemaReader(self._lookups, checker)

    def routes(self) -> list[Route]:
        """Return the table of all routes."""
        reads: list[tuple[str, str, Handler]] = [
            ("GET", "/", lambda _: {}),
            ("POST", "/", lambda _: {}),
            ("GET", "/v1/metadata/id", self._cluster_id),
            ("GET", "/v1/metadata/version", lambda _: {"version": __version__}),
            ("GET", "/contexts", self._contexts),
            ("GET", "/subjects", self._subjects),
            ("POST", _SUBJECT, self._look_up),
            ("GET", _SUBJECT + "/versions", self._versions),
            ("GET", _SUBJECT + "/metadata", self._with_metadata),
            ("GET", _VERSION, self._version),
            ("GET", _VERSION + "/schema", self._version_text),
            ("GET", _VERSION + "/referencedby", self._referenced_by),
            ("GET", "/schemas", self._schemas),
            ("GET", "/schemas/types", lambda _: list(KINDS)),
            ("GET", f"/schemas/guids/{_ONE}", self._schema_of_guid),
            ("GET", f"/schemas/guids/{_ONE}/ids", self._ids_of_guid),
            ("GET", _ID, self._schema),
            ("GET", _ID + "/schema", self._schema_text),
            ("GET", _ID + "/subjects", self._subjects_of),
            ("GET", _ID + "/versions", self._versions_of),
            ("GET", f"/config(?:/{_ONE})?", self._settings),
            ("GET", f"/mode(?:/{_ONE})?", self._mode),
            ("POST", f"/compatibility{_SUBJECT}/versions(?:/{_ONE})?", self._compatible),
        ]
        changes: list[tuple[str, str, Handler]] = [
            ("DELETE", _SUBJECT, self._delete_subject),
            ("DELETE", _VERSION, self._delete_version),
            ("DELETE", f"/contexts/{_ONE}", self._delete_context),
            ("PUT", f"/config(?:/{_ONE})?", self._set_settings),
            ("DELETE", f"/config(?:/{_ONE})?", self._remove_settings),
            ("PUT", f"/mode(?:/{_ONE})?", self._set_mode),
            ("DELETE", f"/mode(?:/{_ONE})?", self._remove_mode),
        ]
        return [
            *(Route(method, re.compile(path), handler) for method, path, handler in reads),
            *(Route(method, re.compile(path), handler, True) for method, path, handler in changes),
            Route("POST", re.compile(_SUBJECT + "/versions"), self._register, True, self._registered),
        ]

    async def catch_up(self) -> None:
        """Wait until this registry knows all changes that were made so far. Raises StoreTimedOut."""
        await self._store.catch_up()

    def _subject(self, request: ApiRequest) -> str:
        """Return the subject of a request, or the subject for which it is an alias."""
        subject = request.subject()
        return self._lookups.settings(subject).alias or subject

    async def _cluster_id(self, _: ApiRequest) -> dict[str, Any]:
        clusters = {"kafka-cluster": await self._store.cluster_id(), "schema-registry-cluster": self._group}
        return {"scope": {"path": [], "clusters": clusters}, "id": ""}

    def _contexts(self, request: ApiRequest) -> Sequence[str]:
        start = request.text("contextPrefix")
        return request.page([context for context in self._lookups.contexts() if context.startswith(start)])

    # Subjects and versions -----------------------------------------------------------------------------------------

    def _subjects(self, request: ApiRequest) -> Sequence[str]:
        start = request.start(WILDCARD)
        only = request.flag("deletedOnly")
        return request.page(self._lookups.subjects(deleted=request.flag("deleted"), only=only, start=start))

    def _versions(self, request: ApiRequest) -> Sequence[int]:
        subject, only, signed = self._subject(request), request.flag("deletedOnly"), request.flag("deletedAsNegative")
        if not signed:
            return request.page(self._lookups.versions(subject, deleted=request.flag("deleted"), only=only))
        live = set(self._lookups.versions(subject)) if self._lookups.has_subject(subject) else set()
        found = self._lookups.versions(subject, deleted=True)
        return request.page([number if number in live else -number for number in found])

    def _found(self, request: ApiRequest, *, deleted: bool = False) -> Any:
        deleted = deleted or request.flag("deleted")
        return self._lookups.version(self._subject(request), request.parts[1], deleted=deleted)

    async def _version(self, request: ApiRequest) -> dict[str, Any]:
        found = self._found(request)
        text = await self._form(request, found.subject, found.schema)
        return {**found.as_json(), **_qualified(request, found.subject, found.schema), "schema": text}

    async def _version_text(self, request: ApiRequest) -> Text:
        found = self._found(request)
        return Text(await self._form(request, found.subject, found.schema))

    async def _with_metadata(self, request: ApiRequest) -> dict[str, Any]:
        metadata = dict(zip(request.texts("key"), request.texts("value"), strict=False))
        subject, deleted = self._subject(request), request.flag("deleted")
        found = self._lookups.versions_with(subject, deleted=deleted, metadata=metadata)
        return {**found.as_json(), "schema": await self._form(request, found.subject, found.schema)}

    def _referenced_by(self, request: ApiRequest) -> Sequence[int]:
        used = self._found(request, deleted=True)
        deleted = request.flag("deleted")
        users = self._lookups.referring_to(used.subject, used.version, deleted=deleted)
        return request.page(sorted({user.id for user in users}))

    async def _form(self, request: ApiRequest, subject: str, schema: Schema) -> str:
        """Return a schema's text in the requested form."""
        form = request.text("format")
        if not form:
            return schema.text
        definitions = self._lookups.definitions(subject, schema)
        return str(await self._checker.render(request.client, schema.kind, definitions, form))

    async def _read(self, request: ApiRequest, subject: str, *, fill: bool = False) -> Schema:
        """Return the schema of a request.

        fill: whether a schema without a text means that of the subject's last version.
        """
        normalize, document = request.flag("normalize"), request.document()
        last = self._lookups.latest(subject) if fill and not document.get("schema") else None
        if last is not None:
            document = {**last.schema.members(), **{name: document.get(name) for name in ("metadata", "ruleSet")}}
        return await self._reader.read(request.client, subject, document, normalize=normalize)

    async def _look_up(self, request: ApiRequest) -> dict[str, Any]:
        subject = self._subject(request)
        schema, deleted = await self._read(request, subject), request.flag("deleted")
        found = self._lookups.find(subject, schema, deleted=deleted)
        if found is None and not self._lookups.has_subject(subject, deleted=deleted):
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        if found is None:
            raise SchemaNotFound("Schema not found")
        return {**found.as_json(), "schema": await self._form(request, subject, found.schema)}

    async def _registered(self, request: ApiRequest) -> dict[str, Any] | None:
        """Return the version of a schema that the subject has already; None if the schema must be registered."""
        subject, wanted = self._subject(request), request.number("id")
        if request.number("version") is not None:
            return None
        found = self._lookups.registered(subject, await self._read(request, subject, fill=True))
        return None if found is None or wanted not in (None, found.id) else _made(found)

    async def _register(self, request: ApiRequest) -> dict[str, Any]:
        wanted, number, subject = request.number("id"), request.number("version"), self._subject(request)
        schema, force = await self._read(request, subject, fill=True), request.flag("force")
        passed: Comparison | None = None

        def work() -> tuple[dict[str, Any], list[TopicRecord]]:
            made, records = self._registry.register(subject, schema, wanted, number, passed=passed, force=force)
            return _made(made), records

        for _ in range(_MOST_COMPARISONS):
            try:
                done: dict[str, Any] = await self._store.change(work)
                return done
            except NotCompared as missing:
                passed = missing.comparison
            reasons = await self._checker.compare(request.client, passed)
            if reasons:
                raise IncompatibleSchema.with_earlier(subject, _details(reasons, passed))
        raise StoreTimedOut("the change was not made: other versions of the subject kept being registered; try again")

    def _delete_subject(self, request: ApiRequest) -> Deferred[list[int]]:
        permanent, subject = request.flag("permanent"), self._subject(request)
        return self._store.change(lambda: self._registry.delete_subject(subject, permanent=permanent))

    def _delete_version(self, request: ApiRequest) -> Deferred[int]:
        permanent, subject = request.flag("permanent"), self._subject(request)
        return self._store.change(lambda: self._registry.delete_version(subject, request.parts[1], permanent=permanent))

    def _delete_context(self, request: ApiRequest) -> Deferred[None]:
        context = context_named(request.parts[0])
        return self._store.change(lambda: (None, self._registry.delete_context(context)))

    # Schemas -------------------------------------------------------------------------------------------------------

    def _schemas(self, request: ApiRequest) -> Sequence[dict[str, Any]]:
        start, deleted = request.start(WILDCARD), request.flag("deleted")
        aliases, kind = request.flag("aliases"), request.text("ruleType")
        found = self._lookups.listed(start=start, deleted=deleted, latest=request.flag("latestOnly"), aliases=aliases)
        return documents(request.page([each for each in found if not kind or kind in rule_types(each.schema)]))

    async def _schema(self, request: ApiRequest) -> dict[str, Any]:
        subject = request.subject_of_id()
        used = self._lookups.uses_of(request.id(), subject, deleted=True)[0]
        text = await self._form(request, used.subject, used.schema)
        references = _qualified(request, used.subject, used.schema)
        document = {**used.schema.members(), **references, "guid": used.guid, "schema": text}
        if request.flag("fetchMaxId"):
            document["maxId"] = self._lookups.last_id(subject)
        return document

    async def _schema_text(self, request: ApiRequest) -> Text:
        used = self._lookups.uses_of(request.id(), request.subject_of_id(), deleted=True)[0]
        return Text(await self._form(request, used.subject, used.schema))

    async def _schema_of_guid(self, request: ApiRequest) -> dict[str, Any]:
        used = next(iter(self._lookups.by_guid(request.parts[0]).values()))
        text = await self._form(request, used.subject, used.schema)
        return {**used.schema.members(), "guid": used.guid, "schema": text}

    def _ids_of_guid(self, request: ApiRequest) -> list[dict[str, Any]]:
        return [{"context": context, "id": number} for context, number in self._lookups.by_guid(request.parts[0])]

    def _subjects_of(self, request: ApiRequest) -> Sequence[str]:
        uses = self._lookups.uses_of(request.id(), request.subject_of_id(), deleted=request.flag("deleted"))
        return request.page(sorted({use.subject for use in uses}))

    def _versions_of(self, request: ApiRequest) -> Sequence[dict[str, Any]]:
        uses = self._lookups.uses_of(request.id(), request.subject_of_id(), deleted=request.flag("deleted"))
        return request.page([{"subject": use.subject, "version": use.version} for use in uses])

    # Compatibility -------------------------------------------------------------------------------------------------

    async def _compatible(self, request: ApiRequest) -> dict[str, Any]:
        subject, which = self._subject(request), request.parts[1] or None
        verbose = request.flag("verbose")
        try:
            comparison = self._lookups.comparison(subject, await self._read(request, subject), which)
            reasons = [] if comparison is None else await self._checker.compare(request.client, comparison)
            messages = [] if comparison is None or not reasons else _details(reasons, comparison)
        except IncompatibleSchema as error:
            messages = list(error.reasons)
        except InvalidSchema as error:
            if not verbose:
                raise
            messages = [error.message]
        return {"is_compatible": not messages, **({"messages": messages} if verbose else {})}

    def _settings(self, request: ApiRequest) -> dict[str, Any]:
        scope, inherit = request.scope(), request.flag("defaultToGlobal")
        found = self._lookups.settings(scope) if inherit else self._lookups.own_settings(scope)
        return found.as_json("compatibilityLevel")

    def _set_settings(self, request: ApiRequest) -> Deferred[dict[str, Any]]:
        scope, document = request.scope(), request.document()

        def work() -> tuple[dict[str, Any], list[TopicRecord]]:
            settings, records = self._registry.change_settings(scope, document)
            return settings.as_json("compatibility"), records

        return self._store.change(work)

    def _remove_settings(self, request: ApiRequest) -> Deferred[dict[str, Any]]:
        scope = request.scope()

        def work() -> tuple[dict[str, Any], list[TopicRecord]]:
            before, records = self._registry.remove_settings(scope)
            return before.as_json("compatibilityLevel"), records

        return self._store.change(work)

    # Modes ---------------------------------------------------------------------------------------------------------

    def _mode(self, request: ApiRequest) -> dict[str, str]:
        scope, inherit = request.scope(), request.flag("defaultToGlobal")
        return {"mode": (self._lookups.mode(scope) if inherit else self._lookups.own_mode(scope)).value}

    def _set_mode(self, request: ApiRequest) -> Deferred[dict[str, str]]:
        scope, force = request.scope(), request.flag("force")
        mode = Mode.named(request.document().get("mode"))
        return self._store.change(lambda: ({"mode": mode.value}, self._registry.set_mode(scope, mode, force=force)))

    def _remove_mode(self, request: ApiRequest) -> Deferred[dict[str, str]]:
        scope, recursive = request.scope(), request.flag("recursive")

        def work() -> tuple[dict[str, str], list[TopicRecord]]:
            before, records = self._registry.remove_mode(scope, recursive=recursive)
            return {} if before is None else {"mode": before.value}, records

        return self._store.change(work)


def _qualified(request: ApiRequest, subject: str, schema: Schema) -> dict[str, Any]:
    """Return the member `references`, with the subjects' full names if `referenceFormat` requests them."""
    if request.text("referenceFormat") != "qualified" or not schema.references:
        return {}
    found = [replace(each, subject=beside(subject, each.subject)) for each in schema.references]
    return {"references": [each.as_json() for each in found]}


def _made(version: Version) -> dict[str, Any]:
    """Return the answer to a registration."""
    return {"id": version.id, "version": version.version, "guid": version.guid}


def _details(reasons: Sequence[str], comparison: Comparison) -> list[str]:
    """Return why a schema is incompatible, with the last compared version and the level."""
    version, definitions = comparison.earlier[-1]
    return [
        *reasons,
        f"{{oldSchemaVersion: {version}}}",
        f"{{oldSchema: '{definitions[-1].text}'}}",
        f"{{compatibility: '{comparison.level.value}'}}",
    ]
