"""Answer a Fetch request that has waited on the fast path (`fast.waiting_fetch`), and whose wait ends unusually."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogd.broker.api.context import BrokerParts, Connection, RequestContext
from pylogd.broker.api.fetch import FetchJob
from pylogd.broker.api.fetch_request import named_entries
from pylogd.broker.api.metering import answer_waited_fetch
from pylogd.broker.api.registry import REGISTRATIONS
from pylogd.broker.replica.sessions import FetchSession
from pylogd.wire.headers import read_request_header, skip_tagged_fields
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse
from pylogd.wire.schema import request_codec

_LENGTH = 4  # bytes before a request
_API = REGISTRATIONS[FetchRequest.API_KEY].name  # for the audit log


def answer_anew(
    broker: BrokerParts, connection: Connection, data: bytes, session: FetchSession[FetchPartition] | None
) -> FetchResponse | Deferred[FetchResponse]:
    """Read for the request in `data`, which begins with its length, as `fetch` does after a wait. Return the response.

    session: the session that the request has already continued; None for a request without a session.
    """
    frame = memoryview(data)[_LENGTH:]
    _, version, _, client_id, at = read_request_header(frame)
    codec = request_codec(FetchRequest.API_KEY, version)
    request: FetchRequest = codec.decode(frame[skip_tagged_fields(frame, at) :])
    context = RequestContext(broker, connection, version, client_id, _API)

    def answer(_: None) -> FetchResponse | Deferred[FetchResponse]:
        entries = named_entries(request, by_id=True) if session is None else session
        job = FetchJob(context, request, entries, None, False)
        job.session = session  # the session has seen the request: later changes are for the next request
        return job.read_and_answer(None)

    found: FetchResponse | Deferred[FetchResponse] = answer_waited_fetch(context, request, answer)
    return found
