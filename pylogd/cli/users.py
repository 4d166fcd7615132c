"""`pylogd users`: the users who authenticate by SCRAM, and hashed passwords for PLAIN's file.

Rules: passwords are never arguments, which other processes can see: they are asked for, or read from standard input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from pylogd.broker.process import options
from pylogd.cli.commands import Commands, Function
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.output import fail_on, note, output_option, print_line, print_records, secret
from pylogd.client import Admin
from pylogd.config import ConfigError
from pylogd.credentials.passwords import PasswordHash
from pylogd.credentials.scram import MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_MECHANISMS

_BAD_SETTINGS = 2


@click.group(cls=Commands)
def users() -> None:
    """List, add and remove users who authenticate by SCRAM.

    A user has a credential for each of SCRAM-SHA-256 and SCRAM-SHA-512; brokers accept a change at once. To list users
    needs Describe on the cluster, to change them Alter. See docs/authentication.md.

    \b
    pylogd users list
    pylogd users add alice                          asks for the password
    pylogd users add alice < password.txt
    pylogd users remove alice
    pylogd users bootstrap admin -c pylogd.toml   while no broker runs
    """


def _credential_options(function: Function) -> Function:
    """Add the options that say which credentials are made."""
    function = click.option(
        "-i", "--iterations", type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS), default=MIN_ITERATIONS,
        show_default=True, help="How often the password is hashed.",
    )(function)  # fmt: skip
    return _mechanism_option("Only a credential for this mechanism. Repeatable.")(function)


def _mechanism_option(text: str) -> Callable[[Function], Function]:
    return click.option(
        "-m", "--mechanism", "mechanisms", multiple=True, type=click.Choice(list(SCRAM_MECHANISMS)), help=text
    )


def _read_password() -> str:
    """Return the password that the user types twice, or the first line of standard input."""
    password = secret("Password")
    if not password:
        raise click.UsageError("the password is empty")
    return password


def _check_name(_ctx: click.Context, _parameter: click.Parameter, name: str) -> str:
    if not name:
        raise click.BadParameter("a user's name can't be empty")
    return name


@users.command("list")
@click.argument("names", nargs=-1, metavar="[USER]...")
@output_option
@bootstrap_option
def list_(names: Sequence[str], bootstrap: str) -> None:
    """List users with their credentials.

    Prints for each credential: user, mechanism, iterations.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.list_users(names)
    print_records(["user", "mechanism", ">iterations"], [one._asdict() for one in found])


@users.command()
@click.argument("name", metavar="USER", callback=_check_name)
@_credential_options
@bootstrap_option
def add(name: str, mechanisms: Sequence[str], iterations: int, bootstrap: str) -> None:
    """Add a user, or give one a new password. The password is asked for, or the first line of standard input."""
    password = _read_password()
    with connect(bootstrap) as connected, Admin(connected) as admin:
        admin.set_password(name, password, mechanisms or tuple(SCRAM_MECHANISMS), iterations)


@users.command()
@click.argument("names", nargs=-1, required=True, metavar="USER...")
@_mechanism_option("Only the credential for this mechanism. Repeatable.")
@bootstrap_option
def remove(names: Sequence[str], mechanisms: Sequence[str], bootstrap: str) -> None:
    """Remove users. Connections that are open stay until their session ends (connections.max.reauth.ms)."""
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = [one for one in admin.list_users(names) if not mechanisms or one.mechanism in mechanisms]
        outcome = admin.delete_credentials(found) if found else {}
    failed = [f"{name}: no such user" for name in names if name not in {one.user for one in found}]
    failed += [f"{name}: {error}" for name, error in outcome.items() if error is not None]
    fail_on(failed)


@users.command()
@click.argument("name", metavar="USER", callback=_check_name)
@click.option("-c", "--config", type=click.Path(path_type=Path), metavar="FILE", help=options.CONFIG)
@click.option("-d", "--data", multiple=True, metavar="DIR", help=options.DATA)
@click.option("-s", "--set", "assignments", multiple=True, metavar="NAME=VALUE", help=options.SET)
@_credential_options
@click.pass_context
def bootstrap(
    ctx: click.Context, name: str, config: Path | None, data: Sequence[str], assignments: Sequence[str],
    mechanisms: Sequence[str], iterations: int,
) -> None:  # fmt: skip
    """Add a user directly to the metadata store of a broker's settings, while no broker uses it.

    For the first user of a cluster whose listeners all want authentication. With ZooKeeper brokers may run.
    """
    try:
        settings = options.load_settings(config, data=data, assignments=assignments)
    except ConfigError as error:
        note(f"pylogd users bootstrap: {error}")
        ctx.exit(_BAD_SETTINGS)
    password = _read_password()
    from pylogd.broker.process.first_user import write_user  # noqa: PLC0415 - imports Twisted

    write_user(settings, name, password, mechanisms or tuple(SCRAM_MECHANISMS), iterations)


@users.command("hash")
def hash_() -> None:
    """Print the hash of a password, for the users of PLAIN in sasl.plain.users.file."""
    print_line(str(PasswordHash.of(_read_password())))
