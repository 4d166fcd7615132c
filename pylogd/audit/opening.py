"""Open the stages that are named on the command line.

    NAME=cluster:HOST:PORT[,...][,group=GROUP][,settle=SECONDS][,from=STAGE][,config=FILE]
    NAME=table:LOCATION[,from=STAGE]

Must not know: the command line's library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pylogd.audit.ledger import Ledger
from pylogd.audit.marker_files import open_location
from pylogd.audit.service import MakeStage
from pylogd.audit.stages import Stage
from pylogd.audit.tables import TableStage
from pylogd.audit.topics import GroupOffsets, Since, TopicStage
from pylogd.audit.windows import StageSpec
from pylogd.client.core.security import SecurityOptions
from pylogd.client.deferred import Admin
from pylogd.client.properties import parse_properties, security_from
from pylogd.errors import PylogdError
from pylogd.tables.errors import TableError
from pylogd.tables.parquet.table import LakeTable

if TYPE_CHECKING:
    from pylogd.tables.interface import Table

#: The first stage: the cluster with the audit topic.
SERVING: Final = "serving"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_KEYS: Final = {"cluster": {"group", "settle", "from", "config"}, "table": {"from"}}
_SETTLE_SECONDS: Final = 60.0


class InvalidStage(PylogdError):
    """The description of a stage that makes no sense."""


@dataclass(frozen=True, slots=True)
class StageDescription:
    """A stage as it was named. kind: "cluster" or "table". where: addresses, or a table's location."""

    name: str
    kind: str
    where: str
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StageDescription:
        """Return what a text describes. Raises InvalidStage."""
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
        """What the ledger has to know. Raises InvalidStage."""
        source = self.settings.get("from", SERVING)
        if self.kind == "table":
            return StageSpec(self.name, source, has_offsets=False)
        try:
            settle = float(self.settings.get("settle", _SETTLE_SECONDS))
        except ValueError:
            raise InvalidStage(f"{self.name}: settle={self.settings['settle']} is no number of seconds") from None
        return StageSpec(self.name, source, settle_ms=None if "group" in self.settings else round(settle * 1000))


def check_stages(descriptions: Sequence[StageDescription]) -> None:
    """Check that each stage has a name of its own and a source before it. Raises InvalidStage."""
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

    admin: returns a client of the cluster that the stage comes from. security: of connections, unless the description
    names a file. look_seconds: how often to look at a table.
    """
    where, spec = description.where, description.spec

    def make(ledger: Ledger, since: Since) -> Stage:
        if description.kind == "table":
            return TableStage(
                reactor, spec, lambda: open_table(where), ledger, since, now_ms, interval=look_seconds
            )  # fmt: skip
        config = description.settings.get("config")
        own = security if config is None else security_from(parse_properties(Path(config).read_text("utf-8")))
        group = description.settings.get("group")
        committed = None if group is None else GroupOffsets(admin(), group)
        return TopicStage(reactor, spec, where, ledger, since, now_ms, security=own, committed=committed)

    return make


def open_table(location: str) -> Table:
    """Open a table to read it. Raises TableError."""
    return LakeTable(_ReadOnlyFiles(location))


class _ReadOnlyFiles:
    """A lake's files as `tables.parquet.table.SparkFiles`, of which nothing is changed."""

    threads = 1

    def __init__(self, location: str) -> None:
        try:
            self._files, self._root = open_location(location)
        except PylogdError as error:
            raise TableError(str(error)) from error
        self._prefix = location.rstrip("/") if "://" in location else self._root

    @property
    def root(self) -> str:
        """The lake's directory."""
        return self._prefix

    def path(self, relative: str) -> str:
        """Return the absolute path of a path in the lake."""
        return f"{self._prefix}/{relative}"

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - slow to load

        found = self._files.get_file_info(FileSelector(f"{self._root}/{directory}", allow_not_found=True))
        return sorted(each.base_name for each in found)

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        with self._files.open_input_file(f"{self._root}/{path}") as stream:
            return bytes(stream.read())

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        from pyarrow.fs import FileType  # noqa: PLC0415 - slow to load

        return self._files.get_file_info(f"{self._root}/{path}").type is not FileType.NotFound

    def create(self, path: str, data: bytes) -> bool:
        """Do nothing, as if another process had made the file."""
        return False

    def move(self, source: str, target: str) -> bool:
        """Do nothing: the loader, or the next one, moves its files."""
        return True

    def delete(self, path: str) -> None:
        """Do nothing."""

    def data_files(self, directory: str) -> list[tuple[str, int]]:
        """Return nothing: no file is written here."""
        return []

    def parquet_rows(self, path: str) -> int:
        """Raise: no file is written here."""
        raise TableError(f"{path} is only read")

    def has_strings(self, path: str, column: str) -> bool:
        """Raise: no file is written here."""
        raise TableError(f"{path} is only read")
