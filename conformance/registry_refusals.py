"""Send requests that a schema registry refuses by Confluent's client, and check what it raises.

Confluent's registry itself is not on Maven Central, so there is no second run: `refused/registry.py` has what it
answers. Beside the table, Confluent's serializers and client are used as in programs, and what they raise is checked.
"""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from conformance import brokers
from conformance.checks import Check, Missing, expect
from conformance.refused.registry import REQUESTS, is_expected
from pylogd.local.broker import pylogd_command

_SECONDS: Final = 60.0
_SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0"}


def version() -> str:
    """Return the version of Confluent's client."""
    return f"confluent-kafka {confluent_kafka.version()}"


def suite(folder: Path) -> list[Check]:
    """Each request is a check, and each use of the client."""
    with brokers.running("pylogd", folder, _SETTINGS) as address, _registry(address, folder) as url:
        client = SchemaRegistryClient({"url": url})
        return [*_requests(client), *_uses(client)]


def _requests(client: SchemaRegistryClient) -> Iterator[Check]:
    sent = {"GET": "get", "POST": "post", "PUT": "put", "DELETE": "delete"}
    for number, (method, path, body, status, code, text) in enumerate(REQUESTS):
        if isinstance(body, bytes):
            continue  # the client sends nothing but JSON
        shown = "" if body is None else " " + json.dumps(body)[:60]
        name = f"{number} {method} {path}{shown}"
        call = getattr(client._rest_client, sent[method])
        try:
            call(path.removeprefix("/"), *([] if body is None else [body]))
        except SchemaRegistryError as error:
            found = (error.http_status_code, error.error_code)
            as_said = found == (status, code) and is_expected(error.error_message, text)
            yield expect(name, as_said, f"{found} {error.error_message}, expected {(status, code)} {text}")
        else:
            yield expect(name, status < 400, f"it was carried out, expected {(status, code)}")


def _uses(client: SchemaRegistryClient) -> Iterator[Check]:
    """Use the client as programs do."""
    record: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    client.register_schema("used", Schema(json.dumps(record), "AVRO"))
    record["fields"].append({"name": "b", "type": "int"})
    added = Schema(json.dumps(record), "AVRO")
    yield _raises("an incompatible schema is registered", lambda: client.register_schema("used", added), 409, 409)
    yield expect("an incompatible schema is tested", not client.test_compatibility("used", added), "it is compatible")
    other = Schema('{"type": "string"}', "JSON")
    yield _raises("a schema of another type is registered", lambda: client.register_schema("used", other), 409, 409)
    yield expect("a schema of another type is tested", not client.test_compatibility("used", other), "it is compatible")
    wrong = Schema('{"type": "recrod"}', "AVRO")
    yield _raises(
        "a schema that is not valid", lambda: client.register_schema("used", wrong), 422, 42201, "Invalid schema"
    )
    yield _raises("a schema that is not registered", lambda: client.lookup_schema("used", added), 404, 40403)
    yield _raises("a subject that does not exist", lambda: client.get_latest_version("nothing"), 404, 40401)
    yield _raises("an id that does not exist", lambda: client.get_schema(9999), 404, 40403)


def _raises(name: str, call: Any, status: int, code: int, text: str = "") -> Check:
    try:
        call()
    except SchemaRegistryError as error:
        found = (error.http_status_code, error.error_code)
        return expect(name, found == (status, code) and text in error.error_message, f"{found} {error.error_message}")
    return expect(name, False, "nothing was raised")


@contextmanager
def _registry(bootstrap: str, folder: Path) -> Iterator[str]:
    """Run `pylogd schema-registry`, and yield its URL. Raises Missing if it does not start."""
    command = [*pylogd_command(), "schema-registry", "-b", bootstrap, "-l", "127.0.0.1:0"]
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], _SECONDS)
        line = process.stdout.readline().decode() if ready else ""
        if "://" not in line:
            raise Missing(f"the schema registry did not start: {line!r}")
        yield line.split()[-1]
    finally:
        process.terminate()
        process.wait(_SECONDS)
