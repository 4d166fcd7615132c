"""The records that a mirror keeps at a target cluster, as JSON, so that any consumer can read them.

Two topics, each with one partition. CHECKPOINTS is compacted. It has, by key, the latest checkpoint of each source
partition (`["checkpoint", cluster id, topic, partition, target topic]`) and the origin of each topic of the target
(`["origin", target topic, cluster id, topic]`). OFFSETS has the runs of the offset map in the order in which they were
copied, and is deleted by age.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pylogd.services.mirror.offset_map import Run
from pylogd.services.mirror.target import Checkpoint, SourcePartition

CHECKPOINTS: Final = "__pylogd_mirror_checkpoints"
OFFSETS: Final = "__pylogd_mirror_offsets"

_CHECKPOINT, _ORIGIN, _RUNS = "checkpoint", "origin", "runs"


class Origin(NamedTuple):
    """The origin of a topic of the target: topic `topic` of the cluster with this id.

    via: the ids of all clusters that its records have passed; the last one is the source.
    configs: the settings that the mirror has set at the target.
    acls: the ACLs that the mirror has created at the target, each as a list of texts.
    """

    target_topic: str
    cluster: str
    topic: str
    via: tuple[str, ...]
    configs: tuple[str, ...] = ()
    acls: tuple[tuple[str, ...], ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """The target topic, cluster id and source topic that this origin belongs to."""
        return self.target_topic, self.cluster, self.topic


def checkpoint_record(partition: SourcePartition, checkpoint: Checkpoint) -> tuple[bytes, bytes]:
    """Return the key and value of a checkpoint."""
    value = {**checkpoint._asdict(), "topic_id": checkpoint.topic_id.hex()}
    return _dump([_CHECKPOINT, *partition]), _dump(value)


def origin_record(origin: Origin) -> tuple[bytes, bytes]:
    """Return the key and value of a topic's origin."""
    return _dump([_ORIGIN, *origin.key]), _dump({"via": origin.via, "configs": origin.configs, "acls": origin.acls})


def runs_record(partition: SourcePartition, topic_id: bytes, runs: Sequence[Run]) -> tuple[bytes, bytes]:
    """Return the key and value of runs of the offset map."""
    return _dump([_RUNS, *partition]), _dump({"topic_id": topic_id.hex(), "runs": runs})


def parse_checkpoint(key: bytes | None, value: bytes | None) -> tuple[SourcePartition, Checkpoint] | None:
    """Return a checkpoint; None for a record of another kind or of a newer release."""
    fields = _parse(_CHECKPOINT, key, 5)
    if fields is None or value is None:
        return None
    try:
        found = json.loads(value)
        checkpoint = Checkpoint(
            bytes.fromhex(found["topic_id"]), int(found["offset"]), int(found["epoch"]), int(found["target_offset"]),
            int(found["time_ms"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None
    return SourcePartition(str(fields[1]), str(fields[2]), int(fields[3]), str(fields[4])), checkpoint


def parse_origin(key: bytes | None, value: bytes | None) -> Origin | None:
    """Return a topic's origin; None for a record of another kind or of a newer release."""
    fields = _parse(_ORIGIN, key, 4)
    if fields is None or value is None:
        return None
    try:
        found = json.loads(value)
        acls = tuple(tuple(str(field) for field in acl) for acl in found["acls"])
        via, configs = tuple(map(str, found["via"])), tuple(map(str, found["configs"]))
    except (ValueError, KeyError, TypeError):
        return None
    return Origin(str(fields[1]), str(fields[2]), str(fields[3]), via, configs, acls)


def parse_runs(key: bytes | None, value: bytes | None) -> tuple[SourcePartition, bytes, list[Run]] | None:
    """Return runs of the offset map, with their topic's id; None for a record of another kind."""
    fields = _parse(_RUNS, key, 5)
    if fields is None or value is None:
        return None
    try:
        found = json.loads(value)
        topic_id, runs = bytes.fromhex(found["topic_id"]), [Run(*map(int, run)) for run in found["runs"]]
    except (ValueError, KeyError, TypeError):
        return None
    return SourcePartition(str(fields[1]), str(fields[2]), int(fields[3]), str(fields[4])), topic_id, runs


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _parse(kind: str, key: bytes | None, length: int) -> list[Any] | None:
    """Return the fields of a key of this kind."""
    try:
        fields = json.loads(key or b"")
    except ValueError:
        return None
    return fields if isinstance(fields, list) and len(fields) == length and fields[0] == kind else None
