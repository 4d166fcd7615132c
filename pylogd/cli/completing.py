"""Complete the names of topics and groups in a shell.

Errors complete to nothing, since a prompt has no place for them.
"""

# ruff: noqa: PLC0415 - the client is imported only when names are asked for
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from pylogd.base.errors import PylogdError

if TYPE_CHECKING:
    from pylogd.client import Admin

#: The seconds to wait for a broker. They are few, because the user's shell waits for the names.
_SECONDS = 2.0


def topic_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics whose names begin with `incomplete`. For `shell_complete`."""
    return _names(ctx, incomplete, lambda admin: [topic.name for topic in admin.list_topics(internal=True)])


def group_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups whose names begin with `incomplete`. For `shell_complete`."""
    return _names(ctx, incomplete, lambda admin: [group.group_id for group in admin.list_groups()])


def _names(ctx: click.Context, incomplete: str, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    from pylogd.cli.common import DEFAULT_BOOTSTRAP, security
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
