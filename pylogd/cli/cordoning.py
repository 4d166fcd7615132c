"""Keep new replicas away from data directories of a broker (`cordoned.log.dirs`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from pylogd.client import Admin
from pylogd.client.core.admin.maintenance import CORDONED, cordon_value


def set_cordoned(admin: Admin, broker: int, directories: Sequence[str], cordoned: bool) -> str:
    """Cordon or uncordon data directories of a broker, all of them if none is named. Return which, in words.

    Raises ClickException for a directory that it does not have.
    """
    found = {one.path: one.cordoned for one in admin.describe_log_dirs([broker])}
    chosen = [os.path.normpath(path) for path in directories] or list(found)
    if unknown := [path for path in chosen if path not in found]:
        raise click.ClickException(
            f"broker {broker} has no data directory {', '.join(unknown)}: it has {', '.join(sorted(found))}"
        )
    value = cordon_value(found, chosen if directories else (), cordoned)
    admin.alter_configs("broker", str(broker), {CORDONED: value})
    return ", ".join(chosen) if directories else "all data directories"
