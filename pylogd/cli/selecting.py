"""Choose topics and groups by name, or by regular expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def regex_option(function: Function) -> Function:
    """Add the option `--regex` to a command. Its parameter `regex` tells whether names are regular expressions."""
    return click.option(
        "-R", "--regex", is_flag=True, help="The names are regular expressions, each for the whole of a name."
    )(function)


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
