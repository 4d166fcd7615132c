"""Schemas are asked for once, with what they refer to; failures are tried again and then raised."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from pylogd.client.registry.api_client import RegistryApi, SchemaRegistryError
from pylogd.lake.typed.errors import UnknownSchema
from pylogd.lake.typed.registry import Definition, Registered, SchemaLookup, Version


class Answers(RegistryApi):
    """An API whose answers are given; errors are raised, lists are answered one after the other."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def ask(self, path: str, body: Any = None, query: Any = None) -> Any:
        path += "?" + urlencode(query) if query else ""
        self.asked.append(path)
        answer = self.answers.get(path, SchemaRegistryError("not found", 40403))
        if isinstance(answer, list) and answer and isinstance(answer[0], Exception | dict):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def lookup(answers: dict[str, Any]) -> tuple[SchemaLookup, Answers, list[float]]:
    client, slept = Answers(answers), list[float]()
    return SchemaLookup(client, slept.append), client, slept


def test_a_schema_is_asked_for_once() -> None:
    found, client, _ = lookup({"/schemas/ids/1": {"schema": '"int"'}})
    assert found.schema(1) == found.schema(1) == Registered("AVRO", '"int"')
    assert client.asked == ["/schemas/ids/1"]


def test_references_come_before_what_refers_to_them_each_once() -> None:
    def used(*names: str) -> list[dict[str, Any]]:
        return [{"name": name, "subject": f"s/{name}", "version": 2} for name in names]

    path = "/subjects/s%2F{}/versions/2?deleted=true"
    found, client, _ = lookup(
        {
            "/schemas/ids/1": {"schema": "top", "schemaType": "JSON", "references": used("a", "b")},
            path.format("a"): {"schema": "A", "references": used("c")},
            path.format("b"): {"schema": "B", "references": used("c")},
            path.format("c"): {"schema": "C"},
        }
    )
    assert found.schema(1).references == (Definition("c", "C"), Definition("a", "A"), Definition("b", "B"))
    assert len(client.asked) == 4


def test_protobuf_is_asked_for_as_descriptors() -> None:
    found, _, _ = lookup(
        {
            "/schemas/ids/1": {"schema": "syntax = ...", "schemaType": "PROTOBUF"},
            "/schemas/ids/1?format=serialized": {
                "schema": "CgA=",
                "schemaType": "PROTOBUF",
                "references": [{"name": "a.proto", "subject": "a", "version": 1}],
            },
            "/subjects/a/versions/1?deleted=true&format=serialized": {"schema": "CgE=", "schemaType": "PROTOBUF"},
        }
    )
    assert found.schema(1) == Registered("PROTOBUF", "CgA=", (Definition("a.proto", "CgE="),))


def test_what_the_registry_does_not_have_may_be_there_later() -> None:
    found, client, slept = lookup({})
    guid = "00000000-0000-0000-0000-00000000004d"
    for schema_id in (9, guid):
        with pytest.raises(UnknownSchema, match=f"id {schema_id}"):
            found.schema(schema_id)
    assert client.asked == ["/schemas/ids/9", f"/schemas/guids/{guid}"]
    assert slept == []
    client.answers["/schemas/ids/9"] = {"schema": '"int"'}
    assert found.schema(9).text == '"int"'


def test_schemas_that_are_known_are_not_asked_for() -> None:
    found, client, _ = lookup({})
    found.add({9: Registered("AVRO", '"int"')})
    assert found.schema(9).text == '"int"'
    assert client.asked == []


@pytest.mark.parametrize("code", [0, 50001, 503])
def test_failures_that_may_pass_are_tried_again(code: int) -> None:
    down = SchemaRegistryError("down", code)
    found, _, slept = lookup({"/schemas/ids/1": [down, down, {"schema": '"int"'}]})
    assert found.schema(1).text == '"int"'
    assert len(slept) == 2


@pytest.mark.parametrize(("code", "tries"), [(0, 3), (40101, 1), (42201, 1)])
def test_a_registry_that_fails_is_an_error_and_not_an_unknown_schema(code: int, tries: int) -> None:
    found, client, _ = lookup({"/schemas/ids/1": SchemaRegistryError("no", code)})
    with pytest.raises(SchemaRegistryError):
        found.schema(1)
    assert len(client.asked) == tries


def test_versions_of_a_subject() -> None:
    path = "/subjects/a%2Fb-value/versions"
    found, client, _ = lookup({path: [3, 1], f"{path}/1": {"id": 11}, f"{path}/3": {"id": 7}})
    assert found.versions("a/b-value") == [Version(1, 11), Version(3, 7)]
    found.versions("a/b-value")
    assert client.asked.count(path) == 2
    assert client.asked.count(f"{path}/1") == 1
