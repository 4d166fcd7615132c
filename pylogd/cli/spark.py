"""Parts that the commands on Spark share: options, the session, errors in one line, and an end in order.

Strategy of the start: Spark needs many seconds, nearly all of it processor time of its JVM. `starting_spark` starts it
in a thread, while the command does what it can do without Spark.

Strategy of the end: an exception in the middle of a call to the JVM breaks the connection, and Py4J prints where; a
command that ends without stopping Spark leaves its Python workers to print that their connections are broken. So
SIGTERM and Ctrl-C cancel the jobs, in a thread, which has a connection of its own. The call of the main thread then
fails, or its wait ends, and the session is stopped. A load that is cancelled adds nothing to its table.

Rules: brokers and topics are checked before Spark starts, so a wrong name is reported at once. An error on Spark
becomes one line. Only the first signal is handled in order; a second one raises at once.
"""

# ruff: noqa: PLC0415 - Spark is imported when a command runs
from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import click

from pylogd.cli.commands import Function, needs_extra
from pylogd.cli.common import assignments, connect, replace_properties
from pylogd.cli.output import note
from pylogd.cli.stopping import Terminated

_MASTER: Final = "local[*,4]"
_CONNECT_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 0.2  # a command may start another job before it checks for a signal
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

#: Options of the JVM that composes Spark's command, and of the driver's JVM. Up to the first commit, Java's second
#: compiler took much of the processor time, for code that is hardly used later. So it begins ten times later.
_JAVA: Final = {
    "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "SPARK_SUBMIT_OPTS": "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000",
}

#: The setting by which Spark's JVM talks to its Python workers over Unix sockets, not over TCP.
UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
#: The settings that a command takes from elsewhere, with a hint for the user.
_ELSEWHERE: Final = {
    "kafka.bootstrap.servers": "give --bootstrap-server",
    "kafka.group.id": "the command is in no group: the table has the offsets",
}


def spark_options(function: Function) -> Function:
    """Add the options `--master`, `--remote` and `--conf` to a command. `on_spark` takes their values."""
    conf = click.option(
        "--conf", "confs", multiple=True, metavar="NAME=VALUE", callback=assignments,
        help="A Spark setting. Repeatable.",
    )  # fmt: skip
    remote = click.option(
        "--remote", metavar="sc://HOST[:PORT]", envvar="SPARK_REMOTE",
        help="Run by Spark Connect on this server, without a JVM here. Needs the extra pylogd-broker[connect]. Also "
        "from SPARK_REMOTE.",
    )  # fmt: skip
    master = click.option(
        "--master", default=_MASTER, show_default=True,
        help="Spark master URL. In local[*,4], the 4 is how often a task may fail.",
    )  # fmt: skip
    return master(remote(conf(function)))


def kafka_setting_option(function: Function) -> Function:
    """Add the option `--set`, for settings of the source's client, to a command. See `common.kafka_options`."""
    return click.option(
        "-s", "--set", "settings", multiple=True, metavar="kafka.NAME=VALUE", callback=_kafka_settings,
        expose_value=False,
        help="A setting of Kafka's consumer, such as kafka.client.rack=a. Takes precedence over --command-config. "
        "Repeatable.",
    )(function)  # fmt: skip


def _kafka_settings(ctx: click.Context, parameter: click.Parameter, words: Sequence[str]) -> None:
    """Check settings, and keep them for the rest of the command."""
    from pylogd.lake.spark.errors import OptionError
    from pylogd.lake.spark.options import check_client_options

    found = {name.lower(): value for name, value in assignments(ctx, parameter, words).items()}
    for name in found:
        if name in _ELSEWHERE:
            raise click.BadParameter(f"{name} can't be set: {_ELSEWHERE[name]}")
        if not name.startswith("kafka."):
            raise click.BadParameter(f"{name!r} is not a setting of Kafka's consumer, such as kafka.client.rack")
    try:
        check_client_options(found)
        if found:
            replace_properties(ctx, {name.removeprefix("kafka."): value for name, value in found.items()})
    except (OptionError, ValueError) as error:
        raise click.BadParameter(str(error)) from None


def check_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """Check that brokers answer and that the topics exist. Raises PylogdError."""
    from pylogd.client import Admin

    with connect(bootstrap) as connected, Admin(connected) as admin:
        known = {topic.name for topic in admin.list_topics(internal=True)}
        for name in topics:
            if name not in known:
                admin.describe_topic(name)  # raises, unless it is so new that only some brokers know it


@contextmanager
def on_spark(master: str, remote: str | None, settings: Mapping[str, str], name: str) -> Iterator[Any]:
    """Yield a Spark session for a command. Errors on Spark become a click.ClickException of one line.

    remote: the URL of a server of Spark Connect; None to start a driver with `master`.
    """
    if remote is not None:
        if master != _MASTER:
            raise click.UsageError("give either --master or --remote")
        with on_server(remote, settings, name) as spark:
            yield spark
        return
    spark = session(master, settings, name)
    with one_line(spark.stop):
        yield spark


@contextmanager
def one_line(stop: Callable[[], object]) -> Iterator[None]:
    """Stop Spark at the end of the `with` block. Errors on Spark become a click.ClickException of one line."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
        stop()
    except PySparkException as error:
        _end(stop)
        raise click.ClickException(explain(str(error))) from error
    except (Py4JError, ConnectionError) as error:  # the clients' errors of connections are of another kind
        said = _message_of_java(error)
        _end(stop)
        raise click.ClickException(said) from error
    except BaseException:
        _end(stop)
        raise


def _message_of_java(error: Any) -> str:
    """Return the message of an exception of the JVM, which can only be asked for while the JVM runs.

    When the JVM ends, calls fail with any of Py4J's errors, also while such an exception is being looked at.
    """
    from py4j.protocol import Py4JError

    with suppress(Py4JError, ConnectionError, AttributeError):
        return explain(str(error.java_exception.toString()))
    return "Spark's JVM ended before the command was done: run it again"


def _end(stop: Callable[[], object]) -> None:
    """Stop Spark after an error. Errors here are ignored: the signal that ended the command may have ended the JVM."""
    with suppress(Exception), warnings.catch_warnings(action="ignore"):
        stop()


def session(master: str, settings: Mapping[str, str], name: str) -> Any:
    """Return a Spark session that logs errors only and whose workers use this process's interpreter."""
    with needs_extra("spark"):
        from pyspark.sql import SparkSession
    note(f"starting Spark on {master}")
    for variable, value in {**_JAVA, "PYSPARK_PYTHON": sys.executable}.items():
        os.environ.setdefault(variable, value)
    builder = SparkSession.builder.master(master).appName(name)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        UNIX_SOCKETS: "true",  # without the 40 ms that each task waits on TCP, see docs/spark.md
    }
    for key, value in {**defaults, **settings}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # the JVM's gateway has no narrower one
        raise click.ClickException(f"Spark does not start (it needs Java 17 or newer): {error}") from error
    spark.sparkContext.setLogLevel("ERROR")
    _silence_tracebacks(spark)
    return spark


def _silence_tracebacks(spark: Any) -> None:
    """Keep PySpark and Py4J from printing tracebacks when the JVM ends: `on_spark` says so in one line.

    Py4J logs each error beside raising it. PySpark's server of accumulators prints that its connection has ended.
    """
    logging.getLogger().addFilter(_is_unknown_error)
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _is_unknown_error(record: logging.LogRecord) -> bool:
    """Return whether a line of the log is not Py4J's line for an error that it raises too."""
    return record.msg != "Exception while sending command."


@contextmanager
def on_server(url: str, settings: Mapping[str, str], name: str) -> Iterator[Any]:
    """Yield a session of Spark Connect. Errors become a click.ClickException of one line."""
    with needs_extra("connect"):
        from pyspark.errors import PySparkException
    with _one_line(PySparkException, ImportError, ValueError):
        spark = _connect(url, settings, name)
    with _one_line(PySparkException):
        try:
            yield spark
        finally:
            with suppress(Exception):  # the server's sessions end by themselves too
                spark.stop()


@contextmanager
def _one_line(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        raise click.ClickException(explain(str(error))) from error


def _connect(url: str, settings: Mapping[str, str], name: str) -> Any:
    """Return a session on a server of Spark Connect. Raises ClickException, PySparkException, ImportError, ValueError.

    The server is tried first, as Spark's client repeats a connection that is refused for minutes.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # of pandas, which is not used here
    with needs_extra("connect"):
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.client import DefaultChannelBuilder
    endpoint = DefaultChannelBuilder(url).endpoint  # without parameters, among which may be a token
    note(f"using Spark Connect on {endpoint}")
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise click.ClickException(
            f"no server of Spark Connect on {endpoint}: {error.strerror or error}. Spark's "
            "sbin/start-connect-server.sh starts one"
        ) from error
    spark = SparkSession.builder.remote(url).appName(name).getOrCreate()
    for key, value in settings.items():
        try:
            spark.conf.set(key, value)
        except Exception as error:  # which one depends on the setting
            raise click.ClickException(
                f"--conf {key} can't be set by Spark Connect: set it where the server is started. {explain(str(error))}"
            ) from error
    return spark


def explain(text: str) -> str:
    """Return one line of Spark's report on a failure: pylogd's own error if it contains one, else the first line."""
    ours = re.findall(r"^pylogd\.[\w.]+: (.+)$", text, re.MULTILINE)
    return ours[-1] if ours else text.strip().splitlines()[0]


class StartingSpark:
    """A session of Spark that is being started."""

    def __init__(self, master: str, settings: Mapping[str, str], name: str) -> None:
        self._arguments = master, settings, name
        self._found: Any = None
        self._failed: BaseException | None = None
        self._over = threading.Event()
        # As a daemon, so that a command can end meanwhile. The JVM ends when the command has ended.
        threading.Thread(target=self._start, name="start Spark", daemon=True).start()

    def _start(self) -> None:
        try:
            self._found = session(*self._arguments)
        except BaseException as error:  # raised again by `session`
            self._failed = error
        self._over.set()

    def found(self) -> Any:
        """Return the session; None until Spark has started."""
        return self._found

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most `seconds` until the start is over or was given up. Return whether either happened."""
        return self._over.wait(seconds)

    def give_up(self) -> None:
        """Release all threads that wait."""
        self._over.set()

    def session(self) -> Any:
        """Wait for the session and return it. Raises click.ClickException if Spark does not start."""
        self.wait()
        if self._failed is not None:
            raise self._failed
        return self._found

    def stop(self) -> None:
        """Stop the session if Spark has started."""
        if self._found is not None:
            self._found.stop()


@contextmanager
def starting_spark(master: str, settings: Mapping[str, str], name: str) -> Iterator[StartingSpark]:
    """Start Spark on this machine or a cluster. Errors on Spark become a click.ClickException of one line."""
    starting = StartingSpark(master, settings, name)
    with one_line(starting.stop):
        yield starting


class Stopping:
    """The handler of the signals that end a command on Spark.

    session: returns the session, or None while Spark starts.
    wake: called in a thread after the first signal.
    """

    def __init__(self, session: Callable[[], Any], wake: Callable[[], object]) -> None:
        self._session = session
        self._wake = wake
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None
        self._kind: type[KeyboardInterrupt] = KeyboardInterrupt
        self._ended = threading.Event()

    @property
    def asked(self) -> bool:
        """Whether a signal has asked the command to end."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for a signal that asks the command to end. Return whether one came."""
        return self._asked.wait(seconds)

    def handle(self, number: int, _frame: Any) -> None:
        """Begin to cancel the jobs at the first signal; raise the signal's exception at the second one."""
        if self._thread is not None:
            raise self._kind
        self._kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        # Not here: the main thread may hold the lock of the event, or be in a call to the JVM.
        self._thread = threading.Thread(target=self._cancel, name="stop Spark", daemon=True)
        self._thread.start()

    def _cancel(self) -> None:
        self._asked.set()
        self._wake()
        while not self._ended.is_set():
            spark = self._session()
            if spark is not None:
                with suppress(Exception):  # a JVM that has ended, or a session that is stopped
                    _cancel_jobs(spark)
            self._ended.wait(_AGAIN_SECONDS)

    def end(self) -> None:
        """Stop cancelling jobs. Raises KeyboardInterrupt or Terminated if a signal came."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            raise self._kind


def _cancel_jobs(spark: Any) -> None:
    from pylogd.lake.spark.shared import is_connect

    if is_connect(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.setLogLevel("OFF")  # it would log each job and task that is cancelled
        spark.sparkContext.cancelAllJobs()


@contextmanager
def stopped_in_order(session: Callable[[], Any], wake: Callable[[], object] = lambda: None) -> Iterator[Stopping]:
    """Handle SIGTERM and SIGINT inside the `with` block. If one came, raise Terminated or KeyboardInterrupt at its end.

    session, wake: see `Stopping`. The exception replaces whatever the cancelled calls raise.
    """
    stop = Stopping(session, wake)
    before = [(each, signal.signal(each, stop.handle)) for each in _SIGNALS]
    try:
        yield stop
    finally:
        for each, handler in before:
            signal.signal(each, handler)
        stop.end()
