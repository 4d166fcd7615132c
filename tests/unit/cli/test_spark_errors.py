"""Whatever Spark, Py4J or the end of the JVM raises, a command on Spark says it in one line."""

from __future__ import annotations

from typing import Any

import click
import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException

from pylogd.cli.spark import one_line

GONE = "Spark's JVM ended before the command was done: run it again"


class JavaException:
    def __init__(self, text: str | Exception) -> None:
        self._text = text
        self._target_id, self._gateway_client = "o1", None

    def toString(self) -> str:
        if isinstance(self._text, Exception):
            raise self._text
        return self._text


def java_error(text: str | Exception) -> Any:
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = JavaException(text)
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AnalysisException("no such table\nand more"), "no such table"),
        (java_error("java.io.IOException: full\n  at a.b"), "java.io.IOException: full"),
        (java_error(Py4JNetworkError("the JVM is gone")), GONE),
        (java_error(ConnectionRefusedError("refused")), GONE),
        (Py4JNetworkError("Answer from Java side is empty"), GONE),
        (Py4JError("py4j.reflection does not exist in the JVM"), GONE),
        (ConnectionRefusedError("refused"), GONE),
    ],
)
def test_an_error_is_one_line(error: Exception, said: str) -> None:
    stopped: list[None] = []
    with pytest.raises(click.ClickException) as found, one_line(lambda: stopped.append(None)):
        raise error
    assert (found.value.message, len(stopped)) == (said, 1)


def test_what_the_stop_raises_after_an_error_does_not_hide_it() -> None:
    def stop() -> None:
        raise ConnectionRefusedError("the JVM has ended by the same signal")

    with pytest.raises(KeyboardInterrupt), one_line(stop):
        raise KeyboardInterrupt
