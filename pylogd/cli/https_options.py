"""Options of commands that serve HTTPS: the server's certificate, and certificates of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pylogd.web.tls import ReloadedTls

Function = TypeVar("Function", bound=Callable[..., object])

_FILE = click.Path(exists=True, dir_okay=False)


def https_options(clients: str) -> Callable[[Function], Function]:
    """Return a decorator that adds --tls-certificate, --tls-key and --tls-client-ca to a command.

    clients: the help text of --tls-client-ca, which says what certificates of clients are for.
    """
    added = [
        click.option("--tls-certificate", type=_FILE, metavar="FILE",
                     help="Serve HTTPS with this certificate and its chain (PEM), read again when it changes."),
        click.option("--tls-key", type=_FILE, metavar="FILE",
                     help="The certificate's key (PEM, not encrypted), if it is in another file."),
        click.option("--tls-client-ca", type=_FILE, metavar="FILE", help=clients),
    ]  # fmt: skip

    def decorate(function: Function) -> Function:
        for option in reversed(added):
            function = option(function)
        return function

    return decorate


def check_https(options: Mapping[str, Any]) -> None:
    """Raise click.UsageError if a key or authorities are given without a certificate."""
    if options["tls_certificate"] is None and (options["tls_key"] or options["tls_client_ca"]):
        raise click.UsageError("--tls-key and --tls-client-ca need --tls-certificate")


def https_context(reactor: Any, options: Mapping[str, Any]) -> ReloadedTls | None:
    """Return the TLS context factory for a server with these options; None without --tls-certificate.

    Raises click.UsageError as `check_https` does, and click.ClickException if the extra `tls` is not installed.
    """
    check_https(options)
    if options["tls_certificate"] is None:
        return None
    try:
        from pylogd.web.tls import ReloadedTls, TlsFiles  # noqa: PLC0415 - needs the extra
    except ImportError as error:
        raise click.ClickException(f"{error}: install the extra, pip install 'pylogd-broker[tls]'") from error
    files = TlsFiles(*(options[name] for name in ("tls_certificate", "tls_key", "tls_client_ca")))
    return ReloadedTls(reactor, files)
