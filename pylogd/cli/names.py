"""Names of topics and groups: complete them in a shell, choose them by regular expression, check partitions.

Errors complete to nothing, since a prompt has no place for them.
"""

# ruff: noqa: PLC0415 - the client is imported only when names are asked for
from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from pylogd.base.errors import PylogdError
from pylogd.cli.commands import Function
from pylogd.cli.common import DEFAULT_BOOTSTRAP, security

if TYPE_CHECKING:
    from pylogd.client import Admin

#: The seconds to wait for a broker. They are few, because the user's shell waits for the names.
_SECONDS = 2.0


def topic_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics whose names begin with `incomplete`. For `shell_complete`."""
    return _completions(ctx, incomplete, lambda admin: [topic.name for topic in admin.list_topics(internal=True)])


def group_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups whose names begin with `incomplete`. For `shell_complete`."""
    return _completions(ctx, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def _completions(ctx: click.Context, incomplete: str, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    from pylogd.client import Admin, Cluster

    try:
        with (
            ctx.scope(),
            Cluster(
                ctx.params.get("bootstrap") or DEFAULT_BOOTSTRAP, client_id="pylogd-cli", retry_timeout=_SECONDS,
                bootstrap_timeout=0.0, request_timeout=_SECONDS, connect_timeout=_SECONDS, security=security(),
            ) as cluster,
        ):  # fmt: skip
            return sorted(name for name in ask(Admin(cluster)) if name.startswith(incomplete))
    except (PylogdError, OSError):
        return []


def regex_option(function: Function) -> Function:
    """Add the option `--regex` to a command. Its parameter `regex` tells whether names are regular expressions."""
    return click.option(
        "-R", "--regex", is_flag=True, help="The names are regular expressions, each for the whole of a name."
    )(function)


def check_partitions(topic: str, wanted: Iterable[int], there: Collection[int]) -> None:
    """Raise ClickException if a topic does not have one of the wanted partitions."""
    if missing := set(wanted).difference(there):
        raise click.ClickException(f"topic {topic} has no partition {min(missing)}: it has {len(there)}")


def matching(names: Sequence[str], there: Iterable[str]) -> list[str]:
    """Return the names in `there` that match one of the regular expressions in `names`.

    Raises BadParameter for an invalid expression, and ClickException for an expression that matches nothing.
    """
    candidates = sorted(set(there))
    found: set[str] = set()
    for text in names:
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise click.BadParameter(f"{text!r} is not a regular expression: {error}", param_hint="--regex") from None
        matched = [name for name in candidates if pattern.fullmatch(name)]
        if not matched:
            raise click.ClickException(f"nothing matches {text!r}")
        found.update(matched)
    return sorted(found)
