"""A console without sockets: requests in memory, and a small recorded cluster that answers at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from pylogd.base.errors import BrokerUnavailable, PylogdError, RequestTimedOut, UnsupportedByBroker
from pylogd.client.core.admin.calls import Question
from pylogd.client.core.admin.operations import Operations
from pylogd.client.core.backoff import Backoff
from pylogd.client.core.metadata import Metadata
from pylogd.services.console.clusters import ClusterOptions
from pylogd.services.console.login import Login
from pylogd.services.console.sampler import ClusterSampler
from pylogd.services.console.service import REFUSALS, ConsoleOptions, ConsoleService
from pylogd.web.bodies import BoundedSite
from pylogd.wire.messages import APIS
from tests.console.recorded import NODES, Answers, Record

PORTS = {node: 9000 + node for node in NODES}
NOW_MS = 1_800_000_000_000


class MemoryCalls:
    """`Calls` that a record answers. dead: brokers that do not answer. unknown: APIs that they do not know.

    silent: brokers that accept connections and do not answer. versions: the highest version of an API. seen: the
    requests. changes: answers to APIs that the record has none for.
    """

    request_timeout = 10.0

    def __init__(self, record: Record, clock: Clock) -> None:
        self.metadata = Metadata([("127.0.0.1", 9001)])
        self.record = record
        self.dead: set[int] = set()
        self.silent: set[int] = set()
        self.unknown: set[type[Any]] = set()
        self.versions: dict[type[Any], int] = {}
        self.seen: list[Any] = []
        self.changes: dict[type[Any], Callable[[Any], Any]] = {}
        self.brokers = {node: Answers(record, node, PORTS, clock.seconds) for node in NODES}

    async def send(self, question: Question) -> Any:
        """Answer a request, or fail as a real network does."""
        node = question.target if isinstance(question.target, int) else NODES[0]
        if question.target is None and self.silent:
            raise RequestTimedOut("no answer for as long as the client waits")
        if node in self.dead:
            raise BrokerUnavailable(f"broker {node} can't be reached")
        if question.api in self.unknown:
            raise UnsupportedByBroker("the broker does not know this")
        if question.api in self.changes:
            request = question.build(APIS[question.api.API_KEY].max_version)
            self.seen.append(request)
            return self.changes[question.api](request)
        served = self.brokers[node].served[question.api.API_KEY][1]
        request = question.build(min(self.versions.get(question.api, served), question.highest or served))
        self.seen.append(request)
        return self.brokers[node].response(request)

    async def send_all(self, questions: Sequence[Question], timeout: float | None = None) -> list[Any]:
        """Answer requests, each by its response or its error."""
        outcomes: list[Any] = []
        for question in questions:
            if question.target is None and self.silent and timeout is not None:
                self.silent.pop()  # its connection is closed, so that the next question goes to another broker
                outcomes.append(RequestTimedOut(f"no answer within {timeout} s"))
                continue
            try:
                outcomes.append(await self.send(question))
            except PylogdError as error:
                outcomes.append(error)
        return outcomes

    async def call(self, attempt: Any, timeout: float | None = None, backoff: Backoff | None = None) -> Any:
        """Try once."""
        return await attempt()


class MemoryCluster:
    """What pages need of a `WatchedCluster`."""

    def __init__(self, calls: MemoryCalls, clock: Clock, name: str = "cluster", **options: Any) -> None:
        self.options = ClusterOptions(name, "127.0.0.1:9001", **options)
        self.name = name
        self.calls = calls
        self.cluster: Any = calls
        self.admin = Operations(calls, 10.0)
        self.sampler = ClusterSampler(calls, clock, lambda: NOW_MS + int(clock.seconds() * 1000))
        self.seconds = clock.seconds
        self.mirrors: Any = None
        self.audit: Any = None
        self.tables: Any = None

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function at once."""
        return function(*arguments)


class Response(NamedTuple):
    """An answer. cookie: that it set, without its attributes."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def cookie(self) -> str:
        return self.headers.get("set-cookie", "").partition(";")[0]

    @property
    def token(self) -> str:
        """The token of the page's first form."""
        found = re.search(r'name="csrf" value="([^"]+)"', self.body)
        return found[1] if found else ""


class MemoryConsole:
    """A console on a recorded cluster. Each request has a connection of its own."""

    def __init__(
        self, *, topics: int = 40, partitions: int = 300, groups: int = 12, login: Login | None = None,
        hosts: frozenset[str] | None = None, allow_writes: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        self.clock: Any = Clock()
        self.calls = MemoryCalls(Record(topics, partitions, groups), self.clock)
        chosen = ConsoleOptions("tcp:0", allow_writes=allow_writes, hosts=hosts)
        self.service = ConsoleService(self.clock, chosen, [], login=login, now_ms=lambda: NOW_MS)
        cluster: Any = MemoryCluster(self.calls, self.clock, **options)
        self.cluster = self.service.clusters["cluster"] = cluster
        site: Any = BoundedSite(self.service.resource(), self.clock, REFUSALS)
        site.log = lambda _request: None
        self.site = site

    @property
    def sampler(self) -> ClusterSampler:
        sampler: ClusterSampler = self.cluster.sampler
        return sampler

    def sample(self, seconds: float = 10.0) -> None:
        """Let time pass, and take a sample."""
        self.clock.advance(seconds)
        number = self.sampler.last.number
        self.sampler.start()
        for _ in range(100_000):
            if self.sampler.last.number > number or self.sampler.last.error is not None:
                break
            self.clock.advance(0.001)
        self.sampler.stop()

    def send(self, data: bytes) -> Any:
        """Send bytes over a new connection; return its transport."""
        transport = StringTransport()
        channel = self.site.buildProtocol(None)
        channel.makeConnection(transport)
        channel.dataReceived(data)
        self.clock.advance(0)
        return transport

    def ask(self, path: str, form: Mapping[str, str] | None = None, **headers: str) -> Response:
        """Return the answer to a GET, or to a POST of a form. headers: with `_` for `-`."""
        body = b"" if form is None else urlencode(form).encode()
        lines = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if form is not None:
            lines |= {"content-type": "application/x-www-form-urlencoded", "content-length": str(len(body))}
        head = f"{'GET' if form is None else 'POST'} {path} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return parse(self.send(head.encode() + b"\r\n" + body).value())


def parse(data: bytes) -> Response:
    """Return the response in bytes."""
    head, _, body = data.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Response(int(first.split()[1]), headers, body)
