"""Parts that the commands on Spark share: options, the session, and errors in one line.

Rules: brokers and topics are checked before Spark starts, which takes seconds, so a wrong name is reported at once. An
error on Spark becomes one line.
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

from pylogd.cli.common import assignments, connect
from pylogd.cli.output import note

Function = TypeVar("Function", bound=Callable[..., Any])


def spark_options(function: Function) -> Function:
    """Add the options `--master` and `--conf` to a command."""
    conf = click.option(
        "--conf", "confs", multiple=True, metavar="NAME=VALUE", callback=assignments,
        help="A Spark setting. Repeatable.",
    )  # fmt: skip
    master = click.option(
        "--master", default="local[*,4]", show_default=True,
        help="Spark master URL. In local[*,4], the 4 is how often a task may fail.",
    )  # fmt: skip
    return master(conf(function))


def check_there(bootstrap: str, topics: Sequence[str]) -> None:
    """Check that brokers answer and that the topics exist. Raises PylogdError."""
    from pylogd.client import Admin

    with connect(bootstrap) as connected, Admin(connected) as admin:
        known = {topic.name for topic in admin.list_topics(internal=True)}
        for name in topics:
            if name not in known:
                admin.describe_topic(name)  # raises, unless it is so new that only some brokers know it


@contextmanager
def on_spark(master: str, settings: Mapping[str, str], name: str) -> Iterator[Any]:
    """Yield a Spark session for a command. Errors on Spark become a click.ClickException of one line."""
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
        raise click.ClickException("Spark's JVM ended before the command was done: run it again") from error
    except BaseException:
        spark.stop()
        raise


def session(master: str, settings: Mapping[str, str], name: str) -> Any:
    """Return a Spark session that logs errors only and whose workers use this process's interpreter."""
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
    """Return one line of Spark's report on a failure: pylogd's own error if there is one, else the first line."""
    ours = re.findall(r"^pylogd\.[\w.]+: (.+)$", text, re.MULTILINE)
    return ours[-1] if ours else text.strip().splitlines()[0]
