"""The arguments and results of the console's handlers: requests, answers, and errors for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pylogd.console.roles import Role
from pylogd.console.sessions import Session
from pylogd.errors import PylogdError

HTML: Final = "text/html; charset=utf-8"


class Refused(PylogdError):
    """A request that can't be answered as asked. status: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class Answer(NamedTuple):
    """An answer to a browser. headers: in addition to the headers that all answers have."""

    body: bytes
    kind: str = HTML
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()


def redirect(where: str) -> Answer:
    """Return an answer that sends the browser to another page of the console, with GET."""
    return Answer(b"", status=303, headers=[("Location", where)])


@dataclass(slots=True)
class PageRequest:
    """A request. parts: of the path, as the route names them. options: of the query, form: of the body; the last value
    of each name. user: who asks, "" without a login; role: what they may do. token: for forms. request: Twisted's, for
    streams.
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
