"""The frame of a client's program in Python: run its tasks, and print what came of each."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

#: How long a client may take for one step.
SECONDS: Final = 60.0


class Unexpected(Exception):
    """Raised if a client did not do, or did not say, what it should."""


def value(number: int) -> bytes:
    """Return the value of a record."""
    return b"value %d" % number


def compare(found: Iterable[bytes], count: int) -> None:
    """Raise Unexpected unless each of `count` records came once."""
    values = sorted(found)
    if values != sorted(value(number) for number in range(count)):
        raise Unexpected(f"{len(values)} records came, {len(set(values))} different ones; {count} were sent")


def expect_error(what: str, names: Iterable[str], work: Callable[[], object]) -> None:
    """Raise Unexpected unless `work` raises an exception of one of these classes, or because of one."""
    try:
        work()
    except Exception as error:
        chain = [type(found).__name__ for found in causes(error)]
        if not set(chain) & set(names):
            raise Unexpected(f"{what}: {' < '.join(chain)}: {error}") from error
        return
    raise Unexpected(f"{what} was not refused")


def causes(error: BaseException | None) -> Iterable[BaseException]:
    """Yield an exception and those that it was raised because of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class _Heard(logging.Handler):
    """Keeps what a client logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def logged(logger: str, *words: str) -> Iterator[None]:
    """Raise Unexpected at the end unless a logger has had a line with one of the words."""
    heard = _Heard()
    logging.getLogger(logger).addHandler(heard)
    yield
    logging.getLogger(logger).removeHandler(heard)
    if not any(word in line for line in heard.lines for word in words):
        raise Unexpected(f"the client logged {sorted(set(heard.lines))[:6]}")


def python_settings(task: Any, provider: Callable[[str], object]) -> dict[str, Any]:
    """Return the settings that kafka-python and aiokafka have in common: all but those of TLS.

    provider: makes the client's source of a token.
    """
    found: dict[str, Any] = {"bootstrap_servers": task.bootstrap, "security_protocol": task.protocol}
    if task.mechanism:
        found["sasl_mechanism"] = task.mechanism
    if task.mechanism == "GSSAPI":
        found["sasl_kerberos_service_name"] = task.service
    elif task.mechanism == "OAUTHBEARER":
        found["sasl_oauth_token_provider"] = provider(task.token)
    elif task.mechanism:
        found |= {"sasl_plain_username": task.username, "sasl_plain_password": task.password}
    return found


def run(actions: Mapping[str, Callable[[Any], None]]) -> int:
    """Run the tasks of the file that is the program's argument. Return the program's exit code."""
    failed = 0
    for fields in json.loads(Path(sys.argv[1]).read_text()):
        task = SimpleNamespace(**fields)
        if task.cache:
            os.environ["KRB5CCNAME"] = task.cache
        begun = time.monotonic()
        try:
            actions[task.action](task)
            line = f"ok {task.name}"
        except Exception as error:
            failed += 1
            line = f"not ok {task.name}: {type(error).__name__}: {' '.join(str(error).split())}"
        print(line, flush=True)
        print(f"{task.name}: {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
    return 1 if failed else 0
