"""`pylogd console`: run the web console in the foreground. Twisted is imported only when it runs."""

# ruff: noqa: PLC0415 - Twisted, and modules that need the extra, are imported when the command runs
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pylogd.cli.commands import needs_extra
from pylogd.cli.common import bootstrap_option, registry_settings
from pylogd.cli.common import security as client_security
from pylogd.cli.output import note
from pylogd.cli.service_options import (
    begin_log,
    check_endpoint,
    check_https,
    https_context,
    https_options,
    log_options,
    run_service,
)

if TYPE_CHECKING:
    from pylogd.services.console.configuration import Configuration
    from pylogd.services.console.roles import Roles

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_LOCAL = ("127.0.0.1", "localhost", "::1")


@click.command()
@bootstrap_option
@click.option("--config", type=_FILE, metavar="FILE",
              help="Clusters, roles and masking rules (TOML), in place of --bootstrap-server.")  # fmt: skip
@click.option("-l", "--listen", default="127.0.0.1:8088", show_default=True, metavar="HOST:PORT",
              help="HTTP address, as HOST:PORT or a Twisted endpoint string. Port 0 picks a free port.")  # fmt: skip
@click.option("--interval", type=click.FloatRange(min=1.0), default=10.0, show_default=True, metavar="SECONDS",
              help="How long to wait between two samples of a cluster, at least.")  # fmt: skip
@click.option("--schema-registry", "registry", default="", metavar="URL",
              help="Decode messages by the schemas of this registry.")  # fmt: skip
@click.option("--allow-writes", is_flag=True, help="Let users change clusters. Otherwise the console only reads.")
@click.option("--action-log", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Append a JSON line for each change of a cluster: who, when, what.")  # fmt: skip
@click.option("--users", type=_FILE, metavar="FILE",
              help="Require a user of this file, with a password ('pylogd users hash' makes its lines).")  # fmt: skip
@https_options("Log in by certificate: browsers need one that these authorities signed (PEM).")
@click.option("--oidc", type=_FILE, metavar="FILE",
              help="Log in at an OpenID provider: issuer, client_id, client_secret, public_url (TOML).")  # fmt: skip
@click.option("--host", "hosts", multiple=True, metavar="NAME",
              help="Names under which browsers reach the console, beside the address where it listens.")  # fmt: skip
@click.option("--behind-tls-proxy", is_flag=True, help="A proxy in front serves HTTPS: cookies are for HTTPS only.")
@log_options
@click.pass_context
def console(
    ctx: click.Context, /, bootstrap: str, config: Path | None, listen: str, registry: str, **options: Any
) -> None:
    """Run the web console for one or more clusters, until SIGTERM or Ctrl-C.

    It shows topics, groups with their lag, brokers and messages of pylogd and of Apache Kafka, and changes nothing
    without --allow-writes. Needs the extra `pylogd-broker[console]`; with TLS also `[tls]`, with OpenID `[oauth]`.

    \b
    pylogd console --bootstrap-server localhost:9092
    pylogd console --config clusters.toml --users users --allow-writes \\
        --tls-certificate console.pem -l 0.0.0.0:8443
    """
    with needs_extra("console"):
        from pylogd.services.console.service import ConsoleOptions, ConsoleService
    from pylogd.base.process.shell import process_reactor

    reactor = process_reactor()
    endpoint = check_endpoint(reactor, listen)
    _check_access(listen, options)
    chosen = _configuration(bootstrap, config, registry)
    roles = _roles(chosen, options)
    output = begin_log(reactor, options["logfile"], options["log_format"])
    login, tls, provider = _login(reactor, options, roles), https_context(reactor, options), _provider(options)
    settings = ConsoleOptions(
        endpoint, options["interval"], options["allow_writes"], _is_secure(options), _hosts(listen, options),
        chosen.masking, options["action_log"],
    )  # fmt: skip
    service = ConsoleService(reactor, settings, chosen.clusters, login=login, tls=tls, provider=provider)
    ctx.exit(run_service(reactor, service, "pylogd console", output))


def _is_secure(options: Mapping[str, Any]) -> bool:
    """Return whether browsers use HTTPS, up to here or up to a proxy in front."""
    return options["tls_certificate"] is not None or options["behind_tls_proxy"]


def _is_local(listen: str) -> bool:
    return listen.rpartition(":")[0].strip("[]") in _LOCAL


def _has_login(options: Mapping[str, Any]) -> bool:
    return any(options[name] is not None for name in ("users", "tls_client_ca", "oidc"))


def _check_access(listen: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that would let anybody change clusters; print a note if anybody can read them."""
    if options["allow_writes"] and not _has_login(options) and not _is_local(listen):
        raise click.UsageError(
            "--allow-writes at an address that others reach needs a login: --users, --tls-client-ca or --oidc"
        )
    check_https(options)
    if not _has_login(options) and not _is_local(listen):
        note("whoever can connect to this address may read the clusters: set --users, --tls-client-ca or --oidc")


def _hosts(listen: str, options: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names that requests may be for; None with a login, which no other site has."""
    if _has_login(options) and not options["hosts"]:
        return None
    own = listen.rpartition(":")[0].strip("[]").lower()
    if own in ("0.0.0.0", "::", "") and not options["hosts"]:
        return None
    return frozenset({*_LOCAL, own, *(name.lower() for name in options["hosts"])})


def _configuration(bootstrap: str, config: Path | None, registry: str) -> Configuration:
    """Return the configuration in the file of --config, or one for a single cluster. Raises BadConfiguration."""
    from pylogd.services.console.clusters import ClusterOptions
    from pylogd.services.console.configuration import Configuration, read

    if config is not None:
        return read(config)
    return Configuration([ClusterOptions("cluster", bootstrap, client_security(), registry, registry_settings())])


def _roles(chosen: Configuration, options: Mapping[str, Any]) -> Roles:
    """Return the roles of the configuration, or one for everybody without any. Raises UsageError, BadConfiguration."""
    from pylogd.services.console.configuration import BadConfiguration
    from pylogd.services.console.roles import CERTIFICATE, CLAIM, EVERYTHING, OIDC, USER

    if chosen.roles is None:
        return EVERYTHING
    if not _has_login(options):
        raise click.UsageError("roles in --config need a login: --users, --tls-client-ca or --oidc")
    for way, option in ((USER, "users"), (CERTIFICATE, "tls_client_ca"), (OIDC, "oidc"), (CLAIM, "oidc")):
        if chosen.roles.uses(way) and options[option] is None:
            raise BadConfiguration(f"roles name members as {way}:..., which needs --{option.replace('_', '-')}")
    return chosen.roles


def _login(reactor: Any, options: Mapping[str, Any], roles: Roles) -> Any:
    """Return the logins that the options allow: passwords, certificates, a provider."""
    from pylogd.credentials.passwords import UsersFile
    from pylogd.services.console.login import Login

    users = None if options["users"] is None else UsersFile(str(options["users"]))
    if users is not None and not _is_secure(options):
        note("passwords are sent in clear text: set --tls-certificate, or put a proxy with TLS in front")
    return Login(
        reactor, users, certificates=options["tls_client_ca"] is not None, provider=options["oidc"] is not None,
        roles=roles,
    )  # fmt: skip


def _provider(options: Mapping[str, Any]) -> Any:
    """Return the OpenID provider of --oidc; None without that option. Raises ClickException without the extra."""
    if options["oidc"] is None:
        return None
    with needs_extra("oauth"):
        from pylogd.services.console.oidc import Provider, read_options
    return Provider(read_options(options["oidc"]))
