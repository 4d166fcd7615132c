"""What the commands that run on Spark share: the session, what has to be there before it, and errors in one line.

Rules: brokers and topics are looked for before Spark is started, which takes seconds: whoever types a command hears at
once that nobody is there. What Spark tells at length is said in one line.
"""

# ruff: noqa: PLC0415 - Spark is imported when a command runs
from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from pylogd.cli.common import assignments, connect, note

Function = TypeVar("Function", bound=Callable[..., Any])


def spark_options(function: Function) -> Function:
    """`--master` and `--conf`."""
    conf = click.option(
        "--conf", "confs", multiple=True, metavar="NAME=VALUE", callback=assignments,
        help="A Spark setting. May be given several times.",
    )  # fmt: skip
    master = click.option(
        "--master", default="local[*,4]", show_default=True,
        help="Where Spark runs. The 4 is how often a task of a local run may fail.",
    )  # fmt: skip
    return master(conf(function))


def check_there(bootstrap: str, topics: Sequence[str]) -> None:
    """That brokers answer and have these topics. Raises PylogdError."""
    from pylogd.client import Admin

    with connect(bootstrap) as connected, Admin(connected) as admin:
        known = {topic.name for topic in admin.list_topics(internal=True)}
        for name in topics:
            if name not in known:
                admin.describe_topic(name)  # it may be so new that only some brokers know it


@contextmanager
def on_spark(master: str, settings: Mapping[str, str], name: str) -> Iterator[Any]:
    """A session for a command; what goes wrong on Spark becomes one line."""
    spark = session(master, settings, name)
    from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield spark
        spark.stop()
    except PySparkException as error:
        spark.stop()
        raise click.ClickException(explain(str(error))) from error
    except Py4JJavaError as error:
        spark.stop()
        raise click.ClickException(explain(str(error.java_exception.toString()))) from error
    except (Py4JNetworkError, ConnectionError) as error:  # the clients' errors of connections are of another kind
        raise click.ClickException("Spark's JVM has ended in the midst of it: run it again") from error
    except BaseException:
        spark.stop()
        raise


def session(master: str, settings: Mapping[str, str], name: str) -> Any:
    """A Spark session that says little, with the interpreter of this process in its workers."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise click.ClickException(f"{error}: install the extra, pip install 'pylogd-broker[spark]'") from error
    note(f"starting Spark on {master}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(), **settings}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # the JVM's gateway has no narrower one
        raise click.ClickException(f"Spark does not start (it needs Java 17 or newer): {error}") from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def explain(text: str) -> str:
    """What was wrong, out of what Spark tells of a worker's failure: our own error if it was one."""
    ours = re.findall(r"^pylogd\.[\w.]+: (.+)$", text, re.MULTILINE)
    return ours[-1] if ours else text.strip().splitlines()[0]
