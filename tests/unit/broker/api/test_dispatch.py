"""The dispatcher calls the handler of each API, with a context that the requests of a connection share."""

from __future__ import annotations

from typing import Any

import pytest

from pylogd.base.errors import CloseConnection, ErrorCode
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.dispatch import Dispatcher
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from pylogd.wire.messages.produce import ProduceRequest
from pylogd.wire.session import NOT_ANSWERED, LargeRequest, RequestReceived, ServerSession, UnsupportedRequest
from tests.fakes.metadata import result_of
from tests.fakes.parts import FakeConnection, Parts


class Connection(FakeConnection):
    """A client's connection as the dispatcher sees it."""

    context: RequestContext | None = None


def groups(version: int = 4, client_id: str | None = "me") -> RequestReceived:
    return RequestReceived(ListGroupsRequest.API_KEY, version, 7, client_id, ListGroupsRequest())


def test_a_request_is_answered_by_the_handler_of_its_api(parts: Parts) -> None:
    assert isinstance(Dispatcher(parts).handle(Connection(), groups()), ListGroupsResponse)


def test_requests_of_one_version_and_client_share_a_context(parts: Parts) -> None:
    dispatcher, connection = Dispatcher(parts), Connection()
    found: list[Any] = []
    for event in (groups(), groups(), groups(version=3), groups(version=3, client_id=None)):
        dispatcher.handle(connection, event)
        found.append(connection.context)
    assert found[0] is found[1]
    assert len(set(found)) == 3
    assert [(context.version, context.client_id) for context in found[1:]] == [(4, "me"), (3, "me"), (3, None)]


def test_api_versions_is_answered_at_any_version(parts: Parts) -> None:
    answer = Dispatcher(parts).handle(Connection(), UnsupportedRequest(ApiVersionsRequest.API_KEY, 99, 1, "me"))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [row.api_key for row in answer.api_keys] == [ApiVersionsRequest.API_KEY]


@pytest.mark.parametrize(("api_key", "version"), [(ProduceRequest.API_KEY, 99), (999, 0)])
def test_a_request_that_is_not_served_closes_the_connection(parts: Parts, api_key: int, version: int) -> None:
    with pytest.raises(CloseConnection, match=f"'me' sent a request of API {api_key} version {version}"):
        Dispatcher(parts).handle(Connection(), UnsupportedRequest(api_key, version, 1, "me"))


def test_only_what_the_fast_path_knows_is_answered_by_it(parts: Parts) -> None:
    dispatcher = Dispatcher(parts)
    session = ServerSession(1 << 20, dispatcher.versions)
    assert set(dispatcher.batched) == {ProduceRequest.API_KEY << 16 | version for version in range(3, 14)}
    for frame in (b"", b"\0\0", b"\0\1" + bytes(60), b"\0\0\0\x0c" + bytes(60)):
        assert dispatcher.handle_batch(Connection(), memoryview(frame), session, 256) is NOT_ANSWERED


def test_a_large_request_is_decoded_in_a_thread_and_then_answered(parts: Parts) -> None:
    parts.threads.hold = True
    event = LargeRequest(ListGroupsRequest.API_KEY, 4, 7, "me", ListGroupsRequest)
    answers: list[Any] = []
    Dispatcher(parts).handle(Connection(), event).addCallback(answers.append)
    assert not answers
    parts.threads.release()
    assert isinstance(answers[0], ListGroupsResponse)


def test_a_large_request_that_is_malformed_closes_the_connection(parts: Parts) -> None:
    def decode() -> Any:
        raise RemoteProtocolError("it ends too soon")

    event = LargeRequest(ListGroupsRequest.API_KEY, 4, 7, "me", decode)
    with pytest.raises(CloseConnection, match="it ends too soon"):
        result_of(Dispatcher(parts).handle(Connection(), event))
