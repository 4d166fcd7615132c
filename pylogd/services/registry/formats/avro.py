"""Avro: `fastavro` decides whether a schema is valid; Apache Avro's own checker decides whether two are compatible.

Source: Avro 1.12 specification, "Schema Resolution".
"""

from __future__ import annotations

import json
from typing import Any, Final

import avro.errors
import avro.name
import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from pylogd.services.registry.errors import InvalidSchema
from pylogd.services.registry.model import Definitions

_MARKS: Final = ("__fastavro_parsed__", "__named_schemas")


def canonical(definitions: Definitions, *, normalize: bool) -> str:
    """Return the last of these definitions as compact JSON; with `normalize`, sorted and with full names."""
    named: dict[str, Any] = {}
    try:
        for definition in definitions:
            document = _document(definition.text)
            parsed = parse_schema(document, named_schemas=named)
        text = json.dumps(document, separators=(",", ":"))
        _as_avro(definitions)
        if normalize:
            text = json.dumps(_plain(parsed), separators=(",", ":"), sort_keys=True)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"Invalid schema of type AVRO, details: {error or type(error).__name__}") from error
    return text


def rendered(definitions: Definitions, form: str) -> str:
    """Return the schema. For `resolved`, include the types that it refers to, each at its first use."""
    return str(_as_avro(definitions)) if form == "resolved" else definitions[-1].text


def conflicts(reader: Definitions, writer: Definitions) -> list[str]:
    """Return why `reader` can't read data of `writer`, by Avro's rules."""
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(_as_avro(reader), _as_avro(writer))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    locations = list(result.locations or ()) or ["/"]
    reasons = list(result.messages or ()) or [kind.value for kind in result.incompatibilities]
    return [f"{why} (at {', '.join(sorted(locations))})" for why in sorted(reasons)]


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()  # a primitive type may be written without quotes


def _as_avro(definitions: Definitions) -> avro.schema.Schema:
    names = avro.name.Names()
    try:
        for definition in definitions:
            made = avro.schema.make_avsc_object(_document(definition.text), names)
    except (avro.errors.AvroException, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchema(f"Invalid schema of type AVRO, details: {error}") from error
    return made


def _plain(parsed: Any) -> Any:
    """Return a schema that fastavro parsed without fastavro's own attributes."""
    if isinstance(parsed, dict):
        return {name: _plain(value) for name, value in parsed.items() if name not in _MARKS}
    return [_plain(each) for each in parsed] if isinstance(parsed, list) else parsed
