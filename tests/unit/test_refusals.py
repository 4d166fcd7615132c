"""The refused requests of the conformance suite cover the error codes that the source names, or say why not."""

from __future__ import annotations

import pytest

from conformance.refusals import CASES
from conformance.refused import coverage, registry
from conformance.refused.model import Peer, errors_in, message
from pylogd.base.errors import ErrorCode
from pylogd.services.registry import errors
from pylogd.wire.messages.create_partitions import CreatePartitionsRequest
from pylogd.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from pylogd.wire.schema import request_codec


def test_every_error_code_is_provoked_or_excused() -> None:
    assert coverage.not_covered(CASES) == []


def test_no_excuse_is_out_of_date() -> None:
    assert coverage.needless(CASES) == []


def test_a_code_without_a_case_is_found() -> None:
    without = [one for one in CASES if "INVALID_REPLICATION_FACTOR" not in one.errors]
    assert "metadata: INVALID_REPLICATION_FACTOR" in coverage.not_covered(without)
    others = [one for one in CASES if (one.api, "ILLEGAL_SASL_STATE") != ("sasl_handshake", *one.errors)]
    assert coverage.not_covered(others) == ["sasl_handshake: ILLEGAL_SASL_STATE"]


def test_an_excuse_that_is_not_needed_is_found() -> None:
    excused = {"why": {"create_topics": "INVALID_REQUEST", "sync_group": "UNKNOWN_SERVER_ERROR"}}
    assert coverage.needless(CASES, excused) == ["create_topics: INVALID_REQUEST", "sync_group: UNKNOWN_SERVER_ERROR"]


def test_titles_and_error_codes() -> None:
    titles = [one.title for one in CASES]
    assert len(set(titles)) == len(titles)
    outcomes = {"connection_closed", *ErrorCode.__members__}
    assert {code for one in CASES for code in one.errors} <= outcomes


@pytest.mark.parametrize("api", sorted({one.api for one in CASES if not one.before}))
def test_bodies_are_requests(api: str) -> None:
    peer = Peer("", "")
    peer.ids = dict.fromkeys(("one", "doomed"), bytes(16))
    for one in CASES:
        if one.api == api and not one.before and one.title != "api versions 99, a version that does not exist":
            made = message(api, one.body, peer)
            assert request_codec(made.API_KEY, one.version).encode(made)


def test_nested_structures_are_made() -> None:
    topics = [{"name": "t", "count": 2, "assignments": [{"broker_ids": [1]}]}]
    made = message("create_partitions", {"topics": topics}, Peer("", ""))
    assert isinstance(made, CreatePartitionsRequest)
    assert made.topics[0].assignments is not None
    assert made.topics[0].assignments[0].broker_ids == [1]


def test_error_codes_of_an_answer() -> None:
    answer = DeleteTopicsResponse(responses=[DeletableTopicResult("a", error_code=3), DeletableTopicResult("b")])
    assert errors_in(answer) == ["UNKNOWN_TOPIC_OR_PARTITION", "NONE"]


def test_every_error_of_the_registry_is_provoked_or_excused() -> None:
    named = vars(errors).items()
    kinds = {name: kind for name, kind in named if isinstance(kind, type) and issubclass(kind, errors.RegistryError)}
    provoked = {code for *_, code, _ in registry.REQUESTS}
    missing = {name for name, kind in kinds.items() if kind.code not in provoked}
    assert missing == registry.NOT_PROVOKED.keys()
