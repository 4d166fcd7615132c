"""Parts that the commands share which run a service in the foreground: its log, its address, HTTPS, and its run.

Rule: `pylogd broker` imports this module before it listens, so it imports Twisted and modules of extras late.
"""

# ruff: noqa: PLC0415 - as the rule says
from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pylogd.cli.commands import Function, add_options, needs_extra
from pylogd.cli.output import print_line

if TYPE_CHECKING:
    from pylogd.base.process.logs import LogOutput
    from pylogd.web.tls import ReloadedTls

#: A copy of the formats in pylogd.base.process.logs, because importing that module would slow down `--help`.
_FORMATS: Final = ("text", "json")
_LOGFILE: Final = "Write the log to a file instead of standard error. SIGHUP and SIGUSR1 reopen it."
_FILE: Final = click.Path(exists=True, dir_okay=False)
_FORMAT: Final = "Lines for people, or a JSON object on each line."


class BadLogFile(click.ClickException):
    """The log file can't be written. Ends the command with exit status 2."""

    exit_code = 2


def log_options(function: Function) -> Function:
    """Add the options --logfile and --log-format; the command gets the arguments `logfile` and `log_format`."""
    file = click.Path(path_type=Path, dir_okay=False)
    return add_options(
        function,
        click.option("--logfile", type=file, metavar="FILE", help=_LOGFILE),
        click.option("--log-format", type=click.Choice(_FORMATS), default=_FORMATS[0], show_default=True,
                     help=_FORMAT),
    )  # fmt: skip


def open_log(logfile: Path | None, log_format: str) -> LogOutput:
    """Open the log of a service. A file that can't be written ends the command with exit status 2."""
    from pylogd.base.process.logs import LogOutput

    try:
        return LogOutput(None if logfile is None else str(logfile.absolute()), log_format)
    except OSError as error:
        command = click.get_current_context().command_path
        raise BadLogFile(f"{command}: can't write to {logfile}: {error.strerror}") from None


def begin_log(reactor: Any, logfile: Path | None, log_format: str) -> LogOutput:
    """Open the log of a service, write to it from now on, and reopen it at SIGHUP and SIGUSR1."""
    output = open_log(logfile, log_format)
    output.begin()
    output.reopen_on(reactor, signal.SIGHUP, signal.SIGUSR1)
    return output


def https_options(clients: str) -> Callable[[Function], Function]:
    """Return a decorator that adds --tls-certificate, --tls-key and --tls-client-ca to a command.

    clients: the help text of --tls-client-ca, which says what certificates of clients are for.
    """
    options = [
        click.option("--tls-certificate", type=_FILE, metavar="FILE",
                     help="Serve HTTPS with this certificate and its chain (PEM), read again when it changes."),
        click.option("--tls-key", type=_FILE, metavar="FILE",
                     help="The certificate's key (PEM, not encrypted), if it is in another file."),
        click.option("--tls-client-ca", type=_FILE, metavar="FILE", help=clients),
    ]  # fmt: skip
    return lambda function: add_options(function, *options)


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
    with needs_extra("tls"):
        from pylogd.web.tls import ReloadedTls, TlsFiles
    files = TlsFiles(*(options[name] for name in ("tls_certificate", "tls_key", "tls_client_ca")))
    return ReloadedTls(reactor, files)


def http_endpoint(listen: str) -> str:
    """Return the Twisted server endpoint of HOST:PORT; other texts are endpoints already and stay unchanged."""
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or not host or "=" in host:
        return listen
    return f"tcp:{port}:interface={host.strip('[]').replace(':', chr(92) + ':')}"


def check_endpoint(reactor: Any, listen: str) -> str:
    """Return the Twisted server endpoint of `listen`, which is HOST:PORT or an endpoint. Raises BadParameter."""
    from twisted.internet.endpoints import serverFromString

    endpoint = http_endpoint(listen)
    try:
        serverFromString(reactor, endpoint)
    except ValueError as error:
        raise click.BadParameter(f"{listen!r} is neither HOST:PORT nor a Twisted endpoint: {error}") from None
    return endpoint


def run_service(
    reactor: Any, service: Any, name: str, output: LogOutput, *, describe: Callable[[], str] | None = None,
    new_objects: int | None = None,
) -> int:  # fmt: skip
    """Run a service until SIGTERM or Ctrl-C, and print one line once it listens. Return the exit status.

    name: the command, for the error that ends it.
    describe: returns the line; by default the service's `describe` does.
    new_objects: see `tune_interpreter`; None for its default.
    """
    from pylogd.base.process.shell import TunedShell, run_in_foreground

    shell = TunedShell(reactor, service, describe or service.describe)
    if new_objects is not None:
        shell.new_objects = new_objects
    shell.announce_to(print_line, output)
    return run_in_foreground(shell, reactor, name, output.style)
