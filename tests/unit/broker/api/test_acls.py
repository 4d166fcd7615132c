"""Many ACLs: described within a size, created and deleted with turns of the reactor for others in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.broker.api.errors import LONGEST_TEXT
from pylogd.wire.messages.create_acls import AclCreation, CreateAclsRequest
from pylogd.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from pylogd.wire.messages.describe_acls import DescribeAclsRequest
from tests.fakes.parts import Parts
from tests.unit.broker.api.test_bounded_work import later

MANY = 2_000
_TOPIC, _LITERAL, _READ, _ALLOW, _ANY, _MATCH = 2, 3, 3, 3, 1, 2
ALL = DescribeAclsRequest(_ANY, None, _ANY, None, None, _ANY, _ANY)


def acls(count: int) -> CreateAclsRequest:
    """Return a request for as many ACLs, each for a topic and a user of its own."""
    return CreateAclsRequest(
        [AclCreation(_TOPIC, f"t-{n}", _LITERAL, f"User:u-{n}", "*", _READ, _ALLOW) for n in range(count)]
    )


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(
        tmp_path, authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS", response_max_bytes=65_536,
    )  # fmt: skip
    yield made
    made.close()


def test_many_are_created_and_deleted_in_slices(guarded: Parts) -> None:
    created, turns = later(guarded, acls(MANY), 3)
    assert turns > 10 and {result.error_code for result in created.results} == {0}
    filters = [DeleteAclsFilter(_ANY, None, _ANY, f"User:u-{n}", None, _ANY, _ANY) for n in range(0, MANY, 2)]
    deleted, turns = later(guarded, DeleteAclsRequest(filters), 3)
    assert turns > 10
    assert [[acl.principal for acl in result.matching_acls] for result in deleted.filter_results] == [
        [f"User:u-{n}"] for n in range(0, MANY, 2)
    ]
    assert guarded.security.acls is not None and len(guarded.security.acls.items()) == MANY // 2


def test_what_does_not_fit_into_an_answer_is_refused(guarded: Parts) -> None:
    later(guarded, acls(2 * MANY), 3)
    answer, _ = later(guarded, ALL, 3)
    assert (answer.error_code, answer.resources) == (ErrorCode.INVALID_REQUEST, [])
    assert "response.max.bytes" in answer.error_message
    one = DescribeAclsRequest(_ANY, None, _ANY, "User:u-7", None, _ANY, _ANY)
    answer, _ = later(guarded, one, 3)
    assert [resource.resource_name for resource in answer.resources] == ["t-7"]


def test_what_is_wrong_with_a_long_text_is_told_in_short(guarded: Parts) -> None:
    """The longest text that a request may have does not fit into an answer that quotes it."""
    for at in ("resource_name", "principal", "host"):
        creation = AclCreation(_TOPIC, "t", _LITERAL, "User:u", "*", _READ, _ALLOW)
        setattr(creation, at, "x" * 32_767)
        answer, _ = later(guarded, CreateAclsRequest([creation]), 1)
        assert at == "resource_name" or answer.results[0].error_code == ErrorCode.INVALID_REQUEST
        assert len(answer.results[0].error_message or "") <= LONGEST_TEXT


def test_too_many_filters_that_match_are_refused(guarded: Parts) -> None:
    guarded.call(acls(1), 3)
    filters = [DeleteAclsFilter(_TOPIC, f"t-{n}", _MATCH, None, None, _ANY, _ANY) for n in range(101)]
    answer, _ = later(guarded, DeleteAclsRequest(filters), 3)
    assert {result.error_code for result in answer.filter_results} == {ErrorCode.INVALID_REQUEST}
    answer, _ = later(guarded, DeleteAclsRequest(filters[:100]), 3)
    assert sum(len(result.matching_acls) for result in answer.filter_results) == 1
