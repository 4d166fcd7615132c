"""The administrator's operations on client quotas, for all faces (see `operations`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pylogd.client.core.admin.calls import Calls, ask
from pylogd.client.core.admin.visibility import Probe, tells, until_shown
from pylogd.client.core.metadata import check
from pylogd.wire.messages import alter_client_quotas as alter
from pylogd.wire.messages import describe_client_quotas as describe

#: In a `QuotaEntity`: the default for all names without a quota of their own.
DEFAULT_ENTITY: Final = ""
_PARTS: Final = ("user", "client-id", "ip")
_EXACT, _DEFAULT = 0, 1


class QuotaEntity(NamedTuple):
    """The entity with a quota: a user, a client id, both together, or an IP address. None: not part of the entity."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


#: An entity without parts; every entity matches it.
ANY_ENTITY: Final = QuotaEntity()


class QuotaOperations:
    """Operations that read and change quotas."""

    _calls: Calls

    async def client_quotas(
        self, matching: QuotaEntity = ANY_ENTITY, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """Return the quotas of all entities that match `matching`, by name.

        strict: leave out entities that have further components.

        Raises KafkaError.
        """
        request = describe.DescribeClientQuotasRequest(_components(matching), strict)
        response: describe.DescribeClientQuotasResponse = await ask(self._calls, request)
        check(response.error_code, response.error_message)
        found = {}
        for entry in response.entries or ():
            names = {part.entity_type: part.entity_name or DEFAULT_ENTITY for part in entry.entity}
            entity = QuotaEntity(*(names.get(part) for part in _PARTS))
            found[entity] = {value.key: value.value for value in entry.values}
        return found

    async def alter_client_quotas(
        self, entity: QuotaEntity, changes: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set quotas of an entity by name; a value of None removes the quota. Other quotas are unchanged.

        Raises KafkaError.
        """
        parts = [
            alter.EntityData(part, name or None) for part, name in zip(_PARTS, entity, strict=True) if name is not None
        ]
        operations = [alter.OpData(name, value or 0.0, value is None) for name, value in changes.items()]
        request = alter.AlterClientQuotasRequest([alter.EntryData(parts, operations)], validate_only)
        response: alter.AlterClientQuotasResponse = await ask(self._calls, request)
        for result in response.entries:
            check(result.error_code, result.error_message)
        if not validate_only:
            await until_shown(self._calls, _quotas(entity, changes))


def _quotas(entity: QuotaEntity, changes: Mapping[str, float | None]) -> Probe:
    """Return the probe that shows changed quotas of an entity."""
    request = describe.DescribeClientQuotasRequest(_components(entity), True)

    def read(response: describe.DescribeClientQuotasResponse) -> dict[str, float] | None:
        if not tells(response.error_code):
            return None
        return {value.key: value.value for entry in response.entries or () for value in entry.values}

    def expected(found: dict[str, float]) -> bool:
        if entity.ip:  # the broker may write the address differently
            return True
        return all((value is None) == (name not in found) for name, value in changes.items())

    return Probe(describe.DescribeClientQuotasRequest, lambda _: request, read, expected)


def _components(matching: QuotaEntity) -> list[describe.ComponentData]:
    return [
        describe.ComponentData(part, _EXACT if name else _DEFAULT, name or None)
        for part, name in zip(_PARTS, matching, strict=True)
        if name is not None
    ]
