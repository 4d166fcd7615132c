"""What the tables of refused requests are made of, and how one request is sent.

The body of a request is written as plain values: a mapping for each structure, by the names of `protocol/`. A function
among the values is called with the `Peer`, for what only the broker knows, such as the id of a topic.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages import APIS
from pylogd.wire.messages.api_versions import ApiVersionsRequest
from pylogd.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from pylogd.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.rawclient import ConnectionClosed, RawClient, frame, header

Body = Mapping[str, Any]
#: A request: API, as the module of its handler is called, version, body.
Step = tuple[str, int, Body]

#: In place of a request: wait until Apache Kafka's broker knows what its controller has made.
LEARN: Final[Step] = ("", 0, {})
_LEARN_SECONDS: Final = 3.0
#: Who sends a request: nobody known, by the open listener, where everything is allowed; or a user by SASL/PLAIN.
ANYONE, ALICE, ADMIN, STRANGER = "anyone", "alice", "admin", "stranger"
#: Users who may use groups and transactional ids but no topics, only transactional ids, and few topics at a time.
READER, PRODUCER, LIMITED = "reader", "producer", "limited"
PASSWORDS: Final = {name: f"{name}-secret" for name in (ALICE, ADMIN, READER, PRODUCER, LIMITED)}
#: Brokers with users, ACLs and delegation tokens; brokers without them, where no topic may be deleted.
SECURED, OPEN = "secured", "open"
CLOSED, SILENT = "connection_closed", "no_answer"
#: Seconds after which a request counts as one that gets no answer. Rebalances take 10.
_PATIENCE: Final = 15.0
#: Answers of a coordinator that is not ready yet, or of a broker that has not heard of a new topic or setting.
_AGAIN: Final = frozenset({"NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"})
_WAIT_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and what pylogd answers.

    errors: the names of the error codes in pylogd's answer, each once, without NONE. by: who sends it.
    before: requests that are sent first. Their answers are in `Peer.answers`.
    first_by: who sends these, if it is another. brokers: the kind of brokers, by their settings.
    """

    api: str
    name: str
    version: int
    body: Body
    errors: frozenset[str]
    by: str = ANYONE
    before: Sequence[Step] = ()
    first_by: str = ""
    brokers: str = SECURED

    @property
    def title(self) -> str:
        """The name of the check."""
        words = self.api.replace("_", " ")
        return f"{words} {self.version}, {self.name}"


def case(
    api: str,
    name: str,
    version: int,
    errors: str,
    by: str = ANYONE,
    before: Sequence[Step] = (),
    *,
    first_by: str = "",
    brokers: str = SECURED,
    **body: Any,
) -> Case:
    """Return a case. errors: names of error codes, with spaces between them. body: the fields of the request."""
    return Case(api, name, version, body, frozenset(errors.split()), by, before, first_by, brokers)


class Peer:
    """A broker that requests are sent to.

    ids: topic ids by name. answers: to the requests that the current case sends before. directory: that of the logs.
    """

    def __init__(self, plain: str, users: str) -> None:
        self._plain = plain
        self._users = users
        self.ids: dict[str, bytes] = {}
        self.answers: list[Any] = []
        self.directory = ""

    def connect(self, by: str) -> RawClient:
        """Return a connection of that user."""
        if by == ANYONE:
            return RawClient(self._plain, patience=_PATIENCE)
        client = RawClient(self._users, patience=_PATIENCE)
        if by != STRANGER:
            client.request(SaslHandshakeRequest("PLAIN"), 1)
            answer = client.request(SaslAuthenticateRequest(f"\0{by}\0{PASSWORDS[by]}".encode()), 2)
            assert answer.error_code == 0, answer
        return client

    def ask(self, client: RawClient, step: Step) -> Any:
        """Return the answer to a request, which is repeated while a coordinator is not ready."""
        api, version, body = step
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            if version <= newest_version(api):
                answer = client.request(message(api, body, self), version)
            else:  # only ApiVersions is answered at a version that the broker does not have, by one of version 0
                client.last_correlation_id += 1
                client.send(frame(header(message(api, body, self).API_KEY, version, client.last_correlation_id)))
                answer = client.response(ApiVersionsRequest.API_KEY, 0, client.last_correlation_id)
            if not _AGAIN.intersection(errors_in(answer)) or time.monotonic() > deadline:
                return answer
            time.sleep(0.1)

    def outcome(self, one: Case) -> list[str]:
        """Return the names of all error codes of the answer to a case, in their order."""
        self.answers = []
        with contextlib.closing(self.connect(one.by)) as client:
            try:
                self._begin(one, client)
                return errors_in(self.ask(client, (one.api, one.version, one.body)))
            except ConnectionClosed:
                return [CLOSED]
            except TimeoutError:
                return [SILENT]

    def _begin(self, one: Case, client: RawClient) -> None:
        """Send the requests that come before that of a case."""
        with contextlib.ExitStack() as stack:
            sender = stack.enter_context(self.connect(one.first_by)) if one.first_by else client
            for step in one.before:
                if step == LEARN:
                    time.sleep(_LEARN_SECONDS)
                else:
                    self.answers.append(self.ask(sender, step))


def newest_version(api: str) -> int:
    """Return the newest version of an API that pylogd has."""
    module = importlib.import_module(f"pylogd.wire.messages.{api}")
    return APIS[_request(module, api).API_KEY].max_version


def _request(module: Any, api: str) -> Any:
    return getattr(module, "".join(word.title() for word in api.split("_")) + "Request")


def message(api: str, body: Body, peer: Peer) -> Any:
    """Return the request that a body is for."""
    module = importlib.import_module(f"pylogd.wire.messages.{api}")
    name = "".join(word.title() for word in api.split("_")) + "Request"
    return _built(module, name, body, peer)


def _built(module: Any, kind: str, value: Any, peer: Peer) -> Any:
    """Return a value of a type, which is given as its annotation."""
    if callable(value):
        value = value(peer)
    kind = kind.strip('"').removesuffix(" | None")
    if isinstance(value, list) and (of := re.fullmatch(r"list\[(.*)]", kind)):
        return [_built(module, of[1], item, peer) for item in value]
    if not isinstance(value, Mapping):
        return value
    structure = getattr(module, kind)
    fields = inspect.signature(structure).parameters
    return structure(**{name: _built(module, fields[name].annotation, item, peer) for name, item in value.items()})


def errors_in(answer: Any) -> list[str]:
    """Return the names of all error codes in an answer, outer ones first."""
    return [ErrorCode(code).name for code in _codes(answer)]


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for item in value:
            yield from _codes(item)
        return
    slots: Iterable[str] = getattr(value, "__slots__", ())
    nested = []
    for name in slots:
        found = getattr(value, name)
        if name.endswith("error_code"):
            yield found
        elif isinstance(found, list) or hasattr(found, "__slots__"):
            nested.append(found)
    for found in nested:
        yield from _codes(found)
