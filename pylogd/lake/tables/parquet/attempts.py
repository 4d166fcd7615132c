"""Attempts: the staging directories of processes that prepare a commit. Find those that can be deleted.

Strategy: before an attempt writes its first file, it records a claim: the offsets at which a load starts, or the files
that a compaction replaces. A claim that contradicts the lake's last commit can never be committed, since `Lake.commit`
refuses it for the same reason. So the claim is deleted together with its files, whether its process lives or not; no
clock or timeout is needed. Files without a claim belong to an attempt that was deleted while it was still writing.

The claims are read first, and then the process checks that no newer commit exists: otherwise the claims of newer loads
would seem to contradict the older commit that it knows.

The files of a killed load stay until another load has read the same partitions; those of a killed compaction stay until
another compaction has replaced the same files.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pylogd.lake.tables.errors import CommitConflict, TableError
from pylogd.lake.tables.parquet.files import ATTEMPTS, STAGING, Files
from pylogd.lake.tables.position import LoadRange, Position, by_partition, nested

_log = logging.getLogger(__name__)

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """The state on which a commit is planned.

    planned: the lake's position when a load was planned, for the partitions that it reads.
    reads: the partitions that a load reads.
    replaces: the paths of the files that a compaction replaces.
    """

    planned: Position = field(default_factory=Position)
    reads: Mapping[tuple[str, int], int] = field(default_factory=dict)
    replaces: Sequence[str] = ()

    @classmethod
    def of_load(cls, planned: Position, loading: LoadRange) -> Claim:
        """Return the claim of a load that was planned at a position."""
        topics = {topic for topic, _ in loading.end}
        offsets = {partition: offset for partition, offset in planned.offsets.items() if partition in loading.end}
        ids = {topic: known for topic, known in planned.topic_ids.items() if topic in topics}
        return cls(Position(offsets, ids), loading.end)

    def as_bytes(self) -> bytes:
        """Return the claim's document."""
        document = {
            "version": _VERSION,
            "planned": self.planned.as_document(),
            "reads": nested(self.reads),
            "replaces": list(self.replaces),
        }
        return json.dumps(document).encode()

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Claim:
        """Return the claim from its document. Raises TableError; `path` is for its message."""
        try:
            document: dict[str, Any] = json.loads(data)
            if document["version"] != _VERSION:
                raise ValueError(f"version {document['version']} is not supported, only {_VERSION}")
            planned = Position.from_document(document["planned"])
            return cls(planned, by_partition(document["reads"]), document["replaces"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableError(f"{path} is not an attempt at a commit of a pylogd lake: {error}") from error

    def is_void(self, files: Files, position: Position) -> bool:
        """Return whether the claim can never be committed, given the lake's `position` with all commits applied."""
        try:
            position.check(self.planned, LoadRange(dict(self.reads), dict(self.reads)))
        except CommitConflict:
            return True
        return any(not files.exists(path) for path in self.replaces[:1])


def begin(files: Files, claim: Claim) -> str:
    """Record a claim. Return the name of the attempt."""
    name = uuid.uuid4().hex
    files.create(claim_path(name), claim.as_bytes())
    return name


def directory(name: str) -> str:
    """Return the directory for the files of an attempt."""
    return f"{STAGING}/{name}"


def end(files: Files, name: str) -> None:
    """Delete an attempt and its files."""
    files.delete(directory(name))
    files.delete(claim_path(name))


def void(files: Files, position: Position, number: int) -> list[str]:
    """Return the attempts that can't be committed any more, provided that no newer commit exists after this call.

    position, number: the lake's position as of its last commit, and that commit's number. All commits must be applied.
    """
    staged = files.names(STAGING)  # listed before the claims, so an attempt that begins now is not in this list
    claimed = {name.removesuffix(".json") for name in files.names(ATTEMPTS)}
    found = []
    for name in staged:
        if name.isdigit() and int(name) > number:
            continue  # an earlier version of pylogd is working on that commit
        if name not in claimed:
            found.append(name)
    for name in sorted(claimed):
        try:
            claim = Claim.from_bytes(claim_path(name), files.read(claim_path(name)))
        except FileNotFoundError:  # another process has deleted it
            continue
        except TableError as error:
            _log.warning("%s. Its files stay in %s", error, directory(name))
            continue
        if claim.is_void(files, position):
            found.append(name)
    return found


def claim_path(name: str) -> str:
    """Return the path of an attempt's claim."""
    return f"{ATTEMPTS}/{name}.json"
