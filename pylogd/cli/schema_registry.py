"""`pylogd schema-registry`: run the schema registry in the foreground. Twisted is imported only when it runs."""

# ruff: noqa: PLC0415 - Twisted, and modules that need the extra, are imported when the command runs
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from pylogd.cli.commands import needs_extra
from pylogd.cli.common import bootstrap_option
from pylogd.cli.common import security as client_security
from pylogd.cli.output import note, secret
from pylogd.cli.schema_options import LEVELS
from pylogd.cli.service_options import begin_log, check_endpoint, https_context, https_options, log_options, run_service

_FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@bootstrap_option
@click.option("-l", "--listen", default="127.0.0.1:8081", show_default=True, metavar="HOST:PORT",
              help="HTTP address, as HOST:PORT or a Twisted endpoint string. Port 0 picks a free port.")  # fmt: skip
@click.option("--topic", default="_schemas", show_default=True, help="The compacted topic that holds the schemas.")
@click.option("--compatibility", type=click.Choice(LEVELS, case_sensitive=False), default="BACKWARD",
              show_default=True, metavar="LEVEL", help="Compatibility level of subjects without one of their own: "
              + ", ".join(LEVELS) + ".")  # fmt: skip
@https_options("Require certificates of clients, signed by one of these authorities (PEM).")
@click.option("--group-id", default="schema-registry", show_default=True, metavar="NAME",
              help="The group in which the registries that share the topic elect their leader.")  # fmt: skip
@click.option("--advertise", metavar="HOST:PORT",
              help="Where the other registries of the group reach this one. Default: where it listens.")  # fmt: skip
@click.option("--never-leader", is_flag=True, help="Do not let this registry become the leader.")
@click.option("--session-timeout", type=click.FloatRange(min=0.5), default=10.0, show_default=True, metavar="SECONDS",
              help="How long a dead leader is taken for alive.")  # fmt: skip
@click.option("--leader-ca", type=_FILE, metavar="FILE",
              help="Authorities that sign the registries' certificates (PEM), for requests to the leader. "
                   "Default: the system's.")  # fmt: skip
@click.option("--users", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Require a user of this file, with a password (HTTP Basic).")  # fmt: skip
@click.option("--add-user", metavar="NAME",
              help="Ask for a password, write it hashed to the file of --users, and end.")  # fmt: skip
@click.option("--jwks", metavar="FILE|URL",
              help="Require a bearer token that is signed with one of these keys (JSON web key set).")  # fmt: skip
@click.option("--token-issuer", metavar="TEXT", help="The issuer (iss) that tokens must name.")
@click.option("--token-audience", metavar="TEXT", help="The audience (aud) that tokens must name.")
@log_options
@click.pass_context
def schema_registry(
    ctx: click.Context, /, bootstrap: str, listen: str, topic: str, compatibility: str, **access: Any
) -> None:
    """Run a schema registry for Avro, JSON Schema and Protobuf, until SIGTERM or Ctrl-C.

    It serves the HTTP API of Confluent's clients and keeps the schemas in a topic. Several registries may share the
    topic: one of them, which they elect, makes all changes, and the others send those on to it. Needs the extra
    `pylogd-broker[schemas]`; with TLS also `[tls]`, with bearer tokens `[oauth]`.

    \b
    pylogd schema-registry --bootstrap-server localhost:9092 \\
        --listen 127.0.0.1:8081
    curl -X POST -d '{"schema": "\\"string\\""}' \\
        localhost:8081/subjects/names-value/versions
    pylogd schema-registry --users users --add-user ada
    pylogd schema-registry --users users --tls-certificate registry.pem \\
        --listen 0.0.0.0:8081
    """
    if access["add_user"] is not None:
        _add_user(access["users"], access["add_user"])
        return
    with needs_extra("schemas"):
        from pylogd.services.registry.model import Compatibility
        from pylogd.services.registry.service import SchemaRegistryService
    from pylogd.base.process.shell import process_reactor

    reactor = process_reactor()
    endpoint = check_endpoint(reactor, listen)
    output = begin_log(reactor, access["logfile"], access["log_format"])
    tls, authenticator = https_context(reactor, access), _authenticator(reactor, access)
    service = SchemaRegistryService(
        reactor, bootstrap, endpoint, topic, Compatibility.named(compatibility), client_security(),
        authenticator=authenticator, tls=tls, forwarder=_forwarder(reactor, access), membership=_membership(access),
    )  # fmt: skip
    scheme = "http" if tls is None else "https"
    ctx.exit(run_service(
        reactor, service, "pylogd schema-registry", output,
        describe=lambda: "pylogd schema-registry answers on {}://{}:{}".format(scheme, *service.address),
    ))  # fmt: skip


def _add_user(users: Path | None, name: str) -> None:
    from pylogd.credentials.passwords import add_user

    if users is None:
        raise click.UsageError("--add-user needs --users FILE")
    password = secret(f"Password of {name}")
    try:
        add_user(users, name, password)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--add-user") from None


def _forwarder(reactor: Any, access: Mapping[str, Any]) -> Any:
    """Return the client that sends changes to the leading registry; with HTTPS it presents its own certificate."""
    from pylogd.services.registry.forwarding import Forwarder

    if access["tls_certificate"] is None:
        return Forwarder(reactor)
    from pylogd.web.tls import LeaderTls, TlsFiles

    own = TlsFiles(access["tls_certificate"], access["tls_key"])
    return Forwarder(reactor, LeaderTls(access["leader_ca"], own))


def _membership(access: Mapping[str, Any]) -> Any:
    """Return this registry's part in the election of a leader, according to the options."""
    from pylogd.services.registry.service import RegistryMember

    advertised = "", 0
    if access["advertise"] is not None:
        host, _, port = access["advertise"].rpartition(":")
        if not host or not port.isdigit():
            raise click.BadParameter(f"{access['advertise']!r} is not HOST:PORT", param_hint="--advertise")
        advertised = host.strip("[]"), int(port)
    return RegistryMember(access["group_id"], advertised, not access["never_leader"], access["session_timeout"])


def _authenticator(reactor: Any, access: Mapping[str, Any]) -> Any:
    """Return the check of passwords (--users) and tokens (--jwks). Without both, every request is accepted."""
    from pylogd.credentials.conversation import MechanismUnavailable
    from pylogd.credentials.passwords import UsersFile
    from pylogd.services.registry.authentication import Authenticator, RegistryTokens

    users = None if access["users"] is None else UsersFile(str(access["users"]))
    tokens = None
    if access["jwks"] is not None:
        try:
            tokens = RegistryTokens(access["jwks"], access["token_issuer"], access["token_audience"])
        except MechanismUnavailable as error:
            raise click.ClickException(str(error)) from error
    if (users or tokens) and access["tls_certificate"] is None:
        note("passwords and tokens are sent in clear text: set --tls-certificate, or put a proxy with TLS in front")
    return Authenticator(reactor, users, tokens)
