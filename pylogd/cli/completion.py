"""`pylogd completion`: print what makes a shell complete commands, options, and the names of topics and groups."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from pylogd.cli.output import print_script

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion for a SHELL: commands, options, topics, groups and profiles.

    Names of topics and groups are asked of the cluster that the command line names so far (or PYLOGD_BOOTSTRAP_SERVER,
    or the profile), for at most 2 seconds.

    \b
    eval "$(pylogd completion bash)"                        # in ~/.bashrc
    eval "$(pylogd completion zsh)"                         # in ~/.zshrc
    pylogd completion fish > ~/.config/fish/completions/pylogd.fish
    """
    found = get_completion_class(shell)
    assert found is not None, shell
    print_script(found(ctx.find_root().command, {}, "pylogd", "_PYLOGD_COMPLETE").source())
