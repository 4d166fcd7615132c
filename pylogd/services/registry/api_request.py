"""A request to the registry's HTTP API: the parts of its path, its query and its body, checked.

A path that begins with `/contexts/.name` is for that context: it applies to subjects without a context.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from pylogd.services.registry.contexts import DEFAULT, WILDCARD, check_subject, context_named, context_of, prefix
from pylogd.services.registry.errors import InvalidRequest, NotFound
from pylogd.services.registry.state import MAX_NUMBER

T = TypeVar("T")
_CONTEXTS: Final = "/contexts/"


@dataclass(eq=False, slots=True)
class ApiRequest:
    """A request.

    client: the user who sends it, or the host.
    parts: the variable parts of its path, such as the subject.
    body: the bytes of the body.
    context: the context of the path.
    """

    client: str
    parts: tuple[str, ...]
    _query: Mapping[bytes, list[bytes]]
    body: bytes
    context: str = DEFAULT

    # The path ------------------------------------------------------------------------------------------------------

    def subject(self) -> str:
        """Return the subject's full name. Raises InvalidSubject."""
        return check_subject(self._in_context(self.parts[0]))

    def scope(self) -> str | None:
        """Return the subject or the context whose settings are meant; None for the default context."""
        name = check_subject(self._in_context(self.parts[0] if self.parts else ""), settings=True)
        return name or None

    def id(self) -> int:
        """Return the number in the path. Raises NotFound."""
        return _whole(self.parts[0])

    def subject_of_id(self) -> str:
        """Return the subject that names the context of an id."""
        return self._in_context(self.text("subject"))

    def start(self, default: str) -> str:
        """Return the prefix of the subjects' names.

        default: the prefix if the request has none.
        """
        if self.context != DEFAULT:
            default = ""
        return self._in_context(self.text("subjectPrefix", default))

    def _in_context(self, name: str) -> str:
        if name.startswith((":.", WILDCARD)):
            return name
        return prefix(self.context) + name

    # The query -----------------------------------------------------------------------------------------------------

    def flag(self, name: str) -> bool:
        """Return whether the query has `name=true`."""
        return self.text(name).lower() == "true"

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a query parameter, the last one if it is repeated."""
        return (self.texts(name) or [default])[-1]

    def texts(self, name: str) -> list[str]:
        """Return all values of a query parameter."""
        return [value.decode("utf-8", "replace") for value in self._query.get(name.encode(), ())]

    def page(self, found: Sequence[T]) -> Sequence[T]:
        """Return the part of a list that `offset` and `limit` select. Raises NotFound."""
        first, most = (_whole(self.text(name, str(default))) for name, default in (("offset", 0), ("limit", -1)))
        return found[max(first, 0) :][: most if most >= 0 else None]

    # The body ------------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Return the body, which must be a JSON object. Raises InvalidRequest."""
        try:
            found = json.loads(self.body)
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


def without_context(path: str) -> tuple[str, str]:
    """Return a path without the context that it begins with, and the context."""
    if not path.startswith(_CONTEXTS):
        return path, DEFAULT
    name, slash, rest = path.removeprefix(_CONTEXTS).partition("/")
    if not slash:
        return path, DEFAULT  # the request is for the context itself
    return "/" + rest, context_of(prefix(context_named(unquote(name))))


def _whole(text: str) -> int:
    """Return the number in a path or a query. Raises NotFound, like Confluent's registry."""
    try:
        return int(text)
    except ValueError:
        raise NotFound("HTTP 404 Not Found") from None
