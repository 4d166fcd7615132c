"""The arguments and results of the console's handlers: requests, answers, and errors for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.services.console.roles import Role
from pylogd.services.console.sessions import Session

HTML: Final = "text/html; charset=utf-8"


class Refused(PylogdError):
    """A request is refused.

    status: the HTTP status code.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class Answer(NamedTuple):
    """An answer to a browser.

    headers: the headers in addition to those of all answers.
    """

    body: bytes
    kind: str = HTML
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()


def redirect(where: str) -> Answer:
    """Return an answer that sends the browser to another page of the console, with GET."""
    return Answer(b"", status=303, headers=[("Location", where)])


@dataclass(slots=True)
class PageRequest:
    """A request.

    parts: the variable parts of the path, by their names in the route.
    options: the query's parameters by name, with the last value of each.
    form: the same of the body.
    user: the name of the user; "" without a login.
    role: the user's role.
    token: the token that forms must carry.
    request: Twisted's request, for streams.
    """

    path: str
    parts: Mapping[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    role: Role = Role.NONE
    token: str = ""
    session: Session | None = None
    request: Any = None
