"""The quotas of all clients: read from the metadata, counted for each client, and turned into time to wait.

Strategy: the `QuotaTable` of each kind is made again whenever a quota changes. The use of a quota is kept in a counter,
for the entity to which the quota applies, and stays when the quota changes. While no quota is set `active` is false,
and nothing is counted.

Rules: a client over its quota is told how long to wait, and never refused; only changes of topics may be refused
(KIP-599). A client that names no client id has the empty one, which only the default quotas match. Counters with empty
windows are dropped, so a client that invents client ids costs memory only for as long as the windows last. Client ids
are told apart by their first `LONGEST_ID` characters.

Must not know: requests, connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from twisted.logger import Logger

from pylogd.base.limits.admission import AdmissionRate
from pylogd.broker.metadata.entity_configs import Entity, EntityConfigs
from pylogd.broker.quotas.limits import KINDS, QuotaKind, QuotaTable, read_limit
from pylogd.broker.quotas.rates import PacedRate, TokenBucket, WindowedRate, Windows
from pylogd.config import Settings
from pylogd.config.values import LONG_MAX

log = Logger()

#: If there are more counters, those that can be dropped are searched; the next search is at twice the remaining number.
_SWEEP_AT: Final = 1000
#: Only this many characters of a client id count. The protocol allows 32 KB, and a client may send another id each
#: time.
LONGEST_ID: Final = 255

Counter = AdmissionRate | WindowedRate | TokenBucket


class Usage(NamedTuple):
    """An entity's use of a quota, in the unit of the quota; for `request_percentage` in percent of a second.

    used: the use since the entity was last idle.
    limit: the use allowed per second.
    """

    kind: QuotaKind
    entity: Entity
    used: float
    limit: float


class _Quotas:
    """The quotas of one kind, and their use by clients."""

    __slots__ = ("_found", "_new", "_sweep_at", "counters", "table")

    def __init__(self, new: Callable[[], Counter]) -> None:
        self._new = new
        self._found: dict[tuple[str, str], tuple[Counter, float] | None] = {}
        self._sweep_at = _SWEEP_AT
        self.table = QuotaTable()
        self.counters: dict[Entity, Counter] = {}

    def replace(self, table: QuotaTable) -> None:
        self.table = table
        self._found.clear()
        if not table:
            self.counters.clear()

    def find(self, user: str, client_id: str, now: float) -> tuple[Counter, float] | None:
        """Return the counter of a client and its quota; None for a client without a limit."""
        key = user, client_id
        try:
            return self._found[key]
        except KeyError:
            pass
        if len(client_id) > LONGEST_ID:
            return self.find(user, client_id[:LONGEST_ID], now)
        if len(self._found) >= self._sweep_at:
            self._sweep(now)
        found = self.table.find(user, client_id)
        if found is None:
            self._found[key] = None
            return None
        entity, limit = found
        self._found[key] = result = self.counter(entity, now), limit
        return result

    def counter(self, entity: Entity, now: float) -> Counter:
        """Return the counter of an entity."""
        counter = self.counters.get(entity)
        if counter is None:
            if len(self.counters) >= self._sweep_at:
                self._sweep(now)
            counter = self.counters[entity] = self._new()
        return counter

    def usage(self, kind: QuotaKind) -> Iterator[Usage]:
        """Yield the use of each entity that has a quota now."""
        for entity, counter in self.counters.items():
            limit = self.table.limit_of(entity)
            if limit is not None:
                yield Usage(kind, entity, counter.used, limit)

    def _sweep(self, now: float) -> None:
        self.counters = {entity: counter for entity, counter in self.counters.items() if not counter.idle(now)}
        self._found.clear()
        self._sweep_at = max(2 * len(self.counters), _SWEEP_AT)


class ClientQuotas:
    """The quotas of clients, and their use.

    active: whether any quota is set, except those of IP addresses. Check it before counting anything.
    times_requests: whether any quota of request time is set.
    handled: for how many seconds handlers have worked since then.
    seconds: the monotonic clock that measures the rates.
    """

    def __init__(self, configs: EntityConfigs, settings: Settings, seconds: Callable[[], float]) -> None:
        integer = settings.integer
        self.seconds = seconds
        self.active = self.times_requests = False
        self.handled = 0.0
        self._configs = configs
        self._windows = Windows(integer("quota.window.num"), integer("quota.window.size.seconds"))
        changes = Windows(integer("controller.quota.window.num"), integer("controller.quota.window.size.seconds"))
        self._per_client_id = {
            QuotaKind.PRODUCE: _limit(integer("quota.producer.default")),
            QuotaKind.FETCH: _limit(integer("quota.consumer.default")),
        }
        self._kinds = {kind: _Quotas(partial(PacedRate, self._windows)) for kind in QuotaKind}
        self._kinds[QuotaKind.REQUEST] = _Quotas(partial(WindowedRate, self._windows))
        self._kinds[QuotaKind.CONNECTION] = _Quotas(partial(AdmissionRate, self._windows.seconds))
        self._kinds[QuotaKind.MUTATION] = _Quotas(partial(TokenBucket, changes))
        self._listeners: list[Callable[[bool], object]] = []
        configs.subscribe(self._changed)
        self._changed(())

    def subscribe(self, listener: Callable[[bool], object]) -> None:
        """Call `listener` with `active` whenever `active` or `times_requests` changes."""
        self._listeners.append(listener)

    def charge(self, kind: QuotaKind, user: str, client_id: str | None, amount: float) -> float:
        """Count a client's use. Return for how many seconds it has to wait; 0 if it is within its quota.

        amount: bytes; for requests, how many percent of a second the broker's processor worked on one.
        """
        quotas = self._kinds[kind]
        if not quotas.table:
            return 0.0
        now = self.seconds()
        found = quotas.find(user, client_id or "", now)
        if found is None:
            return 0.0
        counter, limit = found
        assert isinstance(counter, WindowedRate)
        counter.record(amount, now)
        owed = counter.owed(limit, now)
        return min(owed, self._windows.seconds) if kind is QuotaKind.REQUEST else owed

    def most_at_once(self, kind: QuotaKind, user: str, client_id: str | None) -> float | None:
        """Return how much an idle client can use at once without having to wait; None if it has no limit."""
        quotas = self._kinds[kind]
        found = quotas.find(user, client_id or "", self.seconds()) if quotas.table else None
        return None if found is None else found[1] * self._windows.seconds

    def change_topics(self, user: str, client_id: str | None, partitions: int, *, strict: bool) -> tuple[bool, float]:
        """Count partitions that a client wants to create or delete.

        strict: whether a client over its quota is refused, and others need not wait. If not, no client is refused, and
            one over its quota has to wait.

        Return whether the client may do it, and for how many seconds it has to wait.
        """
        quotas = self._kinds[QuotaKind.MUTATION]
        now = self.seconds()
        found = quotas.find(user, client_id or "", now) if quotas.table else None
        if found is None:
            return True, 0.0
        bucket, limit = found
        assert isinstance(bucket, TokenBucket)
        owed = bucket.owed(limit, now)
        if strict and owed > 0:
            return False, owed
        bucket.take(partitions, limit, now)
        return True, 0.0 if strict else bucket.owed(limit, now)

    def connection_rate(self, ip: str) -> float | None:
        """Return how many connections a second an IP address may open; None if it has no limit (KIP-612)."""
        table = self._kinds[QuotaKind.CONNECTION].table
        return table.of_address(ip) if table else None

    def admit_connection(self, ip: str) -> bool:
        """Count a new connection of an IP address, and return True; False if its rate would exceed the quota."""
        limit = self.connection_rate(ip)
        if limit is None:
            return True
        now = self.seconds()
        counter = self._kinds[QuotaKind.CONNECTION].counter(Entity(ip=ip), now)
        assert isinstance(counter, AdmissionRate)
        return counter.admit(limit, now)

    def usage(self, most: int) -> Iterator[Usage]:
        """Yield the use of quotas by entities. For each kind these are `most` of the entities that used it recently."""
        for kind, quotas in self._kinds.items():
            yield from islice(quotas.usage(kind), most)

    def counted(self) -> dict[QuotaKind, int]:
        """Return the number of entities with a counter, for each kind of which any quota is set."""
        return {kind: len(quotas.counters) for kind, quotas in self._kinds.items() if quotas.table}

    def _changed(self, _: Iterable[Entity]) -> None:
        """Rebuild the tables."""
        tables = {kind: QuotaTable(per_client_id=self._per_client_id.get(kind)) for kind in QuotaKind}
        for entity, configs in self._configs.configs.items():
            for name, text in configs.items():
                kind = KINDS.get(name)
                if kind is None or kind.of_address != (entity.ip is not None):
                    continue
                limit = read_limit(text)
                if limit is None:
                    log.warn("Ignoring the quota {name} of {entity}: {text} is not a number greater than 0",
                             name=name, entity=describe(entity), text=text[:100])  # fmt: skip
                else:
                    tables[kind].limits[entity] = limit
        for kind, table in tables.items():
            if table != self._kinds[kind].table:
                self._kinds[kind].replace(table)
        active = any(table for kind, table in tables.items() if not kind.of_address)
        times_requests = bool(tables[QuotaKind.REQUEST])
        if (active, times_requests) != (self.active, self.times_requests):
            self.active, self.times_requests = active, times_requests
            for listener in self._listeners:
                listener(active)


def describe(entity: Entity) -> str:
    """Return an entity as text for people: `user ann, client id app`."""
    names = (("user", entity.user), ("client id", entity.client_id), ("IP address", entity.ip))
    return ", ".join(f"{what} {name or '<default>'}" for what, name in names if name is not None)


def _limit(setting: int) -> float | None:
    return None if setting == LONG_MAX else float(setting)
