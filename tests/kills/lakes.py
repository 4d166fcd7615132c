"""The lake of a round, as the harness sees it: on local disks, or on an S3 server in the harness's process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import s3fs  # type: ignore[import-untyped]

from pylogd.tables.parquet.files import COMMITS, DRAFTS, STAGING, Files, numbers
from pylogd.tables.parquet.local import LocalFiles
from pylogd.tables.parquet.remote import FsspecFiles
from tests.fakes import s3
from tests.fakes.s3 import S3Server


@dataclass(frozen=True, slots=True)
class RoundLake:
    """A lake. url: as the loader names it. below: returns all files below a directory.

    exact: whether no other data files may be there than those of commits. An object store may have others: copies that
    a process made that was overtaken in the middle of a move. settings: of the loader's Spark.
    """

    url: str
    files: Files
    below: Callable[[str], list[str]]
    exact: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)

    def commits(self, suffix: str = ".json") -> int:
        """Return the number of commits that have a file with this suffix."""
        return len(numbers(self.files.names(COMMITS), suffix))

    def is_staging(self) -> bool:
        """Return whether data files are being staged."""
        return any(path.endswith(".parquet") for path in self.below(STAGING))

    def is_deciding(self) -> bool:
        """Return whether a document is being written. On an object store there is no such moment: data are staged."""
        return bool(self.files.names(DRAFTS)) if self.exact else self.is_staging()

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

        yield RoundLake(f"s3a://{root}", FsspecFiles(client, root), below, exact=False, settings=settings(server))
