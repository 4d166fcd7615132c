"""The registry's HTTP API, as Confluent's clients speak it, on Twisted Web.

Strategy: a table of methods and paths; a handler gets what the path holds, the query and the body, and returns what is
to be sent as JSON, or a Deferred of it. Errors of `schemas.errors` are sent as the API has them.
Source: Confluent Schema Registry API reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import NOT_FOUND
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from pylogd.schemas.errors import InvalidRequest, RegistryError, SchemaNotFound, SubjectNotFound
from pylogd.schemas.modes import Mode
from pylogd.schemas.parsing import AVRO, Compatibility, Reference, Schema
from pylogd.schemas.registry import LATEST, MAX_NUMBER, TopicRecord, Version
from pylogd.schemas.store import SchemaStore

log = Logger()

CONTENT_TYPE: Final = b"application/vnd.schemaregistry.v1+json"
_MAX_BODY_BYTES: Final = 4 << 20
_SUBJECT: Final = r"/subjects/([^/]+)"


class Asked:
    """A request: the parts of its path, its query, its body."""

    def __init__(self, parts: tuple[str, ...], query: Mapping[bytes, list[bytes]], body: bytes) -> None:
        self.parts = parts
        self._query = query
        self._body = body

    def flag(self, name: str) -> bool:
        """Whether the query says `name=true`."""
        return self.text(name).lower() == "true"

    def text(self, name: str, default: str = "") -> str:
        """What the query says of `name`."""
        return self._query.get(name.encode(), [default.encode()])[-1].decode("utf-8", "replace")

    def document(self) -> dict[str, Any]:
        """The body, a JSON object; `InvalidRequest`."""
        try:
            found = json.loads(self._body)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the body is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise InvalidRequest("the body is not a JSON object")
        return found

    def number(self, name: str) -> int | None:
        """A positive number of the body; None where it is absent, null, 0 or -1, which all mean: the next."""
        found = self.document().get(name)
        if found is None or found in (0, -1):
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= MAX_NUMBER:
            raise InvalidRequest(f"{name} is a number from 1 to {MAX_NUMBER}")
        return found

    def references(self) -> tuple[Reference, ...]:
        """Those that the body names."""
        try:
            return tuple(
                Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in self.document().get("references") or ()
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest("a reference has a name, a subject and a version") from error


Handler = Callable[[Asked], Any]


class SchemaRegistryResource(Resource):
    """The root of the API."""

    isLeaf = True

    def __init__(self, store: SchemaStore) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._store = store
        self._registry = store.registry
        routes: list[tuple[str, str, Handler]] = [
            ("GET", "/", lambda _: {}),
            ("GET", "/subjects", self._subjects),
            ("POST", _SUBJECT, self._look_up),
            ("DELETE", _SUBJECT, self._delete_subject),
            ("GET", _SUBJECT + "/versions", self._versions),
            ("POST", _SUBJECT + "/versions", self._register),
            ("GET", _SUBJECT + r"/versions/([^/]+)", self._version),
            ("GET", _SUBJECT + r"/versions/([^/]+)/schema", lambda asked: json.loads(self._found(asked).schema.text)),
            ("GET", _SUBJECT + r"/versions/([^/]+)/referencedby", self._referenced_by),
            ("DELETE", _SUBJECT + r"/versions/([^/]+)", self._delete_version),
            ("GET", "/schemas/types", lambda _: [AVRO]),
            ("GET", r"/schemas/ids/([^/]+)", self._schema),
            ("GET", r"/schemas/ids/([^/]+)/schema", lambda asked: json.loads(self._by_id(asked).text)),
            ("GET", r"/schemas/ids/([^/]+)/subjects", self._subjects_of),
            ("GET", r"/schemas/ids/([^/]+)/versions", self._versions_of),
            ("GET", "/config", lambda _: {"compatibilityLevel": self._registry.level().value}),
            ("PUT", "/config", lambda asked: self._set_level(asked, None)),
            ("DELETE", "/config", lambda _: self._reset_level(None)),
            ("GET", "/config/([^/]+)", self._level),
            ("PUT", "/config/([^/]+)", lambda asked: self._set_level(asked, asked.parts[0])),
            ("DELETE", "/config/([^/]+)", lambda asked: self._reset_level(asked.parts[0])),
            ("POST", "/compatibility" + _SUBJECT + "/versions", lambda asked: self._compatible(asked, None)),
            ("POST", "/compatibility" + _SUBJECT + r"/versions/([^/]+)",
             lambda asked: self._compatible(asked, asked.parts[1])),
            ("GET", "/mode", lambda _: {"mode": self._registry.mode().value}),
            ("PUT", "/mode", lambda asked: self._set_mode(asked, None)),
            ("GET", "/mode/([^/]+)", self._mode),
            ("PUT", "/mode/([^/]+)", lambda asked: self._set_mode(asked, asked.parts[0])),
            ("DELETE", "/mode/([^/]+)", self._reset_mode),
        ]  # fmt: skip
        self._routes = [(method, re.compile(path), handler) for method, path, handler in routes]

    def render(self, request: Request) -> int:
        """Answer, now or later."""
        answer: Deferred[Any] = maybeDeferred(self._answer, request)
        answer.addCallbacks(lambda document: _send(request, 200, document), lambda why: _refuse(request, why))
        answer.addErrback(lambda why: log.failure("an answer could not be sent", why))
        return NOT_DONE_YET

    def _answer(self, request: Request) -> Any:
        path = request.path.decode("ascii", "replace").rstrip("/") or "/"
        method = request.method.decode("ascii", "replace")
        if int(request.getHeader(b"content-length") or 0) > _MAX_BODY_BYTES:
            raise InvalidRequest(f"the body has more than {_MAX_BODY_BYTES} bytes")
        allowed = set()
        for known, pattern, handler in self._routes:
            match = pattern.fullmatch(path)
            if match is not None:
                if known == method:
                    parts = tuple(unquote(part) for part in match.groups())
                    return handler(Asked(parts, request.args or {}, request.content.read() if request.content else b""))
                allowed.add(known)
        if allowed:
            refused = InvalidRequest(f"{path} answers {', '.join(sorted(allowed))}", code=405)
            refused.status = 405
            raise refused
        missing = InvalidRequest("HTTP 404 Not Found", code=NOT_FOUND)
        missing.status = NOT_FOUND
        raise missing

    # Subjects and versions -----------------------------------------------------------------------------------------

    def _subjects(self, asked: Asked) -> list[str]:
        return self._registry.subjects(deleted=asked.flag("deleted"), prefix=asked.text("subjectPrefix"))

    def _versions(self, asked: Asked) -> list[int]:
        return self._registry.versions(asked.parts[0], deleted=asked.flag("deleted"))

    def _found(self, asked: Asked) -> Version:
        return self._registry.version(asked.parts[0], asked.parts[1], deleted=asked.flag("deleted"))

    def _version(self, asked: Asked) -> dict[str, Any]:
        return _without_type(self._found(asked).as_json())

    def _referenced_by(self, asked: Asked) -> list[int]:
        return self._registry.referring_to(asked.parts[0], self._found(asked).version)

    def _read(self, asked: Asked) -> Schema:
        document = asked.document()
        return self._registry.read(document.get("schema"), document.get("schemaType"), asked.references())

    def _look_up(self, asked: Asked) -> dict[str, Any]:
        schema, subject = self._read(asked), asked.parts[0]
        deleted = asked.flag("deleted")
        if subject not in self._registry.subjects(deleted=deleted):
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        found = self._registry.find(subject, schema, deleted=deleted)
        if found is None:
            raise SchemaNotFound("Schema not found")
        return _without_type(found.as_json())

    def _register(self, asked: Asked) -> Deferred[dict[str, Any]]:
        wanted, number = asked.number("id"), asked.number("version")

        def work() -> tuple[dict[str, Any], list[TopicRecord]]:
            schema_id, records = self._registry.register(asked.parts[0], self._read(asked), wanted, number)
            return {"id": schema_id}, records

        return self._store.change(work)

    def _delete_subject(self, asked: Asked) -> Deferred[list[int]]:
        permanent = asked.flag("permanent")
        return self._store.change(lambda: self._registry.delete_subject(asked.parts[0], permanent=permanent))

    def _delete_version(self, asked: Asked) -> Deferred[int]:
        permanent = asked.flag("permanent")
        return self._store.change(
            lambda: self._registry.delete_version(asked.parts[0], asked.parts[1], permanent=permanent)
        )

    # Schemas by id -------------------------------------------------------------------------------------------------

    def _by_id(self, asked: Asked) -> Schema:
        return self._registry.by_id(_number(asked.parts[0]))

    def _schema(self, asked: Asked) -> dict[str, Any]:
        schema = self._by_id(asked)
        document: dict[str, Any] = {"schema": schema.text}
        if schema.references:
            document["references"] = [reference.as_json() for reference in schema.references]
        return document

    def _subjects_of(self, asked: Asked) -> list[str]:
        uses = self._registry.uses_of(_number(asked.parts[0]), deleted=asked.flag("deleted"))
        return sorted({use.subject for use in uses})

    def _versions_of(self, asked: Asked) -> list[dict[str, Any]]:
        uses = self._registry.uses_of(_number(asked.parts[0]), deleted=asked.flag("deleted"))
        return [{"subject": use.subject, "version": use.version} for use in uses]

    # Compatibility -------------------------------------------------------------------------------------------------

    def _level(self, asked: Asked) -> dict[str, str]:
        level = self._registry.level(asked.parts[0], inherit=asked.flag("defaultToGlobal"))
        return {"compatibilityLevel": level.value}

    def _set_level(self, asked: Asked, subject: str | None) -> Deferred[dict[str, str]]:
        level = Compatibility.named(asked.document().get("compatibility"))
        return self._store.change(lambda: ({"compatibility": level.value}, self._registry.set_level(subject, level)))

    def _reset_level(self, subject: str | None) -> Deferred[dict[str, str]]:
        def work() -> tuple[dict[str, str], list[TopicRecord]]:
            before = self._registry.level(subject, inherit=subject is None)
            return {"compatibilityLevel": before.value}, self._registry.set_level(subject, None)

        return self._store.change(work)

    # Modes ---------------------------------------------------------------------------------------------------------

    def _mode(self, asked: Asked) -> dict[str, str]:
        return {"mode": self._registry.mode(asked.parts[0], inherit=asked.flag("defaultToGlobal")).value}

    def _set_mode(self, asked: Asked, subject: str | None) -> Deferred[dict[str, str]]:
        mode, force = Mode.named(asked.document().get("mode")), asked.flag("force")
        return self._store.change(lambda: ({"mode": mode.value}, self._registry.set_mode(subject, mode, force=force)))

    def _reset_mode(self, asked: Asked) -> Deferred[dict[str, str]]:
        subject = asked.parts[0]

        def work() -> tuple[dict[str, str], list[TopicRecord]]:
            before = self._registry.mode(subject, inherit=False)
            return {"mode": before.value}, self._registry.set_mode(subject, None)

        return self._store.change(work)

    def _compatible(self, asked: Asked, which: str | None) -> dict[str, Any]:
        subject, schema = asked.parts[0], self._read(asked)
        if which == LATEST and not self._registry.subjects(prefix=subject).count(subject):
            raise SubjectNotFound(f"Subject '{subject}' not found.")
        reasons = self._registry.conflicts(subject, schema, which)
        document: dict[str, Any] = {"is_compatible": not reasons}
        if asked.flag("verbose"):
            document["messages"] = reasons
        return document


def _without_type(document: dict[str, Any]) -> dict[str, Any]:
    """Avro is what is meant where no type is said, and older clients know no such field."""
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


def _refuse(request: Request, why: Failure) -> None:
    error = why.value
    if isinstance(error, RegistryError):
        _send(request, error.status, {"error_code": error.code, "message": error.message})
    else:
        log.failure("a request to the schema registry failed", why)
        _send(request, 500, {"error_code": 50001, "message": "Error in the backend datastore; see the registry's log"})
