"""Sizes of messages are measured when they are sampled, and only then."""

from __future__ import annotations

from typing import cast

from pylogd.base.limits.elements import ElementBounds
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse
from pylogd.wire.session import DECODERS, ENCODERS, ClientSession, RequestReceived, ServerSession
from pylogd.wire.size_sampling import SizeSampler

KEY = MetadataRequest.API_KEY


def exchange(server: ServerSession, client: ClientSession) -> tuple[int, int]:
    """Have a request and its reply coded; return their sizes with length and headers."""
    request = b"".join(cast("list[bytes]", client.encode_request(MetadataRequest(None), 12)))
    server.receive_data(request)
    event = server.next_event()
    assert isinstance(event, RequestReceived)
    return len(request), sum(map(len, server.encode_reply(event, MetadataResponse())))


def test_the_next_message_is_measured_and_no_other() -> None:
    requests: list[tuple[int, int]] = []
    responses: list[tuple[int, int]] = []
    sampler = SizeSampler(lambda *found: requests.append(found), lambda *found: responses.append(found))
    server = ServerSession(1 << 20, {KEY: (0, 13)}, elements=ElementBounds(1000))
    client = ClientSession(1 << 20, "me")
    exchange(server, client)
    plain = dict(ENCODERS), {bounds: dict(found) for bounds, found in DECODERS.items()}
    assert not requests and not responses
    try:
        for _ in range(2):
            sampler.sample()
            sampler.sample()
            request, response = exchange(server, client)
            exchange(server, client)
        headers = 4 + 8 + 2 + len("me") + 1, 4 + 4 + 1
        assert requests == [(KEY, request - headers[0])] * 2
        assert responses == [(KEY, response - headers[1])] * 2
    finally:
        ENCODERS.update(plain[0])
        for bounds, found in plain[1].items():
            DECODERS[bounds].update(found)
