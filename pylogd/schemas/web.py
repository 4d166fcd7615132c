"""The registry's HTTP API, compatible with Confluent's, on Twisted Web.

Strategy: a table maps method and path to a handler. A handler takes an ApiRequest and returns the JSON document to
send, a Deferred of it, or a coroutine. Errors of `schemas.errors` are sent with their status and code.
Source: Confluent Schema Registry API reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from urllib.parse import unquote

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import NOT_FOUND
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from pylogd.schemas.authentication import Authenticator
from pylogd.schemas.checking import SchemaChecker
from pylogd.schemas.errors import (
    IncompatibleSchema,
    InvalidRequest,
    RegistryError,
    SchemaNotFound,
    StoreTimedOut,
    SubjectNotFound,
    Unauthorized,
)
from pylogd.schemas.modes import Mode
from pylogd.schemas.parsing import AVRO, Comparison, Compatibility, Reference, Schema, read_schema
from pylogd.schemas.registry import LATEST, MAX_NUMBER, NotCompared, TopicRecord, Version
from pylogd.schemas.store import SchemaStore

log = Logger()

CONTENT_TYPE: Final = b"application/vnd.schemaregistry.v1+json"
#: How often a registration is compared again because other versions were registered meanwhile.
_MOST_COMPARISONS: Final = 5
_SUBJECT: Final = r"/subjects/([^/]+)"


class ApiRequest:
    """A request. `parts`: the variable parts of its path, such as the subject. `client`: its user, or its host."""

    def __init__(self, client: str, parts: tuple[str, ...], query: Mapping[bytes, list[bytes]], body: bytes) -> None:
        self.client = client
        self.parts = parts
        self._query = query
        self._body = body

    def flag(self, name: str) -> bool:
        """Return whether the query has `name=true`."""
        return self.text(name).lower() == "true"

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a query parameter, the last one if it is repeated."""
        return self._query.get(name.encode(), [default.encode()])[-1].decode("utf-8", "replace")

    def document(self) -> dict[str, Any]:
        """Return the body, which must be a JSON object. Raises InvalidRequest."""
        try:
            found = json.loads(self._body)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the body is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise InvalidRequest("the body is not a JSON object")
        return found

    def number(self, name: str) -> int | None:
        """Return a positive number of the body, or None if it is absent, null, 0 or -1. Raises InvalidRequest."""
        found = self.document().get(name)
        if found is None or found in (0, -1):
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= MAX_NUMBER:
            raise InvalidRequest(f"{name} must be a number from 1 to {MAX_NUMBER}")
        return found

    def references(self) -> tuple[Reference, ...]:
        """Return the references in the body. Raises InvalidRequest."""
        try:
            return tuple(
                Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in self.document().get("references") or ()
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest("a reference must have a name, a subject and a version") from error


Handler = Callable[[ApiRequest], Any]


class SchemaRegistryResource(Resource):
    """The root of the API."""

    isLeaf = True

    def __init__(self, store: SchemaStore, checker: SchemaChecker, authenticator: Authenticator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._authenticator = authenticator
        self._store = store
        self._checker = checker
        self._registry = store.registry
        routes: list[tuple[str, str, Handler]] = [
            ("GET", "/", lambda _: {}),
            ("GET", "/subjects", self._subjects),
            ("POST", _SUBJECT, self._look_up),
            ("DELETE", _SUBJECT, self._delete_subject),
            ("GET", _SUBJECT + "/versions", self._versions),
            ("POST", _SUBJECT + "/versions", self._register),
            ("GET", _SUBJECT + r"/versions/([^/]+)", self._version),
            ("GET", _SUBJECT + r"/versions/([^/]+)/schema", lambda call: json.loads(self._found(call).schema.text)),
            ("GET", _SUBJECT + r"/versions/([^/]+)/referencedby", self._referenced_by),
            ("DELETE", _SUBJECT + r"/versions/([^/]+)", self._delete_version),
            ("GET", "/schemas/types", lambda _: [AVRO]),
            ("GET", r"/schemas/ids/([^/]+)", self._schema),
            ("GET", r"/schemas/ids/([^/]+)/schema", lambda request: json.loads(self._by_id(request).text)),
            ("GET", r"/schemas/ids/([^/]+)/subjects", self._subjects_of),
            ("GET", r"/schemas/ids/([^/]+)/versions", self._versions_of),
            ("GET", "/config", lambda _: {"compatibilityLevel": self._registry.level().value}),
            ("PUT", "/config", lambda request: self._set_level(request, None)),
            ("DELETE", "/config", lambda _: self._reset_level(None)),
            ("GET", "/config/([^/]+)", self._level),
            ("PUT", "/config/([^/]+)", lambda request: self._set_level(request, request.parts[0])),
            ("DELETE", "/config/([^/]+)", lambda request: self._reset_level(request.parts[0])),
            ("POST", "/compatibility" + _SUBJECT + "/versions", lambda request: self._compatible(request, None)),
            ("POST", "/compatibility" + _SUBJECT + r"/versions/([^/]+)",
             lambda request: self._compatible(request, request.parts[1])),
            ("GET", "/mode", lambda _: {"mode": self._registry.mode().value}),
            ("PUT", "/mode", lambda request: self._set_mode(request, None)),
            ("GET", "/mode/([^/]+)", self._mode),
            ("PUT", "/mode/([^/]+)", lambda request: self._set_mode(request, request.parts[0])),
            ("DELETE", "/mode/([^/]+)", self._reset_mode),
        ]  # fmt: skip
        self._routes = [(method, re.compile(path), handler) for method, path, handler in routes]

    def render(self, request: Request) -> int:
        """Answer a request, now or later."""
        path = request.path.decode("ascii", "replace")
        answer: Deferred[Any] = ensureDeferred(self._answer(request))
        answer.addCallbacks(lambda document: _send(request, 200, document), lambda why: self._refuse(request, why))
        answer.addErrback(
            lambda why: log.failure("Unexpected error while sending the answer to {path}", why, path=path)
        )
        return NOT_DONE_YET

    def _refuse(self, request: Request, why: Failure) -> None:
        error = why.value
        if isinstance(error, Unauthorized):
            request.responseHeaders.setRawHeaders("www-authenticate", self._authenticator.challenges)
        if isinstance(error, RegistryError):
            _send(request, error.status, {"error_code": error.code, "message": error.message})
            return
        log.failure("Unexpected error while handling {path}", why, path=request.path.decode("ascii", "replace"))
        _send(request, 500, {"error_code": 50001, "message": "Error in the backend datastore; see the registry's log"})

    async def _answer(self, request: Request) -> Any:
        """Return the document to send. Raises RegistryError."""
        host = str(getattr(request.getClientAddress(), "host", ""))
        user = await self._authenticator.name(request.getHeader("authorization"), host)
        answer = self._call(request, user or host)
        return await answer if isinstance(answer, Deferred | Coroutine) else answer

    def _call(self, request: Request, client: str) -> Any:
        path = request.path.decode("ascii", "replace").rstrip("/") or "/"
        method = request.method.decode("ascii", "replace")
        allowed = set()
        for known, pattern, handler in self._routes:
            match = pattern.fullmatch(path)
            if match is not None:
                if known == method:
                    parts = tuple(unquote(part) for part in match.groups())
                    body = request.content.read() if request.content else b""
                    return handler(ApiRequest(client, parts, request.args or {}, body))
                allowed.add(known)
        if allowed:
            refused = InvalidRequest(f"{path} accepts {', '.join(sorted(allowed))} only", code=405)
            refused.status = 405
            raise refused
        missing = InvalidRequest("HTTP 404 Not Found", code=NOT_FOUND)
        missing.status = NOT_FOUND
        raise missing

    # Subjects and versions -----------------------------------------------------------------------------------------

    def _subjects(self, request: ApiRequest) -> list[str]:
        return self._registry.subjects(deleted=request.flag("deleted"), prefix=request.text("subjectPrefix"))

    def _versions(self, request: ApiRequest) -> list[int]:
        return self._registry.versions(request.parts[0], deleted=request.flag("deleted"))

    def _found(self, request: ApiRequest) -> Version:
        return self._registry.version(request.parts[0], request.parts[1], deleted=request.flag("deleted"))

    def _version(self, request: ApiRequest) -> dict[str, Any]:
        return _without_type(self._found(request).as_json())

    def _referenced_by(self, request: ApiRequest) -> list[int]:
        return self._registry.referring_to(request.parts[0], self._found(request).version)

    async def _read(self, request: ApiRequest) -> Schema:
        """Return the schema in a request, once it is known to be valid. Raises InvalidSchema."""
        document = request.document()
        schema = read_schema(document.get("schema"), document.get("schemaType"), request.references())
        if not self._registry.knows(schema):
            await self._checker.check(request.client, self._registry.definitions(schema))
        return schema

    async def _look_up(self, request: ApiRequest) -> dict[str, Any]:
        schema, subject = await self._read(request), request.parts[0]
        deleted = request.flag("deleted")
        if subject not in self._registry.subjects(deleted=deleted):
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        found = self._registry.find(subject, schema, deleted=deleted)
        if found is None:
            raise SchemaNotFound("Schema not found")
        return _without_type(found.as_json())

    async def _register(self, request: ApiRequest) -> dict[str, Any]:
        wanted, number, subject = request.number("id"), request.number("version"), request.parts[0]
        schema = await self._read(request)
        passed: Comparison | None = None

        def work() -> tuple[dict[str, Any], list[TopicRecord]]:
            schema_id, records = self._registry.register(subject, schema, wanted, number, passed=passed)
            return {"id": schema_id}, records

        for _ in range(_MOST_COMPARISONS):
            try:
                done: dict[str, Any] = await self._store.change(work)
                return done
            except NotCompared as missing:
                passed = missing.comparison
            reasons = await self._checker.compare(request.client, passed)
            if reasons:
                raise IncompatibleSchema(
                    f'Schema being registered is incompatible with an earlier schema for subject "{subject}" '
                    f"(compatibility {passed.level.value}): " + "; ".join(reasons)
                )
        raise StoreTimedOut("the change was not made: other versions of the subject kept being registered; try again")

    def _delete_subject(self, request: ApiRequest) -> Deferred[list[int]]:
        permanent = request.flag("permanent")
        return self._store.change(lambda: self._registry.delete_subject(request.parts[0], permanent=permanent))

    def _delete_version(self, request: ApiRequest) -> Deferred[int]:
        permanent = request.flag("permanent")
        return self._store.change(
            lambda: self._registry.delete_version(request.parts[0], request.parts[1], permanent=permanent)
        )

    # Schemas by id -------------------------------------------------------------------------------------------------

    def _by_id(self, request: ApiRequest) -> Schema:
        return self._registry.by_id(_number(request.parts[0]))

    def _schema(self, request: ApiRequest) -> dict[str, Any]:
        schema = self._by_id(request)
        document: dict[str, Any] = {"schema": schema.text}
        if schema.references:
            document["references"] = [reference.as_json() for reference in schema.references]
        return document

    def _subjects_of(self, request: ApiRequest) -> list[str]:
        uses = self._registry.uses_of(_number(request.parts[0]), deleted=request.flag("deleted"))
        return sorted({use.subject for use in uses})

    def _versions_of(self, request: ApiRequest) -> list[dict[str, Any]]:
        uses = self._registry.uses_of(_number(request.parts[0]), deleted=request.flag("deleted"))
        return [{"subject": use.subject, "version": use.version} for use in uses]

    # Compatibility -------------------------------------------------------------------------------------------------

    def _level(self, request: ApiRequest) -> dict[str, str]:
        level = self._registry.level(request.parts[0], inherit=request.flag("defaultToGlobal"))
        return {"compatibilityLevel": level.value}

    def _set_level(self, request: ApiRequest, subject: str | None) -> Deferred[dict[str, str]]:
        level = Compatibility.named(request.document().get("compatibility"))
        return self._store.change(lambda: ({"compatibility": level.value}, self._registry.set_level(subject, level)))

    def _reset_level(self, subject: str | None) -> Deferred[dict[str, str]]:
        def work() -> tuple[dict[str, str], list[TopicRecord]]:
            before = self._registry.level(subject, inherit=subject is None)
            return {"compatibilityLevel": before.value}, self._registry.set_level(subject, None)

        return self._store.change(work)

    # Modes ---------------------------------------------------------------------------------------------------------

    def _mode(self, request: ApiRequest) -> dict[str, str]:
        return {"mode": self._registry.mode(request.parts[0], inherit=request.flag("defaultToGlobal")).value}

    def _set_mode(self, request: ApiRequest, subject: str | None) -> Deferred[dict[str, str]]:
        mode, force = Mode.named(request.document().get("mode")), request.flag("force")
        return self._store.change(lambda: ({"mode": mode.value}, self._registry.set_mode(subject, mode, force=force)))

    def _reset_mode(self, request: ApiRequest) -> Deferred[dict[str, str]]:
        subject = request.parts[0]

        def work() -> tuple[dict[str, str], list[TopicRecord]]:
            before = self._registry.mode(subject, inherit=False)
            return {"mode": before.value}, self._registry.set_mode(subject, None)

        return self._store.change(work)

    async def _compatible(self, request: ApiRequest, which: str | None) -> dict[str, Any]:
        subject, schema = request.parts[0], await self._read(request)
        if which == LATEST and not self._registry.subjects(prefix=subject).count(subject):
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        comparison = self._registry.comparison(subject, schema, which)
        reasons = [] if comparison is None else await self._checker.compare(request.client, comparison)
        document: dict[str, Any] = {"is_compatible": not reasons}
        if request.flag("verbose"):
            document["messages"] = reasons
        return document


def _without_type(document: dict[str, Any]) -> dict[str, Any]:
    """Drop the schema type: Avro is the default, and older clients do not know the field."""
    return {key: value for key, value in document.items() if key != "schemaType"}


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SchemaNotFound(f"Schema {text} not found")
    return int(text)


def _send(request: Request, status: int, document: Any) -> None:
    if request._disconnected:
        return
    request.setResponseCode(status)
    request.setHeader(b"content-type", CONTENT_TYPE)
    request.write(json.dumps(document, separators=(",", ":")).encode())
    request.finish()
