"""Separate the answers of brokers from the ids of the brokers that did not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import click

from pylogd.base.errors import KafkaError, PylogdError
from pylogd.cli.output import note

T = TypeVar("T")


def answered(answers: Mapping[int, list[T] | PylogdError], what: str) -> tuple[list[T], list[int]]:
    """Return all answers in one list, and the ids of the brokers that did not answer.

    A broker that refuses, because the user may not describe the cluster, is in neither; a note on standard error says
    that it does not show `what`.
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
