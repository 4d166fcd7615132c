"""`pylogd features`: show the features of a cluster, and change the levels at which it uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from pylogd.cli.commands import Commands
from pylogd.cli.common import bootstrap_option, connect
from pylogd.cli.output import confirm, note, output_option, print_records, yes_option
from pylogd.client import Admin


@click.group(cls=Commands)
def features() -> None:
    """List features, and change the levels at which the cluster uses them.

    A feature is something that all brokers have to know before clients may use it, such as the newer protocol of
    consumer groups (group.version) and transactions with epochs of their own (transaction.version). Until a level is
    chosen, the cluster uses the highest one that all its live brokers know. A level that is chosen stays.

    \b
    pylogd features list
    pylogd features upgrade                 everything to the highest level
    pylogd features upgrade transaction.version=2
    pylogd features downgrade group.version=0
    """


@features.command("list")
@output_option
@bootstrap_option
def list_(bootstrap: str) -> None:
    """List the features with the level in use, and the levels that the broker asked can use.

    Prints for each feature: name, level, lowest, highest.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        found = admin.describe_features()
    print_records(["name", ">level", ">lowest", ">highest"], [feature._asdict() for feature in found])


def _levels(_ctx: click.Context, _parameter: click.Parameter, words: Sequence[str]) -> dict[str, int]:
    """Return the levels by feature in words such as `group.version=1`."""
    levels = {}
    for word in words:
        name, _, level = word.partition("=")
        if not name or not level.isdecimal():
            raise click.BadParameter(f"{word!r} is not a feature with a level, such as group.version=1")
        levels[name] = int(level)
    return levels


_dry_run = click.option("--dry-run", is_flag=True, help="Only check whether it could be done.")


@features.command()
@click.argument("levels", nargs=-1, metavar="[FEATURE=LEVEL]...", callback=_levels)
@_dry_run
@bootstrap_option
def upgrade(levels: Mapping[str, int], dry_run: bool, bootstrap: str) -> None:
    """Use features at higher levels; without any, all at the highest that the broker knows.

    It is refused if a live broker can't use a level: upgrade all brokers first.
    """
    with connect(bootstrap) as connected, Admin(connected) as admin:
        wanted = levels or {one.name: one.highest for one in admin.describe_features() if one.highest}
        admin.update_features(wanted, validate_only=dry_run)
    _report(wanted, dry_run)


@features.command()
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...", callback=_levels)
@yes_option
@_dry_run
@bootstrap_option
def downgrade(levels: Mapping[str, int], yes: bool, dry_run: bool, bootstrap: str) -> None:
    """Use features at lower levels; 0 ends the use of one. On a terminal, asks for confirmation."""
    confirm(f"Lower {', '.join(levels)}? Clients that use them may fail.", yes or dry_run)
    with connect(bootstrap) as connected, Admin(connected) as admin:
        admin.update_features(levels, downgrade=True, validate_only=dry_run)
    _report(levels, dry_run)


def _report(levels: Mapping[str, int], dry_run: bool) -> None:
    for name, level in levels.items():
        note(f"{name}: level {level}{' could be used' if dry_run else ''}")
