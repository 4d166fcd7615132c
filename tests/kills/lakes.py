"""The lake of a round, as the harness sees it: on local disks, or on an S3 server in the harness's process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import s3fs  # type: ignore[import-untyped]

from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.parquet.attempts import Claim, claim_path
from pylogd.lake.tables.parquet.files import COMMITS, DRAFTS, STAGING, Files, numbered, numbers
from pylogd.lake.tables.parquet.local import LocalFiles
from pylogd.lake.tables.parquet.remote import FsspecFiles
from tests.fakes import s3
from tests.fakes.s3 import S3Server


@dataclass(frozen=True, slots=True)
class RoundLake:
    """A lake. url: as the loader names it. below: returns all files below a directory.

    exact: whether no other data files may be there than those of commits. An object store may have others: copies that
    a process made that was overtaken in the middle of a move. settings: of the loader's Spark. look_seconds: how often
    a harness may look at it without slowing down those that use it.
    """

    url: str
    files: Files
    below: Callable[[str], list[str]]
    exact: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    look_seconds: float = 0.002

    def commits(self, suffix: str = ".json") -> int:
        """Return the number of commits that have a file with this suffix."""
        return len(numbers(self.files.names(COMMITS), suffix))

    def is_staging(self) -> bool:
        """Return whether data files are being staged."""
        return any(path.endswith(".parquet") for path in self.below(STAGING))

    def stages_for(self, *, compaction: bool) -> bool:
        """Return whether data files of a compaction, or of a load, are being staged."""
        attempts = {
            path.split("/")[STAGING.count("/") + 1] for path in self.below(STAGING) if path.endswith(".parquet")
        }
        return any(self._compacts(name) is compaction for name in attempts)

    def _compacts(self, attempt: str) -> bool | None:
        """Return whether an attempt is a compaction's; None if it has ended meanwhile."""
        try:
            return bool(Claim.from_bytes(attempt, self.files.read(claim_path(attempt))).replaces)
        except (FileNotFoundError, TableError):
            return None

    def is_applying(self) -> bool:
        """Return whether a commit was decided whose files are still being moved."""
        names = self.files.names(COMMITS)
        return len(numbers(names, ".json")) > len(numbers(names, ".done"))

    def is_deciding(self) -> bool:
        """Return whether a document is being written. On an object store there is no such moment: data are staged."""
        return bool(self.files.names(DRAFTS)) if self.exact else self.is_staging()

    def compactions(self, after: int) -> int:
        """Return the number of compactions among the commits after one with this number."""
        found = [number for number in numbers(self.files.names(COMMITS), ".json") if number > after]
        return sum(self._commit(number)["kind"] == "compaction" for number in found)

    def loaded(self, topic: str) -> dict[int, int]:
        """Return the offset up to which each partition of a topic is loaded."""
        last = self.commits()
        offsets = self._commit(last)["offsets"].get(topic, {}) if last else {}
        return {int(partition): offset for partition, offset in offsets.items()}

    def _commit(self, number: int) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.files.read(numbered(COMMITS, number, ".json")))
        return document

    def data(self) -> set[str]:
        """Return the paths of all data files, whether a commit names them or not."""
        return {path for path in self.below("") if path.endswith(".parquet") and not path.startswith("_")}


def on_disk(root: Path) -> RoundLake:
    """Return the lake in a directory."""

    def below(directory: str) -> list[str]:  # directories may be removed meanwhile
        walked = os.walk(root / directory)
        return [Path(folder, name).relative_to(root).as_posix() for folder, _, names in walked for name in names]

    return RoundLake(str(root), LocalFiles(root), below)


@contextmanager
def on_s3(name: str, settings: Callable[[S3Server], Mapping[str, str]]) -> Iterator[RoundLake]:
    """Yield a lake on an S3 server, which runs within the `with` block. settings: returns those of Spark for it."""
    with S3Server() as server:
        client = s3fs.S3FileSystem(
            key=s3.KEY, secret=s3.SECRET, endpoint_url=server.address, skip_instance_cache=True,
            client_kwargs={"region_name": s3.REGION},
        )  # fmt: skip
        root = f"{server.bucket}/{name}"

        def below(directory: str) -> list[str]:
            found = client.find(f"{root}/{directory}".rstrip("/"))
            return [path.removeprefix(f"{root}/") for path in found]

        files = FsspecFiles(client, root)
        yield RoundLake(f"s3a://{root}", files, below, exact=False, settings=settings(server), look_seconds=0.1)
