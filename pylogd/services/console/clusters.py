"""The clusters that the console shows: their addresses, and their samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.errors import PylogdError
from pylogd.base.threads import ThreadPool
from pylogd.client import SecurityOptions
from pylogd.client.deferred import Admin, Cluster
from pylogd.services.console.decoding import Decoder
from pylogd.services.console.groups import ZooKeeperGroups
from pylogd.services.console.mirrors import MirrorReader, Mirrors
from pylogd.services.console.sampler import ClusterSampler, Figures
from pylogd.services.console.tables import TableOptions, TableReader, TableState

if TYPE_CHECKING:
    from pylogd.services.console.audits import Audited


log = Logger()

T = TypeVar("T")


class PeriodicReads(Generic[T]):
    """Reads another service, or tables, repeatedly in the background.

    Each has its own thread, which reads it again a number of seconds after the last read has ended. So a service that
    hangs delays neither pages nor samples, and is not asked twice at the same time.

    last: the last reading; None before the first one.
    at_ms: the time of the last reading in milliseconds since 1970.
    problem: the reason why the last attempt failed, or "".
    """

    def __init__(
        self, reactor: Any, name: str, read: Callable[[], T], now_ms: Callable[[], int], interval: float,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """name: the name of the thread.
        read: called in the thread; may raise PylogdError, OSError or ValueError.
        interval: the seconds between reads.
        on_stop: ends a read in progress.
        """
        self._reactor = reactor
        self._read = read
        self._on_stop = on_stop
        self._now_ms = now_ms
        self._interval = interval
        self._pool = ThreadPool(reactor, 1, name)
        self._timer: IDelayedCall | None = None
        self._stopped = False
        self.last: T | None = None
        self.at_ms = 0
        self.problem = ""

    def start(self) -> None:
        """Read once now, and again `interval` seconds after each read has ended, until `stop`."""
        self._timer = None
        self._pool.defer(self._read).addCallbacks(self._keep, self._failed).addBoth(self._schedule)

    def stop(self) -> None:
        """Stop reading. The result of a read in progress is still kept."""
        self._stopped = True
        self._on_stop()
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._pool.stop()

    def _keep(self, found: T) -> None:
        self.last, self.at_ms, self.problem = found, self._now_ms(), ""

    def _failed(self, failure: Failure) -> None:
        if not failure.check(PylogdError, OSError, ValueError):
            log.failure("Unexpected error while a service was read", failure)
        self.problem = failure.getErrorMessage()

    def _schedule(self, _: object) -> None:
        if not self._stopped:
            self._timer = self._reactor.callLater(self._interval, self.start)


_RETRY_SECONDS: Final = 8.0
_REQUEST_SECONDS: Final = 15.0
_SLOWLY: Final = 6


class MissingExtra(PylogdError):
    """The configuration needs packages that are not installed; the message names the extra."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A cluster.

    name: the name in paths and on pages.
    registry: the URL of its schema registry; "" for none. Its settings are those of `pylogd.client.registry.access`.
    metrics: the URLs of brokers' metrics pages.
    mirrors: the URLs of metrics pages of mirrors' processes.
    audit: the URL of the audit service; "" for none.
    tables: the tables by the names that pages show.
    links: the URLs of other services, by name.
    zookeeper: the connect string of the ZooKeeper in which consumers coordinate; "" for none.
    """

    name: str
    bootstrap: str
    security: SecurityOptions | None = None
    registry: str = ""
    registry_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics: Sequence[str] = ()
    mirrors: Sequence[str] = ()
    audit: str = ""
    tables: Mapping[str, TableOptions] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    zookeeper: str = ""


class WatchedCluster:
    """A cluster with its connections and its sampler.

    mirrors, audit, tables: their readings; None if the configuration does not name them.
    """

    def __init__(self, reactor: Any, options: ClusterOptions, now_ms: Callable[[], int], interval: float) -> None:
        """`interval` is the seconds between samples, and between reads of mirrors. Raises MissingExtra, and ValueError
        for invalid settings of the registry.
        """
        self.options = options
        self._reactor = reactor
        self.cluster = Cluster(
            options.bootstrap, client_id="pylogd-console", retry_timeout=_RETRY_SECONDS, bootstrap_timeout=0.0,
            request_timeout=_REQUEST_SECONDS, security=options.security, reactor=reactor,
        )  # fmt: skip
        self.admin = Admin(self.cluster)
        self.decoder = Decoder(options.registry, options.registry_settings)
        self.mirrors: PeriodicReads[Mirrors] | None = None
        self.audit: PeriodicReads[Audited] | None = None
        self.tables: PeriodicReads[Mapping[str, TableState]] | None = None
        slowly = _SLOWLY * interval  # for data that is large and changes slowly
        if options.mirrors:
            reader = MirrorReader(options.mirrors, now_ms)
            self.mirrors = PeriodicReads(reactor, "console-mirrors", reader.read, now_ms, interval)
        if options.audit:
            self.audit = PeriodicReads(reactor, "console-audit", _audit_reader(options.audit), now_ms, slowly)
        if options.tables:
            tables = TableReader(options.tables)
            self.tables = PeriodicReads(reactor, "console-tables", tables.read, now_ms, slowly, tables.stop)
        self._pool = ThreadPool(reactor, 1, "console-plans")
        figures = Figures(reactor, options.metrics) if options.metrics else None
        registered = _zookeeper_groups(options.zookeeper, reactor) if options.zookeeper else None
        self.sampler = ClusterSampler(self.cluster, reactor, now_ms, interval, figures, registered)

    @property
    def name(self) -> str:
        """The cluster's name in the configuration, which is in the paths of its pages."""
        return self.options.name

    def seconds(self) -> float:
        """Return the time of the samples' clock."""
        return float(self._reactor.seconds())

    async def pause(self, seconds: float) -> None:
        """Return after `seconds` seconds; the reactor continues meanwhile."""
        await deferLater(self._reactor, seconds, lambda: None)

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that takes long in a thread, and return its result.

        It must not change data that the reactor's thread reads.
        """
        found: T = await self._pool.defer(function, *arguments)
        return found

    def start(self) -> None:
        """Begin to sample, and to read the services."""
        self.sampler.start()
        for reading in self._services():
            reading.start()

    def stop(self) -> None:
        """Stop sampling and reading, and close the connections."""
        for reading in self._services():
            reading.stop()
        self.sampler.stop()
        self._pool.stop()
        self.cluster.close()

    def _services(self) -> list[PeriodicReads[Any]]:
        """Return the readers of mirrors, audit and tables that are configured."""
        return [one for one in (self.mirrors, self.audit, self.tables) if one is not None]


def _zookeeper_groups(connect: str, reactor: Any) -> ZooKeeperGroups:
    """Return the reader of the groups in a ZooKeeper. Raises MissingExtra."""
    try:
        from pylogd.store.zookeeper import ZooKeeperStore  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra(f"{error}: to show its groups, pip install 'pylogd-broker[zookeeper]'") from error
    return ZooKeeperGroups(partial(ZooKeeperStore, connect, reactor))


def _audit_reader(url: str) -> Callable[[], Audited]:
    """Return the reader of an audit service. Raises MissingExtra."""
    try:
        from pylogd.services.console.audits import AuditReader  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtra(f"{error}: to show an audit, pip install 'pylogd-broker[audit]'") from error
    return AuditReader(url).read
