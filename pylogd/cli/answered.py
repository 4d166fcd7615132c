"""Tell the answers of all brokers from those that are missing, also while one of them is down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import click

from pylogd.cli.output import note
from pylogd.errors import KafkaError, PylogdError

T = TypeVar("T")


def answered(answers: Mapping[int, list[T] | PylogdError], what: str) -> tuple[list[T], list[int]]:
    """Return what the brokers have, together, and the ids of those that did not answer.

    A broker that refuses to answer, to a user who may not describe the cluster, is in neither; standard error says that
    it does not show `what`.
    """
    found: list[T] = []
    silent: list[int] = []
    for node, answer in answers.items():
        if isinstance(answer, KafkaError):
            note(f"broker {node} does not show its {what}: {answer}")
        elif isinstance(answer, PylogdError):
            silent.append(node)
        else:
            found += answer
    return found, silent


def fail_if_silent(silent: Sequence[int]) -> None:
    """End the command with an error that names the brokers that did not answer, if there are any."""
    if silent:
        raise click.ClickException(f"left out, since they do not answer: brokers {', '.join(map(str, silent))}")
