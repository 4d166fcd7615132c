"""Run the console: sample the clusters, and serve the pages until it is stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twisted.internet import defer

from pylogd.base.clock import wall_ms
from pylogd.services.console.actions import all_actions
from pylogd.services.console.actions.steps import ActionLog, ActionPages
from pylogd.services.console.clusters import ClusterOptions, WatchedCluster
from pylogd.services.console.login import Login
from pylogd.services.console.masking import Masking, MaskingRule
from pylogd.services.console.pages.access import Access
from pylogd.services.console.pages.administration import Administration
from pylogd.services.console.pages.brokers import Brokers
from pylogd.services.console.pages.groups import Groups
from pylogd.services.console.pages.messages import MessagePages
from pylogd.services.console.pages.overview import EventStreams, Overview
from pylogd.services.console.pages.services import ServicePages
from pylogd.services.console.pages.topics import Topics
from pylogd.services.console.reading import Messages
from pylogd.services.console.sessions import Sessions
from pylogd.services.console.tailing import Tails
from pylogd.services.console.view import View, load_static_files
from pylogd.services.console.web import ConsoleResource
from pylogd.web.bodies import BoundedServer, RefusalForm


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The options of the console.

    listen: a Twisted server endpoint.
    interval: the seconds between samples.
    secure: whether browsers use TLS, to the console or to a proxy in front of it.
    hosts: the host names of the console; None for any.
    masking: the rules for values.
    action_log: the file with a line for each action; None for no file.
    """

    listen: str
    interval: float = 10.0
    allow_writes: bool = False
    secure: bool = False
    hosts: Collection[str] | None = None
    masking: Sequence[MaskingRule] = ()
    action_log: Path | None = None


def _refusal(status: int, message: str) -> bytes:
    """Return the document that refuses a request because of its body."""
    return json.dumps({"error_code": 50301 if status == 503 else status, "message": message}).encode()


#: The form of refusals is that of a schema registry: clients of the console have got it from the beginning.
REFUSALS: Final = RefusalForm(b"application/vnd.schemaregistry.v1+json", _refusal)


class ConsoleService:
    """Starts and stops samplers and the HTTP server in order."""

    def __init__(
        self,
        reactor: Any,
        options: ConsoleOptions,
        clusters: Sequence[ClusterOptions],
        *,
        login: Login | None = None,
        tls: Any = None,
        provider: Any = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Nothing is started yet.

        login: identifies users; None if everybody may use the console.
        tls: a `pylogd.web.tls.ReloadedTls`; None for plain HTTP.

        provider: an `oidc.Provider`; None without one.
        """
        self._reactor = reactor
        self._options = options
        self._login = Login(reactor) if login is None else login
        self._tls = tls
        self._provider = provider
        self._openid: Any = None
        self._administered: Administration | None = None
        self.clusters = {
            one.name: WatchedCluster(reactor, one, now_ms, options.interval) for one in clusters
        }  # in the order of the configuration
        self._events = EventStreams(reactor)
        self._masking = Masking(options.masking)
        self._messages = Messages(reactor, self._masking, now_ms)
        self._actions = ActionLog(reactor, options.action_log, now_ms)
        self._tails = Tails(reactor, self._messages)
        self._server = BoundedServer(reactor, options.listen, tls, REFUSALS)

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) once it listens."""
        return self._server.address

    def describe(self) -> str:
        """Return the line that announces the start, with the URL of the console. Call it once the port is open."""
        scheme = "https" if self._tls is not None else "http"
        host, port = self.address
        return f"pylogd console answers on {scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def start(self) -> defer.Deferred[None]:
        """Start. The Deferred fires once the port is open, whether or not clusters have answered."""
        return defer.Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        await self._login.start()
        self._server.site.resource = self.resource()
        await self._server.start()
        self._events.start()
        for cluster in self.clusters.values():
            cluster.start()

    def resource(self) -> ConsoleResource:
        """Return the HTTP resource that answers all paths."""
        options = self._options
        view = View(
            self.clusters, load_static_files(), allow_writes=options.allow_writes, login_needed=self._login.needed
        )
        root = ConsoleResource(
            view, Sessions(self._reactor.seconds), self._login, allow_writes=options.allow_writes,
            secure=options.secure or self._tls is not None, hosts=options.hosts,
        )  # fmt: skip
        self._administered = Administration(self._reactor, view)
        access = Access(view, self._login, root.log_in, root.log_out)
        if self._provider is not None:
            from pylogd.services.console.oidc import OpenIdLogin  # noqa: PLC0415 - needs joserfc, an extra

            self._openid = OpenIdLogin(self._reactor, self._provider, root.log_in)
            root.add(self._openid.routes())
        parts = (
            access, Overview(view, self._events), Topics(view), Groups(view), Brokers(view),
            MessagePages(view, self._messages, self._tails), self._administered, ServicePages(view),
            ActionPages(view, self._actions, all_actions(self._messages, self._masking)),
        )  # fmt: skip
        for part in parts:
            root.add(part.routes())
        return root

    def stop(self) -> defer.Deferred[None]:
        """Stop. The Deferred fires once the port and all connections are closed."""
        return defer.Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._server.stop()
        self._events.stop()
        self._tails.stop()
        self._messages.stop()
        self._actions.stop()
        if self._administered is not None:
            self._administered.stop()
        for cluster in self.clusters.values():
            cluster.stop()
        if self._openid is not None:
            self._openid.stop()
        self._login.stop()
