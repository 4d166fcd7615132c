"""The committed offsets of groups, compared with the ends of the logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pylogd.client.core.model import GroupsDescribed, OffsetAndMetadata


def lag_of(found: GroupsDescribed, name: str) -> list[dict[str, Any]]:
    """Return a record for each partition that has a member of the group or a committed offset.

    The end and the lag of a log that was deleted, or whose leader does not answer, are None.
    """
    committed = found.offsets.get(name, {})
    owners = {partition: member for member in found.groups[name].members for partition in member.assignment}
    rows = []
    for partition in sorted({*owners, *committed}):
        at, end, owner = committed.get(partition), found.ends.get(partition), owners.get(partition)
        rows.append({
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": None if at is None else at.offset,
            "end": end,
            "lag": _lag(at, end),
            "member": None if owner is None else owner.member_id,
            "client": None if owner is None else owner.client_id,
            "host": None if owner is None else owner.host,
        })  # fmt: skip
    return rows


def total_lag(rows: Iterable[Mapping[str, Any]]) -> tuple[int | None, int]:
    """Return the sum of the lags that are known, and the number of partitions whose lag is not.

    rows: from `lag_of`. The sum is None if there are partitions, and no lag is known.
    """
    lags = [row["lag"] for row in rows]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known or not lags else None, len(lags) - len(known)


def _lag(committed: OffsetAndMetadata | None, end: int | None) -> int | None:
    return None if committed is None or end is None else max(0, end - committed.offset)
