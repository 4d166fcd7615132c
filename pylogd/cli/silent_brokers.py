"""Ask all brokers at the same time, and tell their answers from the ids of the brokers that do not answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import click

from pylogd.base.errors import KafkaError, PylogdError
from pylogd.cli.common import patience
from pylogd.cli.output import note
from pylogd.client import Admin
from pylogd.client.core.model import LogDir

T = TypeVar("T")
#: Seconds for answers of brokers that have many partitions. A broker that was killed refuses at once.
_SECONDS: Final = 10.0


def split_answers(answers: Mapping[int, list[T] | PylogdError], what: str) -> tuple[list[T], list[int]]:
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


def log_dir_state(directory: LogDir) -> str:
    """Return the state of a data directory: offline, cordoned or online."""
    return "offline" if directory.error is not None else "cordoned" if directory.cordoned else "online"


def fail_if_silent(silent: Sequence[int]) -> None:
    """End the command with an error that names the brokers that did not answer, if there are any."""
    if silent:
        raise click.ClickException(f"left out, since they do not answer: brokers {', '.join(map(str, silent))}")


def ask_log_dirs(admin: Admin, brokers: Iterable[int], seconds: float = _SECONDS) -> tuple[list[LogDir], list[int]]:
    """Return the data directories of the brokers that answer within `seconds`, and the ids of those that do not.

    --timeout replaces `seconds`. All brokers are asked at the same time.

    A broker that refuses, because the user may not describe the cluster, is in neither; a note on standard error says
    so.
    """
    return split_answers(admin.log_dirs_by_broker(brokers, patience(seconds)), "data directories")
