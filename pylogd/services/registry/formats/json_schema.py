"""JSON Schema, drafts 3 to 2020-12: `jsonschema` decides whether a schema is valid; `referencing` finds references.

Patterns are regular expressions of ECMA-262, not of Python (`patterns`).

`json_differences` decides which changes are compatible. jsoncompat was tried and rejected: it gives no reasons, refuses
drafts before 2020-12 and references to other schemas, and accepts a changed `pattern`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from jsonschema import FormatChecker
from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft7Validator, validator_for
from referencing import Registry, Resource
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT7, specification_with
from referencing.typing import URI

from pylogd.client.registry.patterns import InvalidPattern, patterns_of, plain
from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.formats.json_differences import incompatibilities
from pylogd.services.registry.formats.json_nodes import JsonSchemas
from pylogd.services.registry.model import Definitions

_NESTED: Final = "Invalid schema of type JSON, details: it is nested too deeply"


def canonical(definitions: Definitions, *, normalize: bool) -> str:
    """Return the last of these definitions as compact JSON; with `normalize`, with sorted attributes."""
    try:
        document = _document(definitions[-1].text)
        for pattern in patterns_of(document):  # earlier schemas, which other registries accepted, are not checked
            plain(pattern)
        _load(definitions).check()
        return json.dumps(document, separators=(",", ":"), sort_keys=normalize)
    except InvalidPattern as error:
        raise InvalidSchema(f"Invalid schema of type JSON, details: {error}") from None
    except RecursionError:
        raise InvalidSchema(_NESTED) from None


def rendered(definitions: Definitions, form: str) -> str:
    """Return the schema unchanged."""
    return definitions[-1].text


def conflicts(reader: Definitions, writer: Definitions) -> list[str]:
    """Return why values that `writer` allows may be invalid for `reader`, by the rules of Confluent's registry."""
    try:
        return incompatibilities(_load(writer).root(), _load(reader).root())
    except RecursionError:
        raise InvalidSchema(_NESTED) from None


def _document(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidSchema(f"Invalid schema of type JSON, details: the text is not JSON: {error}") from None
    if not isinstance(found, dict | bool):
        raise InvalidSchema("Invalid schema of type JSON, details: it must be an object, true or false")
    validator = validator_for(found, default=Draft7Validator)
    try:
        validator.check_schema(found, format_checker=_formats(validator))
    except SchemaError as error:
        raise InvalidSchema(f"Invalid schema of type JSON, details: {error.message} (at {error.json_path})") from None
    return found


def _formats(validator: Any) -> FormatChecker:
    """Return the formats that a draft's own schema checks, without regular expressions, which are not Python's."""
    found = FormatChecker(formats=())
    found.checkers = {name: each for name, each in validator.FORMAT_CHECKER.checkers.items() if name != "regex"}
    return found


def _load(definitions: Definitions) -> JsonSchemas:
    """Return the schemas, with all names by which they are referred to."""
    documents = [(definition.name, _document(definition.text)) for definition in definitions]
    specification = specification_with(_dialect(documents[-1][1]), default=DRAFT7)
    resources = {
        name: Resource.from_contents(document, default_specification=specification) for name, document in documents
    }

    def retrieve(uri: URI) -> Resource[Any]:
        for name, resource in resources.items():
            if name and (uri == name or uri.endswith("/" + name.lstrip("./"))):
                return resource
        raise NoSuchResource(ref=uri)  # type: ignore[call-arg]

    root = resources[""]
    registry: Registry[Any] = Registry(retrieve=retrieve)  # type: ignore[call-arg]
    return JsonSchemas(registry.resolver_with_root(root), root.contents, Unresolvable)


def _dialect(document: Any) -> str:
    found = document.get("$schema", "") if isinstance(document, dict) else ""
    return str(found)
