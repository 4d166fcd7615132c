"""Open the stages that are named on the command line.

    NAME=cluster:HOST:PORT[,...][,via=mirror|,group=GROUP|,settle=SECONDS][,from=STAGE][,config=FILE]
    NAME=table:LOCATION[,from=STAGE][,markers=true]

Must not know: the command line's library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import Deferred

from pylogd.base.errors import PylogdError
from pylogd.client.core.security import SecurityOptions
from pylogd.client.deferred import Admin, Cluster
from pylogd.client.properties import parse_properties, security_from
from pylogd.lake.tables import opening as tables
from pylogd.lake.tables.opening import parse_table
from pylogd.services.audit.ledger import Ledger
from pylogd.services.audit.service import MakeStage
from pylogd.services.audit.stages import CommittedOffsets, Stage
from pylogd.services.audit.tables import ReadableTable, TableStage
from pylogd.services.audit.topics import GroupOffsets, Since, TopicStage
from pylogd.services.audit.windows import StageSpec
from pylogd.services.mirror.tables import CheckpointTable


class MirrorOffsets:
    """Read the progress of `pylogd mirror` from its checkpoints at the target cluster, for topics that keep their
    names.

    A checkpoint is made when the target has acknowledged everything before it, so the audit need not wait any longer.
    """

    def __init__(self, source: Admin, target: Cluster) -> None:
        """Pass clients of the source and of the target, which has the checkpoints."""
        self._source = source
        self._target = target
        self._table = CheckpointTable(target)
        self._cluster: str | None = None

    def committed(self, topics: Collection[str]) -> Deferred[Mapping[tuple[str, int], int]]:
        """Return a Deferred of the offsets of the checkpoints."""
        return Deferred.fromCoroutine(self._look_up(topics))

    async def _look_up(self, topics: Collection[str]) -> Mapping[tuple[str, int], int]:
        if self._cluster is None:
            self._cluster = (await self._source.describe_cluster()).cluster_id
        await self._table.refresh()
        return {
            (each.topic, each.partition): checkpoint.offset
            for each, checkpoint in self._table.checkpoints.items()
            if each.cluster == self._cluster and each.topic in topics and each.target_topic == each.topic
        }


#: The first stage: the cluster with the audit topic.
SERVING: Final = "serving"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_KEYS: Final = {"cluster": {"via", "group", "settle", "from", "config"}, "table": {"from", "markers"}}
_SETTLE_SECONDS: Final = 60.0
_MIRROR: Final = "mirror"


class InvalidStage(PylogdError):
    """The description of a stage is invalid."""


@dataclass(frozen=True, slots=True)
class StageDescription:
    """A stage in the form of the command line.

    kind: "cluster" or "table".
    where: addresses, or a table's location.
    """

    name: str
    kind: str
    where: str
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StageDescription:
        """Return the stage that a text describes. Raises InvalidStage."""
        name, _, rest = text.partition("=")
        kind, _, where = rest.partition(":")
        if not _NAME.fullmatch(name) or kind not in _KEYS or not where:
            raise InvalidStage(f"{text!r} is neither NAME=cluster:HOST:PORT nor NAME=table:LOCATION")
        parts = where.split(",")
        count = len(parts)
        while count > 1 and "=" in parts[count - 1]:
            count -= 1
        settings = dict(part.split("=", 1) for part in parts[count:])
        if unknown := settings.keys() - _KEYS[kind]:
            raise InvalidStage(f"{text!r}: a {kind} has no {', '.join(sorted(unknown))}, only {sorted(_KEYS[kind])}")
        return cls(name, kind, ",".join(parts[:count]), settings)

    @property
    def spec(self) -> StageSpec:
        """The settings of the stage for the ledger. Raises InvalidStage."""
        source = self.settings.get("from", SERVING)
        if (markers := self.settings.get("markers", "false")) not in ("true", "false"):
            raise InvalidStage(f"{self.name}: markers={markers} is neither true nor false")
        if self.kind == "table":
            return StageSpec(self.name, source, has_offsets=False)
        try:
            settle = float(self.settings.get("settle", _SETTLE_SECONDS))
        except ValueError:
            raise InvalidStage(f"{self.name}: settle={self.settings['settle']} is not a number of seconds") from None
        if (via := self.settings.get("via", _MIRROR)) != _MIRROR:
            raise InvalidStage(f"{self.name}: via={via} is unknown; it may be {_MIRROR}, for `pylogd mirror`")
        is_told = {"via", "group"} & self.settings.keys()
        return StageSpec(self.name, source, settle_ms=None if is_told else round(settle * 1000))


def check_stages(descriptions: Sequence[StageDescription]) -> None:
    """Check that each stage has a unique name and an earlier source. Raises InvalidStage."""
    kinds = {SERVING: "cluster"}
    for each in descriptions:
        if each.name in kinds:
            raise InvalidStage(f"there are two stages named {each.name}")
        if kinds.get(each.spec.source) != "cluster":
            raise InvalidStage(f"{each.name}: there is no cluster named {each.spec.source} before it to come from")
        kinds[each.name] = each.kind


def make_stage(
    reactor: Any, description: StageDescription, admin: Callable[[], Admin], security: SecurityOptions | None,
    now_ms: Callable[[], int], look_seconds: float,
) -> MakeStage:  # fmt: skip
    """Return the function that makes a stage for a ledger.

    admin: returns a client of the cluster from which the stage is fed.
    security: the security of connections, unless the description names a file.
    look_seconds: the seconds between two reads of a table.

    Raises InvalidStage for a file that can't be used.
    """
    where, spec = description.where, description.spec
    config = description.settings.get("config")
    own = security if config is None else _read_security(description.name, config)  # here: `make` runs on the reactor

    def make(ledger: Ledger, since: Since) -> Stage:
        if description.kind == "table":
            return TableStage(
                reactor, spec, lambda: open_table(where), ledger, since, now_ms, interval=look_seconds,
                has_markers=description.settings.get("markers") == "true",
            )  # fmt: skip
        group = description.settings.get("group")
        committed: CommittedOffsets | None = None
        if group is not None:
            committed = GroupOffsets(admin(), group)
        elif "via" in description.settings:
            committed = MirrorOffsets(admin(), Cluster(where, reactor=reactor, security=own, client_id="pylogd-audit"))
        return TopicStage(reactor, spec, where, ledger, since, now_ms, security=own, committed=committed)

    return make


def _read_security(stage: str, path: str) -> SecurityOptions | None:
    try:
        return security_from(parse_properties(Path(path).read_text("utf-8")))
    except OSError as error:
        raise InvalidStage(f"{stage}: config={path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidStage(f"{stage}: config={path}: {error}") from error


def open_table(name: str) -> ReadableTable:
    """Open a table to read it. Raises TableError.

    name: the directory of a Parquet lake; `iceberg:` and the name of a table; or `delta:` and a directory, as for
    `pylogd load`.

    Iceberg's catalog is configured in pyiceberg's file or environment.
    """
    kind, rest = parse_table(name)
    from pylogd.services.audit.lakes import LakeReader  # noqa: PLC0415 - pyarrow: an audit of clusters starts without it

    return LakeReader(rest) if kind == "parquet" else tables.open_table(name)
