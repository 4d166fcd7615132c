"""`pylogd schema-registry`: the schema registry in the foreground. Imports Twisted when it runs, as `broker` does."""

# ruff: noqa: PLC0415 - what needs the extra, and Twisted, is imported when the command runs
from __future__ import annotations

import sys
from typing import Any

import click

from pylogd.cli.common import bootstrap_option
from pylogd.errors import PylogdError

_LEVELS = ["NONE", *(f"{way}{more}" for way in ("BACKWARD", "FORWARD", "FULL") for more in ("", "_TRANSITIVE"))]


@click.command()
@bootstrap_option
@click.option("-l", "--listen", default="127.0.0.1:8081", show_default=True, metavar="HOST:PORT",
              help="HTTP address; port 0 picks a free port. Or a Twisted endpoint string.")  # fmt: skip
@click.option("--topic", default="_schemas", show_default=True, help="The compacted topic that holds the schemas.")
@click.option("--compatibility", type=click.Choice(_LEVELS, case_sensitive=False), default="BACKWARD",
              show_default=True, help="Compatibility level of subjects without one of their own.")  # fmt: skip
@click.pass_context
def schema_registry(ctx: click.Context, bootstrap: str, listen: str, topic: str, compatibility: str) -> None:
    """Keep Avro schemas for producers and consumers, until SIGTERM or Ctrl-C.

    It answers the HTTP API that Confluent's clients speak, and keeps all it knows in a topic, which several may share.
    Needs the extra `pylogd-broker[avro]`.

    \b
    pylogd schema-registry --bootstrap-server localhost:9092 --listen 127.0.0.1:8081
    curl -X POST -d '{"schema": "\\"string\\""}' localhost:8081/subjects/names-value/versions
    """
    try:
        from pylogd.schemas.parsing import Compatibility
        from pylogd.schemas.service import SchemaRegistryService
    except ImportError as error:
        raise click.ClickException(f"{error}: install the extra, pip install 'pylogd-broker[avro]'") from error
    from twisted.internet import reactor

    from pylogd.clock import use_monotonic_time

    use_monotonic_time(reactor)
    service = SchemaRegistryService(reactor, bootstrap, _endpoint(listen), topic, Compatibility.named(compatibility))
    ctx.exit(_run(service, reactor))


def _endpoint(listen: str) -> str:
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or not host or "=" in host:
        return listen
    return f"tcp:{port}:interface={host.strip('[]').replace(':', chr(92) + ':')}"


def _run(service: Any, reactor: Any) -> int:
    from twisted.logger import globalLogBeginner, textFileLogObserver
    from twisted.python.failure import Failure

    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
    failure: list[str] = []

    def started(_: None) -> None:
        host, port = service.address
        click.echo(f"pylogd schema-registry answers on http://{host}:{port}")

    def failed(why: Failure) -> None:
        known = isinstance(why.value, (PylogdError, OSError, ValueError)) or hasattr(why.value, "socketError")
        failure.append(why.getErrorMessage() if known else why.getTraceback())
        if reactor.running:
            reactor.stop()

    reactor.addSystemEventTrigger("before", "shutdown", service.stop)
    reactor.callWhenRunning(lambda: service.start().addCallbacks(started, failed))
    reactor.run()
    for text in failure:
        click.echo(f"pylogd schema-registry: {text}", err=True)
    return 1 if failure else 0
