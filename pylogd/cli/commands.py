"""A group of commands that proposes the nearest name for one that is misspelt."""

from __future__ import annotations

from typing import Any

import click


class Commands(click.Group):
    """A group of commands, with `-h` beside `--help`."""

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
