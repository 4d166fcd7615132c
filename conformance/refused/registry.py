"""Requests that a schema registry refuses, with the codes and texts of Confluent's registry.

Sources: Confluent's documentation of its API (error codes), and its class `Errors`. The code of an incompatible schema
is the one up to release 8.1, 409, which clients know; from release 8.2 on it is 40901.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_EARLIER: Final = 'Schema being registered is incompatible with an earlier schema for subject "e", details: '
_BELONGS: Final = 'is not a valid version id. Allowed values are between [1, 2^31-1] and the string "latest"'
_LEVELS: Final = (
    "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
    "forward_transitive, and full_transitive"
)
_GONE: Final = "was soft deleted.Set permanent=true to delete permanently"
_FIRST: Final = "was not deleted first before being permanently deleted"
_ENUM: Final = {"schema": json.dumps({"type": "enum", "name": "E", "symbols": ["A"]})}
#: Requests in order: method, path, body, and the status, code and text of the answer. A text of None is not compared,
#: and one that ends with * is how the text begins.
REQUESTS: Final[Sequence[tuple[str, str, Any, int, int, str | None]]] = [
    ("POST", "/subjects/a/versions", b"{", 422, 422, None),
    ("POST", "/subjects/a/versions", [], 422, 422, None),
    ("POST", "/subjects/a/versions", {}, 422, 42201, "Empty schema"),
    ("POST", "/subjects/a/versions", {"schema": "{}"}, 422, 42201, "Invalid schema of type AVRO, details: *"),
    (
        "POST",
        "/subjects/a/versions",
        {"schema": '"int"', "schemaType": "THRIFT"},
        422,
        42201,
        "Invalid schema type THRIFT*",
    ),
    (
        "POST",
        "/subjects/a/versions",
        {"schema": "{", "schemaType": "JSON"},
        422,
        42201,
        "Invalid schema of type JSON, details: *",
    ),
    (
        "POST",
        "/subjects/a/versions",
        {"schema": "message", "schemaType": "PROTOBUF"},
        422,
        42201,
        "Invalid schema of type PROTOBUF, details: *",
    ),
    ("POST", "/subjects/a/versions", {"schema": '"int"', "references": [{}]}, 422, 422, None),
    ("POST", "/subjects/a/versions", {"schema": '"int"', "metadata": 7}, 422, 42210, None),
    (
        "POST",
        "/subjects/__GLOBAL/versions",
        {"schema": '"int"'},
        422,
        42208,
        "The specified subject '__GLOBAL' is not a valid.",
    ),
    ("GET", "/subjects/a/versions", None, 404, 40401, "Subject 'a' not found."),
    ("POST", "/subjects/a", {"schema": '"int"'}, 404, 40401, "Subject 'a' not found."),
    ("GET", "/subjects/a/versions/latest", None, 404, 40401, "Subject 'a' not found."),
    ("GET", "/subjects/a/versions/none", None, 422, 42202, "The specified version 'none' " + _BELONGS),
    ("DELETE", "/subjects/a/versions/0", None, 422, 42202, "The specified version '0' " + _BELONGS),
    ("DELETE", "/subjects/a", None, 404, 40401, "Subject 'a' not found."),
    ("GET", "/schemas/ids/7", None, 404, 40403, "Schema 7 not found"),
    ("GET", "/schemas/ids/7/versions", None, 404, 40403, None),
    ("GET", "/schemas/ids/x", None, 404, 404, "HTTP 404 Not Found"),
    ("PUT", "/config", {"compatibility": "SIDEWAYS"}, 422, 42203, _LEVELS),
    ("PUT", "/config", {"validateFields": True}, 422, 422, None),
    ("PUT", "/config", {"overrideMetadata": {"tags": []}}, 422, 42210, None),
    ("GET", "/config/a", None, 404, 40408, "Subject 'a' does not have subject-level compatibility configured"),
    ("DELETE", "/config/a", None, 404, 40401, "Subject 'a' not found."),
    ("GET", "/mode/a", None, 404, 40409, "Subject 'a' does not have subject-level mode configured"),
    ("DELETE", "/mode/a", None, 404, 40401, "Subject 'a' not found."),
    (
        "PUT",
        "/mode",
        {"mode": "SIDEWAYS"},
        422,
        42204,
        "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.",
    ),
    ("PUT", "/mode/a", {"mode": "FORWARD"}, 422, 42204, "Forward mode only supported on global level"),
    ("GET", "/nowhere", None, 404, 404, "HTTP 404 Not Found"),
    ("PUT", "/subjects", {}, 405, 405, None),
    ("POST", "/subjects/a%2Fb%20c/versions", {"schema": '"int"'}, 200, 0, None),
    ("POST", "/subjects/e/versions", _ENUM, 200, 0, None),
    (
        "POST",
        "/subjects/e/versions",
        {"schema": '"int"'},
        409,
        409,
        _EARLIER + "[it can't read data of version 1: *",
    ),
    (
        "POST",
        "/subjects/e/versions",
        {"schema": "{}", "schemaType": "JSON"},
        409,
        409,
        _EARLIER + "[Incompatible because of different schema type*",
    ),
    (
        "POST",
        "/subjects/e/versions",
        {**_ENUM, "references": [{"name": "X", "subject": "none", "version": 1}]},
        422,
        42201,
        'Invalid schema: No schema reference found for subject "none" and version 1*',
    ),
    ("POST", "/subjects/e", {"schema": '"int"'}, 404, 40403, "Schema not found"),
    ("GET", "/subjects/e/versions/2", None, 404, 40402, "Version 2 not found."),
    ("POST", "/compatibility/subjects/e/versions/2", _ENUM, 404, 40402, "Version 2 not found."),
    ("POST", "/subjects/e/versions", {**_ENUM, "id": 9}, 422, 42205, "Subject e in context  is not in import mode"),
    (
        "POST",
        "/subjects/e/versions",
        {"schema": _ENUM["schema"].replace("A", "B"), "version": 5},
        422,
        42201,
        "Version is not one more than previous version",
    ),
    ("PUT", "/mode", {"mode": "IMPORT"}, 422, 42205, "Cannot import since found existing subjects"),
    ("PUT", "/mode/e", {"mode": "READONLY"}, 200, 0, None),
    ("DELETE", "/subjects/e", None, 422, 42205, "Subject e in context  is in read-only mode"),
    ("PUT", "/mode/e", {"mode": "READWRITE"}, 200, 0, None),
    (
        "POST",
        "/subjects/r/versions",
        {
            "schema": '{"type":"record","name":"R","fields":[{"name":"e","type":"E"}]}',
            "references": [{"name": "E", "subject": "e", "version": 1}],
        },
        200,
        0,
        None,
    ),
    (
        "DELETE",
        "/subjects/e/versions/1",
        None,
        422,
        42206,
        "One or more references exist to the schema {magic=1,keytype=SCHEMA,subject=e,version=1}.",
    ),
    ("DELETE", "/subjects/r", None, 200, 0, None),
    ("DELETE", "/subjects/e?permanent=true", None, 422, 42206, None),
    ("DELETE", "/subjects/r?permanent=true", None, 200, 0, None),
    ("DELETE", "/subjects/e?permanent=true", None, 404, 40405, f"Subject 'e' {_FIRST}"),
    ("DELETE", "/subjects/e/versions/1?permanent=true", None, 404, 40407, f"Subject 'e' Version 1 {_FIRST}"),
    ("DELETE", "/subjects/e/versions/1", None, 200, 0, None),
    ("DELETE", "/subjects/e/versions/1", None, 404, 40406, f"Subject 'e' Version 1 {_GONE}"),
    ("DELETE", "/subjects/e", None, 404, 40404, f"Subject 'e' {_GONE}"),
    ("DELETE", "/contexts/.none", None, 204, 0, None),
    ("POST", "/contexts/.c/subjects/s/versions", {"schema": '"int"'}, 200, 0, None),
    ("DELETE", "/contexts/.c", None, 422, 42211, "The specified context ':.c:' is not empty."),
]

#: Why errors are not among these, by their class in `pylogd.services.registry.errors`.
NOT_PROVOKED: Final[Mapping[str, str]] = {
    "BodyTooLarge": "Confluent has no limit; tests/integration/services/test_schema_registry_limits.py has it",
    "ForwardingFailed": "it needs a registry whose leader has stopped",
    "IdDoesNotMatch": "it needs the mode IMPORT, which only an empty registry takes",
    "LeaderUnreachable": "it needs a registry whose leader has stopped",
    "Overloaded": "Confluent has no limit; tests/integration/services/test_schema_registry_limits.py has it",
    "RegistryError": "it is the base of the others",
    "SchemaTooLarge": "it needs a topic that takes small records only",
    "StoreTimedOut": "it needs brokers that have stopped",
    "Unauthorized": "it needs users; tests/integration/services/test_schema_registry_security.py has it",
    "UnknownLeader": "it needs a registry without a leader",
}


def is_expected(message: str, text: str | None) -> bool:
    """Return whether an error has the text that a request of the table expects."""
    if text is None:
        return True
    return message.startswith(text[:-1]) if text.endswith("*") else message == text
