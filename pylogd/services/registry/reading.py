"""Read the schema of a request: check it, and convert it to the form in which the registry keeps it.

Must not know: HTTP.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from pylogd.services.registry.checking import SchemaChecker
from pylogd.services.registry.contexts import context_of
from pylogd.services.registry.errors import InvalidRequest, InvalidSchema
from pylogd.services.registry.lookups import Lookups
from pylogd.services.registry.model import AVRO, KINDS, PROTOBUF, Schema, extras_of, references_of

_MOST_KNOWN: Final = 256


class SchemaReader:
    """Reads schemas, and remembers the last ones."""

    def __init__(self, lookups: Lookups, checker: SchemaChecker) -> None:
        self._lookups = lookups
        self._checker = checker
        self._known: OrderedDict[tuple[str, Schema, bool], Schema] = OrderedDict()

    async def read(self, client: str, subject: str, document: Mapping[str, Any], *, normalize: bool) -> Schema:
        """Return the schema of a request. Raises InvalidSchema, InvalidRequest, InvalidRuleSet or Overloaded.

        client: the sender of the request.
        normalize: whether to write equivalent schemas alike; settings may require it too.
        """
        normalize = normalize or bool(self._lookups.settings(subject).normalize)
        given = given_schema(document)
        context = context_of(subject)
        if not normalize and self._lookups.knows(context, given):
            return given
        key = context, given, normalize
        found = self._known.get(key)
        definitions = self._lookups.definitions(subject, given)
        if found is None:
            text = await self._checker.read(client, given.kind, definitions, normalize=normalize)
            found = self._known[key] = Schema(text, given.references, given.kind, given.extras)
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return found


def given_schema(document: Mapping[str, Any]) -> Schema:
    """Return the schema of a request with compact JSON, without the check of the schema, which may take long.

    Raises InvalidSchema, InvalidRequest or InvalidRuleSet.
    """
    kind, text = document.get("schemaType") or AVRO, document.get("schema")
    if kind not in KINDS:
        raise InvalidSchema(f"Invalid schema type {kind}: use one of {', '.join(KINDS)}")
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchema("Empty schema")
    try:
        references = references_of(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest("a reference must have a name, a subject and a version") from error
    extras = extras_of(document)
    if kind == PROTOBUF:
        return Schema(text, references, kind, extras)
    try:
        text = json.dumps(json.loads(text), separators=(",", ":"))
    except RecursionError as error:
        raise InvalidSchema("Invalid schema: it is nested too deeply") from error
    except ValueError as error:
        if kind != AVRO:
            raise InvalidSchema(f"Invalid schema of type JSON, details: the text is not JSON: {error}") from None
        text = json.dumps(text.strip())  # a primitive type may be written without quotes
    return Schema(text, references, kind, extras)
