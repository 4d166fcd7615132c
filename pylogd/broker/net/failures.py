"""Tell why a connection is closed: to its client, and in the log, with the failure of a handler."""

from __future__ import annotations

from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import CloseConnection
from pylogd.broker.net.request_handler import Event

log = Logger()

#: The answer to a client that begins with TLS. It is text, so the client's TLS library sees at once that there is no
#: TLS.
NO_TLS = b"This listener does not use TLS.\n"


def explain(failure: Failure, event: Event | None) -> str:
    """Return why the connection is closed after a handler's failure. Log the traceback of an unexpected one."""
    if failure.check(CloseConnection):
        return failure.getErrorMessage()
    if event is None:
        log.failure("Unexpected error while answering a request batch", failure)
    else:
        log.failure(
            "Unexpected error while handling API {api} version {version}",
            failure, api=event.api_key, version=event.version,
        )  # fmt: skip
    return "internal error, see the traceback above"
