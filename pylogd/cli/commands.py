"""What commands are made of: groups that propose names, several options at once, and a hint at a missing extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

#: A function that becomes a command.
Function = TypeVar("Function", bound=Callable[..., Any])


class Commands(click.Group):
    """A group of commands, with `-h` beside `--help`. It proposes the nearest name for one that is misspelt."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of `click.Group`."""
        options.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **options)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names. Raises UsageError with the nearest names if none has it."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            import difflib  # noqa: PLC0415 - for this error

            near = difflib.get_close_matches(name, self.list_commands(ctx), 2)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"See '{ctx.command_path} --help'."
            ctx.fail(f"There is no command '{ctx.command_path} {name}'. {hint}")
        return super().resolve_command(ctx, args)


def add_options(function: Function, *options: Callable[[Function], Function]) -> Function:
    """Add options to a command, in the order in which its help shows them."""
    for option in reversed(options):
        function = option(function)
    return function


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Import modules of an extra in the `with` block. Raises ClickException, which names the extra, without it."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(f"{error}: install the extra, pip install 'pylogd-broker[{name}]'") from error
