"""The code that the four APIs of delegation tokens share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pylogd.base.errors import ErrorCode, KafkaError, PylogdError
from pylogd.broker.api.context import RequestContext
from pylogd.broker.api.errors import explain
from pylogd.credentials.principal import ANONYMOUS


def check_may_manage(context: RequestContext) -> None:
    """Raise KafkaError unless the client may create and see tokens over its connection.

    The client must have authenticated with credentials of its own: a token can't be used to make tokens.
    """
    connection = context.connection
    authentication = connection.authentication
    by_token = authentication is not None and authentication.by_token
    if by_token or connection.principal == ANONYMOUS:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


async def change_expiry(context: RequestContext, change: Callable[[], Awaitable[int]]) -> tuple[ErrorCode, int]:
    """Change when a token expires. Return an error code and the new time, in milliseconds since 1970; 0 with an error.

    change: changes the token and returns the time.
    """
    try:
        check_may_manage(context)
        return ErrorCode.NONE, await change()
    except PylogdError as error:
        return explain(error)[0], 0
