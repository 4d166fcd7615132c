"""FindCoordinator and InitProducerId."""

from __future__ import annotations

import pytest
from twisted.internet.defer import fail

from pylogd.base.errors import ErrorCode
from pylogd.store.errors import StoreFailure
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.init_producer_id import InitProducerIdRequest
from tests.fakes.parts import Parts


class TestFindCoordinator:
    def test_groups_are_coordinated_here(self, parts: Parts) -> None:
        one = parts.call(FindCoordinatorRequest("g"), 3)
        assert (one.error_code, one.node_id, one.host, one.port) == (0, 1, "localhost", 9092)
        many = parts.call(FindCoordinatorRequest(coordinator_keys=["g", "h"]), 6).coordinators
        assert [(found.key, found.node_id, found.error_code) for found in many] == [("g", 1, 0), ("h", 1, 0)]

    @pytest.mark.parametrize(
        ("key_type", "code"),
        [(2, ErrorCode.INVALID_REQUEST), (9, ErrorCode.INVALID_REQUEST)],
    )
    def test_other_keys_are_refused_with_a_message(self, parts: Parts, key_type: int, code: ErrorCode) -> None:
        one = parts.call(FindCoordinatorRequest("x", key_type), 1)
        assert (one.error_code, one.node_id) == (code, -1)
        assert one.error_message
        (found,) = parts.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]), 4).coordinators
        assert (found.error_code, found.node_id, found.key) == (code, -1, "x")

    def test_transactional_ids_are_coordinated_here(self, parts: Parts) -> None:
        one = parts.call(FindCoordinatorRequest("x", 1), 3)
        assert (one.error_code, one.node_id, one.host, one.port) == (0, 1, "localhost", 9092)
        (empty,) = parts.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[""]), 6).coordinators
        assert (empty.error_code, empty.node_id) == (0, 1)  # as in Kafka


class TestInitProducerId:
    def test_ids_are_never_given_twice(self, parts: Parts) -> None:
        answers = [parts.call(InitProducerIdRequest(None)) for _ in range(1500)]
        assert {(one.error_code, one.producer_epoch) for one in answers} == {(0, 0)}
        assert len({one.producer_id for one in answers}) == 1500

    def test_a_producer_that_has_an_id_gets_a_new_one(self, parts: Parts) -> None:
        first = parts.call(InitProducerIdRequest(None))
        again = parts.call(InitProducerIdRequest(None, 0, first.producer_id, 3))
        assert (again.producer_id, again.producer_epoch) == (first.producer_id + 1, 0)

    @pytest.mark.parametrize(("producer_id", "epoch"), [(7, -1), (-1, 0)])
    def test_a_producer_id_without_an_epoch(self, parts: Parts, producer_id: int, epoch: int) -> None:
        answer = parts.call(InitProducerIdRequest(None, 0, producer_id, epoch))
        assert (answer.error_code, answer.producer_id) == (ErrorCode.INVALID_REQUEST, -1)

    def test_an_empty_transactional_id_is_refused(self, parts: Parts) -> None:
        assert parts.call(InitProducerIdRequest("")).error_code == ErrorCode.INVALID_REQUEST

    def test_a_store_that_fails(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parts.metadata.producer_ids, "next", lambda: fail(StoreFailure("disk full")))
        answer = parts.call(InitProducerIdRequest(None))
        assert (answer.error_code, answer.producer_id) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1)
