"""Read the file of a plan for `pylogd reassign`, whole, before anything is changed.

The format is that of Kafka's tool. What pylogd could not carry out is refused: a field that it does not know, a
partition or a replica that is named twice, a data directory for a replica.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from pylogd.cli.record_input import BadInput, check_fields
from pylogd.client import TopicPartition

#: The replicas of each partition; the preferred leader is the first one.
Placement = dict[TopicPartition, tuple[int, ...]]

_FIELDS: Final = frozenset({"version", "partitions"})
_PARTITION_FIELDS: Final = frozenset({"topic", "partition", "replicas", "log_dirs"})
_ANY_DIRECTORY: Final = "any"


def read_plan(file: Path) -> Placement:
    """Return the target replicas by partition of a plan's file, `-` for standard input.

    Raises ClickException, whose text names the file and the line or the entry.
    """
    name = "standard input" if str(file) == "-" else str(file)
    try:
        return _parsed(sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8"))
    except (BadInput, UnicodeDecodeError) as error:
        raise click.ClickException(f"{name} is not a plan: {error}. Nothing was changed") from None


def _parsed(text: str) -> Placement:
    try:
        plan = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"line {error.lineno}, column {error.colno} is not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON ({error})") from None
    if not isinstance(plan, dict):
        raise BadInput("it has to be a JSON object")
    check_fields(plan, _FIELDS)
    if plan.get("version", 1) != 1:
        raise BadInput(f"version {json.dumps(plan['version'])[:20]} is not known: there is 1")
    entries = plan.get("partitions")
    if not isinstance(entries, list) or not entries:
        raise BadInput("it has no partitions")
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for number, entry in enumerate(entries, 1):
        try:
            place, replicas = _entry(entry)
            if place in found:
                raise BadInput(f"{place} is there already")
        except BadInput as error:
            raise BadInput(f"entry {number} of its partitions: {error}") from None
        found[place] = replicas
    return found


def _entry(entry: Any) -> tuple[TopicPartition, tuple[int, ...]]:
    """Return the partition and the replicas of an entry. Raises BadInput."""
    if not isinstance(entry, dict):
        raise BadInput("it has to be an object")
    check_fields(entry, _PARTITION_FIELDS)
    topic, index, replicas = entry.get("topic"), entry.get("partition"), entry.get("replicas")
    if not isinstance(topic, str) or not topic:
        raise BadInput("topic has to be a name")
    if not isinstance(index, int) or not _is_number(index):
        raise BadInput("partition has to be a number that is not negative")
    if not isinstance(replicas, list) or not replicas or not all(map(_is_number, replicas)):
        raise BadInput("replicas has to be a list of broker ids, such as [1, 2]")
    if len(set(replicas)) < len(replicas):
        raise BadInput(f"replicas {replicas} has a broker twice")
    directories = entry.get("log_dirs")
    if directories is not None and directories != [_ANY_DIRECTORY] * len(replicas):
        raise BadInput('log_dirs has to be "any" for each replica: a plan can\'t choose data directories')
    return TopicPartition(topic, index), tuple(replicas)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
