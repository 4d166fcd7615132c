"""Files of plans and of offsets are checked whole, and an error says where it is."""

from __future__ import annotations

import io
import json
from pathlib import Path

import click
import pytest

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.cli.group_offsets import _read_offsets
from pylogd.cli.moves import plan_document, read_plan
from pylogd.cli.reassign import check_outcome
from pylogd.client import TopicPartition

PLACE = TopicPartition("events", 0)


def entry(**changes: object) -> str:
    first = {"topic": "events", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}
    return json.dumps({"version": 1, "partitions": [first, {**first, "partition": 1, **changes}]})


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text(json.dumps(plan_document({PLACE: (1, 2)})))
    assert read_plan(tmp_path / "plan") == {PLACE: (1, 2)}
    (tmp_path / "plan").write_text(entry())  # as Kafka's tool writes it
    assert read_plan(tmp_path / "plan") == {PLACE: (1, 2), TopicPartition("events", 1): (1, 2)}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"partitions": [\n{"topic": "t",}]}', "line 2, column 15 is not JSON"),
        ("[]", "it has to be a JSON object"),
        ("[" * 100_000, "not JSON"),
        ('{"version": 2, "partitions": [1]}', "version 2 is not known"),
        ('{"partition": []}', 'unknown field "partition": did you mean partitions?'),
        ('{"partitions": []}', "it has no partitions"),
        ('{"partitions": [7]}', "entry 1 of its partitions: it has to be an object"),
        (entry(topic=None), "entry 2 of its partitions: topic has to be a name"),
        (entry(partition="1"), "entry 2 of its partitions: partition has to be a number"),
        (entry(partition=0), "entry 2 of its partitions: events-0 is there already"),
        (entry(replicas=[]), "entry 2 of its partitions: replicas has to be a list of broker ids"),
        (entry(replicas=[1, True]), "entry 2 of its partitions: replicas has to be a list of broker ids"),
        (entry(replicas=[2, 2]), r"entry 2 of its partitions: replicas \[2, 2\] has a broker twice"),
        (entry(replica=[2]), 'entry 2 of its partitions: unknown field "replica": did you mean replicas?'),
        (
            entry(log_dirs=["any", "/data/2"]),
            "entry 2 of its partitions: log_dirs has to be .*: a plan can't choose data directories",
        ),
    ],
)
def test_mistakes_in_plans(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "plan").write_text(text)
    with pytest.raises(click.ClickException, match=f"plan is not a plan: {error}.*Nothing was changed"):
        read_plan(tmp_path / "plan")


def test_moves_that_did_not_start_are_counted_beside_those_that_did(capsys: pytest.CaptureFixture[str]) -> None:
    refused = KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker 9")
    with pytest.raises(click.ClickException, match="1 of 2 moves could not start; the other 1 are under way"):
        check_outcome({PLACE: None, TopicPartition("t", 1): refused}, "moves could not start", "are under way")
    assert "t-1: INVALID_REPLICA_ASSIGNMENT: no broker 9" in capsys.readouterr().err
    with pytest.raises(click.ClickException, match="1 of 1 moves could not start; nothing else was changed"):
        check_outcome({PLACE: refused}, "moves could not start", "are under way")
    check_outcome({PLACE: None}, "moves could not start", "are under way")


def listed(data: bytes) -> dict[TopicPartition, int]:
    file = io.BytesIO(data)
    file.name = "offsets"
    return _read_offsets(file)


def test_a_file_of_offsets() -> None:
    assert listed(b"events 0 7\n\n  t 12 0") == {PLACE: 7, TopicPartition("t", 12): 0}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"events 0 7\nevents 1\n", "offsets: line 2: not TOPIC PARTITION OFFSET: 'events 1'"),
        (b"events 0 -7\n", "offsets: line 1: not TOPIC PARTITION OFFSET"),
        (b"events 0 7\nt 0 1\nevents 0 8\n", "offsets: line 3: events-0 has an offset in line 1 already"),
        (b"events 0 7\n\xff 0\n", "offsets: line 2: not TOPIC PARTITION OFFSET"),
        (b"\n", "offsets: it has no offsets"),
    ],
)
def test_mistakes_in_files_of_offsets(data: bytes, error: str) -> None:
    with pytest.raises(click.BadParameter, match=f"{error}.*Nothing was changed"):
        listed(data)
