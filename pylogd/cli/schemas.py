"""`pylogd schema-registry`: run the schema registry in the foreground. Twisted is imported only when it runs."""

# ruff: noqa: PLC0415 - Twisted, and modules that need the extra, are imported when the command runs
from __future__ import annotations

import sys

import click

from pylogd.cli.common import bootstrap_option, security
from pylogd.cli.output import print_line

_LEVELS = ["NONE", *(f"{way}{more}" for way in ("BACKWARD", "FORWARD", "FULL") for more in ("", "_TRANSITIVE"))]


@click.command()
@bootstrap_option
@click.option("-l", "--listen", default="127.0.0.1:8081", show_default=True, metavar="HOST:PORT",
              help="HTTP address, as HOST:PORT or a Twisted endpoint string. Port 0 picks a free port.")  # fmt: skip
@click.option("--topic", default="_schemas", show_default=True, help="The compacted topic that holds the schemas.")
@click.option("--compatibility", type=click.Choice(_LEVELS, case_sensitive=False), default="BACKWARD",
              show_default=True, help="Compatibility level of subjects without one of their own.")  # fmt: skip
@click.pass_context
def schema_registry(ctx: click.Context, bootstrap: str, listen: str, topic: str, compatibility: str) -> None:
    """Run a schema registry for Avro, until SIGTERM or Ctrl-C.

    It serves the HTTP API of Confluent's clients and keeps the schemas in a topic. Several registries may share the
    topic. Needs the extra `pylogd-broker[avro]`.

    \b
    pylogd schema-registry --bootstrap-server localhost:9092 --listen 127.0.0.1:8081
    curl -X POST -d '{"schema": "\\"string\\""}' localhost:8081/subjects/names-value/versions
    """
    try:
        from pylogd.schemas.parsing import Compatibility
        from pylogd.schemas.service import SchemaRegistryService
    except ImportError as error:
        raise click.ClickException(f"{error}: install the extra, pip install 'pylogd-broker[avro]'") from error
    from twisted.internet.endpoints import serverFromString

    from pylogd.process.logs import log_to
    from pylogd.process.shell import Shell, process_reactor, run_in_foreground

    reactor = process_reactor()
    try:
        serverFromString(reactor, _endpoint(listen))
    except ValueError as error:
        raise click.BadParameter(f"{listen!r} is neither HOST:PORT nor a Twisted endpoint: {error}") from None
    log_to(sys.stderr)
    service = SchemaRegistryService(
        reactor, bootstrap, _endpoint(listen), topic, Compatibility.named(compatibility), security()
    )
    shell = Shell(reactor, service, lambda: "pylogd schema-registry answers on http://{}:{}".format(*service.address))
    shell.announce = print_line
    ctx.exit(run_in_foreground(shell, reactor, "pylogd schema-registry"))


def _endpoint(listen: str) -> str:
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or not host or "=" in host:
        return listen
    return f"tcp:{port}:interface={host.strip('[]').replace(':', chr(92) + ':')}"
