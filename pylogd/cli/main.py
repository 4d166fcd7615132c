"""The `pylogd` command: the table of its subcommands, and its exit status.

Strategy: `pylogd --help` reads only the table below, which is quick; a subcommand's module is imported when it runs.

Rules: results go to standard output, everything else to standard error; an error is one line. Exit status: 0 success,
1 failure, 2 wrong usage or settings, 130 interrupted, 143 terminated, 141 standard output was closed by its reader.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from pylogd import __version__
from pylogd.base.errors import PylogdError
from pylogd.cli.commands import Commands
from pylogd.cli.output import note, one_line
from pylogd.cli.stopping import Terminated

INTERRUPTED = 130
TERMINATED = 143
BROKEN_PIPE = 141
FAILED = 1


class _Lazy(NamedTuple):
    """A subcommand: the module and attribute that have it, and its line in the list of commands."""

    module: str
    attribute: str
    help: str


COMMANDS: Mapping[str, _Lazy] = {
    "broker": _Lazy("pylogd.cli.broker", "broker", "Run a broker in the foreground."),
    "topics": _Lazy("pylogd.cli.topics", "topics", "Create, list, describe, alter and delete topics."),
    "produce": _Lazy("pylogd.cli.produce", "produce", "Send lines to a topic, one record each."),
    "consume": _Lazy("pylogd.cli.consume", "consume", "Print the records of topics."),
    "config": _Lazy("pylogd.cli.configs", "config", "Show, change and compare settings of topics, brokers, groups."),
    "offsets": _Lazy("pylogd.cli.offsets", "offsets", "Show the first and the end offset of partitions."),
    "groups": _Lazy("pylogd.cli.groups", "groups", "List, describe, reset and delete consumer groups."),
    "transactions": _Lazy("pylogd.cli.transactions", "transactions", "List transactions, and abort those that hang."),
    "acls": _Lazy("pylogd.cli.acls", "acls", "List, add and remove access control lists."),
    "cluster": _Lazy("pylogd.cli.cluster", "cluster", "Show brokers, elect leaders, or run a test cluster."),
    "brokers": _Lazy("pylogd.cli.brokers", "brokers", "List brokers, empty one, or take one out of service."),
    "logdirs": _Lazy("pylogd.cli.logdirs", "logdirs", "Show how much is in the data directories of brokers."),
    "quotas": _Lazy("pylogd.cli.quotas", "quotas", "List, set and remove client quotas."),
    "users": _Lazy("pylogd.cli.users", "users", "List, add and remove users who authenticate by SCRAM."),
    "features": _Lazy("pylogd.cli.features", "features", "List features, and change their levels."),
    "reassign": _Lazy("pylogd.cli.reassign", "reassign", "Move replicas between brokers."),
    "zookeeper": _Lazy("pylogd.cli.zookeeper", "zookeeper", "Show what brokers and consumers registered in ZooKeeper."),
    "settings": _Lazy("pylogd.cli.settings", "settings", "List and explain the settings of brokers and topics."),
    "verify-log": _Lazy("pylogd.cli.logs", "verify_log", "Check the files of a data directory."),
    "dump-log": _Lazy("pylogd.cli.logs", "dump_log", "Print a file of a log: segment, index, checkpoint, ..."),
    "load": _Lazy("pylogd.cli.load", "load", "Load topics into a lake of Parquet files, with Spark."),
    "audit": _Lazy("pylogd.cli.audit", "audit", "Verify that every record that producers reported arrived."),
    "mirror": _Lazy("pylogd.cli.mirror", "mirror", "Copy topics between clusters, and see how far that is."),
    "console": _Lazy("pylogd.cli.console", "console", "Run a web console for clusters."),
    "schema-registry": _Lazy("pylogd.cli.schema_registry", "schema_registry", "Run a schema registry."),
    "schemas": _Lazy("pylogd.cli.schemas", "schemas", "Show, register, check and delete schemas of a registry."),
    "top": _Lazy("pylogd.cli.top", "top", "Watch topics, groups and brokers live."),
    "bench": _Lazy("pylogd.cli.bench", "bench", "Measure how fast and how late a cluster answers."),
    "debug": _Lazy("pylogd.cli.debug", "debug", "Collect what a bug report needs."),
    "profiles": _Lazy("pylogd.cli.profiles", "profiles", "List and show the profiles of the client file."),
    "completion": _Lazy("pylogd.cli.completion", "completion", "Print the completion for a shell."),
    "demo": _Lazy("pylogd.cli.demo", "demo", "Run a broker and a client on real events, end to end."),
}


class LazyGroup(Commands):
    """A group of commands that imports a subcommand when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table, which is the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a subcommand and return it."""
        found = COMMANDS.get(name)
        if found is None:
            return None
        command: click.Command = getattr(importlib.import_module(found.module), found.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; turn expected errors into one line and an exit status."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            _drop_output()
            ctx.exit(BROKEN_PIPE)
        except KeyboardInterrupt as error:
            _drop_output()
            ctx.exit(TERMINATED if isinstance(error, Terminated) else INTERRUPTED)
        except (PylogdError, OSError) as error:
            raise click.ClickException(one_line(error)) from error


def _drop_output() -> None:
    """Discard buffered output, which has no reader; the interpreter would report an error for it at its exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pylogd", message="%(prog)s %(version)s")
def pylogd() -> None:
    """A log broker that speaks the Kafka wire protocol, and the tools for it.

    \b
    pylogd broker --listen 127.0.0.1:9092 --data /var/lib/pylogd    run a broker
    pylogd topics create events --partitions 4                      create a topic
    echo "hello" | pylogd produce events                            write to it
    pylogd consume events --until-end                               read it

    Commands that talk to a broker take --bootstrap-server HOST:PORT or the environment variable
    PYLOGD_BOOTSTRAP_SERVER (default: localhost:9092), and --command-config FILE or PYLOGD_COMMAND_CONFIG with Kafka's
    properties for TLS and SASL. `pylogd COMMAND --help` has examples.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command of `sys.argv`, and end the process with its exit status."""
    try:
        code = pylogd.main(arguments, prog_name="pylogd", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        _show(error)
        sys.exit(error.exit_code)
    except click.Abort:  # Ctrl-C at a prompt
        sys.exit(INTERRUPTED)


def _show(error: click.ClickException) -> None:
    """Print an error on standard error. Errors of usage, which click words, may have several lines."""
    if not isinstance(error, click.UsageError):
        note(f"Error: {error.format_message()}")
        return
    text = io.StringIO()
    error.show(text)
    for line in text.getvalue().splitlines():
        note(line)
