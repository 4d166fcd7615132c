"""Find out whether a mirror's process could carry out its file, without changing anything.

Strategy: everything that a process opens is opened, by the same functions: the metadata store, the clusters at both
ends of each route, tables, registries of schemas. Each place is checked separately, so that one run names all faults.

This does not find out whether topics can be created at a target and written to, and whether files can be written in
stores that do not tell it in advance.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from pylogd.base.errors import AuthenticationFailed, BrokerUnavailable, KafkaError, PylogdError, TlsFailed
from pylogd.client.core.model import Topic, TopicPartition
from pylogd.client.deferred import Admin, Consumer
from pylogd.client.deferred.cluster import Cluster
from pylogd.client.registry.api_client import SchemaRegistryError
from pylogd.config.zookeeper import parse_connect
from pylogd.lake.tables.opening import check_directory, probe_table
from pylogd.services.mirror.errors import MirrorError
from pylogd.services.mirror.service import open_store
from pylogd.services.mirror.settings import MirrorSettings, RouteSettings, SchemaSettings, TableSettings
from pylogd.services.mirror.starting import describe_topics
from pylogd.services.mirror.tables import CheckpointTable
from pylogd.store.errors import StoreError

#: The seconds within which a place must answer. Libraries of object stores try for minutes.
_PATIENCE_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 8.0
_POLL_SECONDS: Final = 0.2
#: Advice by the kind of error; the first entry that fits is used.
_ADVICE: Final[tuple[tuple[type[PylogdError], str], ...]] = (
    (TlsFailed, "Compare security.protocol and ssl.* with the listener, and see that the files can be read"),
    (AuthenticationFailed, "Compare sasl.* with what the cluster knows of the user"),
    (BrokerUnavailable, "Start the cluster, or correct bootstrap.servers"),
    (KafkaError, "The section Permissions of docs/mirror.md has what the mirror's user may need"),
    (StoreError, "Start it, or correct zookeeper.connect"),
    (SchemaRegistryError, "Start the registry, or correct schema.registry.*"),
)
#: Matches colour codes in messages of libraries.
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


class Fault(NamedTuple):
    """A fault.

    where: the part of the file, such as `[cluster.logs]`.
    what: the reason why it can't be used, and advice.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Check:
    """One check of a mirror.

    faults: the faults that were found so far.
    """

    def __init__(self, settings: MirrorSettings, reactor: Any, *, patience: float = _PATIENCE_SECONDS) -> None:
        """`patience` is the number of seconds within which a place must answer."""
        self.faults: list[Fault] = []
        self._settings = settings
        self._reactor = reactor
        self._patience = patience
        #: the topics of each source that has answered, by the source's name
        self._topics: dict[str, Mapping[str, Topic]] = {}

    async def run(self) -> list[Fault]:
        """Check everything, and return the faults."""
        await self._at("the metadata store", self._store)
        routes = self._settings.routes.values()
        for name in self._settings.clusters:
            read = [route for route in routes if route.source == name]
            written = any(route.target == name for route in routes)
            if read or written:
                await self._at(f"[cluster.{name}]", self._cluster, name, read, written)
        for name, table in self._settings.tables.items():
            await self._at(f"[table.{name}]", self._table, table)
        return self.faults

    async def _at(self, where: str, look: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Check a place, and record its faults."""

        async def looking() -> None:
            await look(*arguments)

        late = f"no answer within {self._patience:g} s: see whether it runs, and can be reached from here"
        done: Deferred[None] = Deferred.fromCoroutine(looking())
        done.addTimeout(self._patience, self._reactor, lambda result, _: _late(result, late))
        try:
            await done
        except PylogdError as error:
            self.faults.append(Fault(where, _advised(error)))
        except (OSError, ValueError, ImportError) as error:  # from files of TLS, or Kerberos' library
            self.faults.append(Fault(where, _line(error)))

    # The metadata store

    async def _store(self) -> None:
        settings = self._settings
        if not settings.zookeeper:
            check_directory(Path(settings.store_path).resolve())
            return
        hosts, chroot = parse_connect(settings.zookeeper)
        store = open_store(replace(settings, zookeeper=hosts), self._reactor)  # with a chroot, opening makes it
        await store.start()
        try:
            await store.exists(chroot or "/")
        finally:
            await store.close()

    # Clusters

    async def _cluster(self, name: str, read: list[RouteSettings], written: bool) -> None:
        cluster = Cluster(
            self._settings.clusters[name].bootstrap, self._settings.options_of(name), retry_timeout=_RETRY_SECONDS,
            bootstrap_timeout=0.0, reactor=self._reactor,
        )  # fmt: skip
        try:
            topics, errors = await describe_topics(cluster, None)
            self._topics[name] = topics
            for route in read:
                await self._readable(cluster, name, route, errors)
            if written:
                await self._written(cluster)
        finally:
            cluster.close()

    async def _readable(
        self, cluster: Cluster, name: str, route: RouteSettings, errors: Mapping[str, KafkaError]
    ) -> None:
        """Check that a route can read one partition of each of its topics."""
        for topic in route.patterns.select(errors):
            self.faults.append(Fault(f"[cluster.{name}]", _advised(errors[topic])))
        chosen = route.patterns.select(self._topics[name])
        if not chosen:
            return
        consumer = Consumer(cluster, auto_commit="off", auto_offset_reset="latest", max_poll_records=1)
        try:
            await consumer.assign([TopicPartition(topic, 0) for topic in chosen])
            await consumer.poll(_POLL_SECONDS)
        finally:
            await consumer.close()

    async def _written(self, cluster: Cluster) -> None:
        """Check that the mirror's checkpoints can be read at a target, and that it has brokers for its topics."""
        checkpoints = CheckpointTable(cluster)
        try:
            await Admin(cluster).describe_cluster()
            await checkpoints.refresh()
        finally:
            await checkpoints.close()

    # Tables

    async def _table(self, table: TableSettings) -> None:
        await self._thread(probe_table, table.location, table.layout, table.properties)
        if table.schemas is not None:
            routes = [route for route in self._settings.routes.values() if route.target == table.name]
            topics = {
                route.target_name(topic)
                for route in routes
                for topic in route.patterns.select(self._topics.get(route.source, {}))
            }
            await self._thread(_check_subjects, table.schemas, sorted(topics))

    async def _thread(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in a thread, which does not delay the end of the process if it hangs."""
        done: Deferred[None] = Deferred()

        def call() -> None:
            try:
                function(*arguments)
            except BaseException:
                self._reactor.callFromThread(done.errback, Failure())
            else:
                self._reactor.callFromThread(done.callback, None)

        threading.Thread(target=call, name="mirror-check", daemon=True).start()
        try:
            await done
        except (PylogdError, CancelledError):
            raise
        except Exception as error:  # errors of the libraries of tables
            raise MirrorError(f"{type(error).__name__}: {error}") from error


def _check_subjects(schemas: SchemaSettings, topics: list[str]) -> None:
    """Check that the registry answers, and has a subject for each topic. Raises PylogdError."""
    from pylogd.lake.typed.errors import NoSchema  # noqa: PLC0415 - an extra
    from pylogd.lake.typed.rows import SchemaSource  # noqa: PLC0415 - an extra

    source = SchemaSource.at(schemas.url, schemas.properties, schemas.subject, schemas.message)
    lookup = source.registry.lookup()
    for subject in sorted({source.subject_of(topic) for topic in topics or [""]}):
        if not lookup.versions(subject) and (topics or schemas.subject):
            raise NoSchema(f"the registry has no subject {subject!r}: register a schema, or name another subject")


def _advised(error: PylogdError) -> str:
    """Return an error's text, with advice unless the text has it."""
    text = _line(error)
    advice = next((advice for kind, advice in _ADVICE if isinstance(error, kind)), "")
    return f"{text.rstrip('.')}. {advice}" if advice else text


def _line(error: Exception) -> str:
    """Return the text of an error as one line without colours."""
    return " ".join(_COLOURS.sub("", str(error)).split()) or type(error).__name__


def _late(result: object, text: str) -> None:
    raise MirrorError(text)
