"""`pylogd profiles`: the profiles of the client file."""

from __future__ import annotations

import os
from typing import Final

import click

from pylogd.cli.client_file import ClientFileError, default_path, read_client_file
from pylogd.cli.commands import Commands
from pylogd.cli.output import note, output_option, print_document, print_line, print_records

_EXAMPLE: Final = """\
# Profiles of the pylogd command: which cluster it talks to, and how. See docs/commands.md.
profile = "local"          # the one to use, if neither --profile nor PYLOGD_PROFILE names another

[profiles.local]
bootstrap-server = "localhost:9092"

# [profiles.production]
# bootstrap-server = "kafka1:9093,kafka2:9093"
# properties-file = "production.properties"      # named as in Kafka; relative to this file
# timeout = 20                                   # seconds, as --timeout
# output = "json"                                # as --output
# schema-registry = "https://registry:8081"
"""


@click.group(cls=Commands)
def profiles() -> None:
    """List and show the profiles of the client file, or make a first one.

    A profile says which cluster commands talk to, and how. The file is client.toml in the user's configuration
    directory, or the one that PYLOGD_CLIENT_FILE names; that may be one of Kafka's property files too. A command uses
    the profile of --profile, else of PYLOGD_PROFILE, else the one that the file chooses. Options and their environment
    variables come before a profile, except that --profile comes before the variables.

    \b
    pylogd profiles init
    pylogd profiles list
    pylogd topics list --profile production
    """


@profiles.command("list")
@output_option
def list_() -> None:
    """List the profiles. Prints for each: profile, bootstrap_server, used (without --profile)."""
    found = read_client_file()
    chosen = os.environ.get("PYLOGD_PROFILE", "") or found.chosen
    rows = [
        {**profile.as_document(), "used": name == chosen}
        for name in found.profiles if (profile := found.profile(name)) is not None
    ]  # fmt: skip
    if not rows:
        note(f"{found.path} has no profiles; `pylogd profiles init` makes a first one")
    print_records(["profile", "bootstrap_server", "used"], rows)


@profiles.command()
@click.argument("name", required=False, metavar="[PROFILE]")
@output_option
def show(name: str | None) -> None:
    """Show a profile, by default the one that is used. Secrets are hidden."""
    found = read_client_file()
    profile = found.profile(name or os.environ.get("PYLOGD_PROFILE", ""))
    if profile is None:
        raise ClientFileError(f"{found.path} chooses no profile: name one of {', '.join(found.profiles) or 'none'}")
    document = profile.as_document()
    if print_document(document):
        return
    print_line(profile.name or str(found.path), bold=True)
    for key, value in {**document, **document["properties"]}.items():
        if key not in ("profile", "properties") and value is not None:
            print_line(f"  {key} = {value}")


@profiles.command()
def path() -> None:
    """Print the path of the client file."""
    print_line(str(default_path()))


@profiles.command()
def init() -> None:
    """Write a client file with an example. One that exists is left alone."""
    where = default_path()
    where.parent.mkdir(parents=True, exist_ok=True)
    try:
        with where.open("x", encoding="utf-8") as file:
            os.chmod(where, 0o600)  # it may get passwords
            file.write(_EXAMPLE)
    except FileExistsError:
        raise click.ClickException(f"{where} exists already") from None
    note(f"wrote {where}")
