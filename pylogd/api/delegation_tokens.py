"""What the four APIs of delegation tokens have in common."""

from __future__ import annotations

from pylogd.api.context import RequestContext
from pylogd.errors import ErrorCode, KafkaError
from pylogd.security.principal import ANONYMOUS


def check_may_manage(context: RequestContext) -> None:
    """Raise KafkaError unless the client may create and see tokens over its connection.

    It has to have said who it is, by credentials of its own: a token does not make tokens.
    """
    connection = context.connection
    authentication = connection.authentication
    by_token = authentication is not None and authentication.by_token
    if by_token or connection.principal == ANONYMOUS:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
